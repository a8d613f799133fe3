"""Who asks: by the client's certificate, a bearer token, or the process at the other end of a unix socket."""

from __future__ import annotations

from collections.abc import Sequence

from podkeep.apiserver.auth.jwt import InvalidToken
from podkeep.apiserver.auth.tokens import Tokens, TokenUser
from podkeep.apiserver.auth.union import AnyAuthenticator
from podkeep.apiserver.auth.user import ADMIN, CREDENTIAL_ID, MASTERS, NOBODY, User, authenticated
from podkeep.apiserver.meta.status import unauthorized
from podkeep.http.messages import Request

INVALID = "invalid bearer token"


class CertificateAuthenticator:
    """By the certificate that the connection verified: its common name is the user, its organisations the groups."""

    def authenticate(self, request: Request) -> User | None:
        """Return who asks; None: the client showed no certificate, or one without a common name."""
        certificate = request.peer.certificate
        if not certificate:
            return None
        fields = [pair for part in certificate.get("subject", ()) for pair in part]
        names = [value for kind, value in fields if kind == "commonName"]
        # Of several common names the last counts, as in Go (pkix.Name: FillFromRDNSequence).
        if not names or not names[-1]:
            return None
        groups = tuple(value for kind, value in fields if kind == "organizationName")
        fingerprint = request.peer.fingerprint
        return authenticated(User(name=names[-1], groups=groups, extra={CREDENTIAL_ID: (f"X509SHA256={fingerprint}",)}))


class BearerAuthenticator:
    """By the token of ``Authorization: Bearer``."""

    def __init__(self, tokens: Sequence[Tokens]) -> None:
        self._tokens = tuple(tokens)

    def authenticate(self, request: Request) -> User | None:
        """Return who asks; None: the request has no bearer token.

        :raises StatusError: 401, if it has one that is not good.
        """
        given = request.headers.get("authorization", ())
        if not given:
            return None
        kind, _, rest = given[0].strip().partition(" ")
        if kind.lower() != "bearer" or not rest:
            return None
        if len(given) > 1:
            raise unauthorized()
        # What follows another blank is ignored (apiserver: bearertoken).
        token = rest.partition(" ")[0]
        if not token:
            return None
        try:
            return self.review(token).user
        except InvalidToken:
            raise unauthorized() from None

    def review(self, token: str, audiences: Sequence[str] | None = None) -> TokenUser:
        """Return whose token it is.

        :param audiences: what it may be for; None: the API itself.
        :raises InvalidToken: if nobody's, with the reasons.
        """
        problems = []
        for tokens in self._tokens:
            try:
                if found := tokens.authenticate(token, audiences):
                    return found._replace(user=authenticated(found.user))
            except InvalidToken as error:
                problems.append(str(error))
        raise InvalidToken(", ".join(problems) or INVALID)


class UnixPeerAuthenticator:
    """By the user ID of the process that connected to the unix socket: root of this machine is its administrator."""

    def authenticate(self, request: Request) -> User | None:
        """Return who asks; None: the connection is no unix socket, or not root's."""
        credentials = request.peer.credentials
        if credentials is None or credentials.uid != 0:
            return None
        return authenticated(User(name=ADMIN, groups=(MASTERS,)))


class RestAuthenticator:
    """Everybody else, the last of several: refused, or, if ``anonymous``, let in as nobody."""

    def __init__(self, *, anonymous: bool) -> None:
        self._anonymous = anonymous

    def authenticate(self, request: Request) -> User:
        """Return nobody.

        :raises StatusError: 401, unless everybody may ask.
        """
        if not self._anonymous:
            raise unauthorized()
        return NOBODY


def everybody(bearer: BearerAuthenticator, *, anonymous: bool = False) -> AnyAuthenticator:
    """Return what tells who asks, by whatever they show; credentials that are wrong are never passed over."""
    rest = RestAuthenticator(anonymous=anonymous)
    return AnyAuthenticator([CertificateAuthenticator(), bearer, UnixPeerAuthenticator(), rest])
