"""Logging in to one registry: from challenges and credentials to the ``Authorization`` header.

Basic, and docker's token authentication (distribution, "Token Authentication Implementation", and the OAuth 2 form of
it). Owns the token in use, its renewal and the order in which credentials are tried; shared by the threads of a pull.
No text made here holds a secret.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from podkeep.base.errors import FailedPrecondition, InvalidArgument, PermissionDenied, PodkeepError, RegistryUnavailable
from podkeep.base.registries.docker_config import Credentials, decode_auth
from podkeep.base.text.redaction import remember
from podkeep.images.formats.image import RegistryAuth
from podkeep.images.registry.challenges import Challenge, usable
from podkeep.images.registry.client import Client, Url, parse_url
from podkeep.images.registry.http1 import TransferError
from podkeep.images.registry.retry import LATER, RetryPolicy

if TYPE_CHECKING:
    from podkeep.images.registry.http1 import Answer

_CLIENT_ID = "podkeep"
_MAX_TOKEN_BYTES = 1 << 20
_NO_CREDENTIALS = (
    "give the pod an image pull secret, or the node images.docker_config; or use `podkeep image pull --creds`;"
    " `podkeep artifact` has those of `podman login` and `docker login`"
)
_SENDABLE = re.compile(r"[!-~]{1,32768}")


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What a request was sent with; ``number`` tells grants apart."""

    header: str = field(repr=False)
    number: int


class Authorizer:
    """The login at one registry.

    :param who: the registry and repository, for messages.
    :param scope: what tokens are asked for, as ``repository:team/app:pull``.
    :param credentials: tried in order; none: tokens are asked for without.
    :param retry: how often a token server is asked that says "later".
    """

    def __init__(
        self, who: str, scope: str, credentials: Sequence[Credentials], client: Client, retry: RetryPolicy
    ) -> None:
        self._who = who
        self._scope = scope
        self._credentials = tuple(credentials) or (Credentials(),)
        # Before any request: what is remembered is cut out of errors and of the log.
        for item in self._credentials:
            remember(item.password, item.identity_token, item.registry_token)
        self._client = client
        self._retry = retry
        self._lock = threading.Lock()
        self._grant = Grant(header="", number=0)
        self._accepted = False
        self._way = -1
        self._challenges: list[Challenge] = []
        self._said: PodkeepError | None = None
        self.most = 2 * len(self._credentials) + 3
        """Renewals that one request may want; more of them lead nowhere."""

    @property
    def hint(self) -> str:
        """What to do about a login that is refused."""
        return "check the credentials" if self._credentials != (Credentials(),) else _NO_CREDENTIALS

    def current(self) -> Grant:
        """Return what to send now."""
        return self._grant

    def accept(self, grant: Grant) -> None:
        """Note that the registry took a grant: when it is refused later, it has run out."""
        with self._lock:
            if grant.number == self._grant.number:
                self._accepted = True

    def renew(self, grant: Grant, challenges: Sequence[Challenge], registry: Url) -> bool:
        """Get another grant after one was refused; return whether there is one to try.

        Each way to log in is tried once, and again once it had worked: this ends.

        :raises PermissionDenied: if there are no credentials, or a token server refuses them.
        :raises RegistryUnavailable: if a token server does not answer.
        :raises FailedPrecondition: if the registry asks for what podkeep cannot do or refuses to do.
        """
        with self._lock:
            if grant.number != self._grant.number:
                return True  # another thread was faster
            if challenges:
                self._challenges = usable(challenges)
                if not self._challenges:
                    names = ", ".join(sorted({item.scheme[:20] for item in challenges}))
                    raise FailedPrecondition(f"{self._who}: the registry asks for a login of an unknown kind: {names}")
            ways = [(who, how) for who in self._credentials for how in self._challenges]
            # Without a login, too, a request may have been accepted before.
            start = max(self._way, 0) if self._accepted else self._way + 1
            for way in range(start, len(ways)):
                try:
                    header = self._answer(*ways[way], registry)
                except PermissionDenied as error:
                    self._way, self._accepted, self._said = way, False, error
                    continue
                # Not before: a token server that is down now may serve the next one who asks.
                self._way, self._accepted, self._said = way, False, None
                self._grant = Grant(header=header, number=self._grant.number + 1)
                return True
            if self._said is not None:
                raise self._said
            return False

    def _answer(self, who: Credentials, how: Challenge, registry: Url) -> str:
        # A token of the caller's own goes as it is: the registry's challenge has no say in it.
        if who.registry_token:
            return f"Bearer {_sendable(who.registry_token, 'registry token')}"
        if how.scheme == "bearer":
            return f"Bearer {self._token(who, how.parameters, registry)}"
        if basic := _basic(who):
            return basic
        raise PermissionDenied(f"{self._who}: the registry asks for credentials", hint=self.hint)

    def _token(self, who: Credentials, fields: Mapping[str, str], registry: Url) -> str:
        try:
            realm = parse_url(fields.get("realm", ""))
        except FailedPrecondition as error:
            raise FailedPrecondition(f"{self._who}: the realm of its tokens is refused: {error.message}") from error
        # A registry chooses its realm: over plain HTTP the password would be read on the way.
        if realm.scheme != "https" and registry.scheme == "https":
            raise FailedPrecondition(
                f"{self._who}: the registry speaks TLS and sends credentials to {realm}, which is refused"
            )
        # A cache may know the repository under another name than it is asked for.
        scopes = dict.fromkeys([self._scope, *fields.get("scope", "").split()[:8]])
        query = ([("service", fields["service"])] if fields.get("service") else []) + [("scope", " ".join(scopes))]
        try:
            attempt = 1
            while self._retry.wait(answer := self._asked(who, realm, query), attempt, f"a token of {realm}"):
                attempt += 1
            if answer.status >= 500 or answer.status in LATER:
                raise self._down(f"its token server {realm} answered {answer.status}")
            if answer.status != 200:
                raise PermissionDenied(f"{self._who}: {realm} refuses a token ({answer.status})", hint=self.hint)
            return _token_in(answer, realm, self._who)
        except TransferError as error:
            raise self._down(f"its token server {realm} does not answer: {error}", hint=error.hint) from error

    def _asked(self, who: Credentials, realm: Url, query: Sequence[tuple[str, str]]) -> Answer:
        if who.identity_token:
            form = [
                *query,
                ("grant_type", "refresh_token"),
                ("refresh_token", who.identity_token),
                ("client_id", _CLIENT_ID),
            ]
            content = {"Content-Type": "application/x-www-form-urlencoded"}
            return self._client.send("POST", realm, content, body=urlencode(form).encode())
        separate = [(name, value) for name, value in query if name != "scope"]
        separate += [("scope", scope) for name, value in query if name == "scope" for scope in value.split()]
        target = f"{realm.target}{'&' if '?' in realm.target else '?'}{urlencode(separate)}"
        url = Url(scheme=realm.scheme, host=realm.host, port=realm.port, target=target)
        return self._client.follow("GET", url, {}, authorization=_basic(who))

    def _down(self, why: str, *, hint: str = "") -> RegistryUnavailable:
        return RegistryUnavailable(f"RegistryUnavailable: {self._who.partition('/')[0]}: {why}", hint=hint)


def credentials_of(auth: RegistryAuth) -> Credentials:
    """Return credentials of a request, ``auth`` taken apart.

    :raises InvalidArgument: if ``auth`` is not what it should be.
    """
    username, password, token = auth.username, auth.password, auth.identity_token
    if not (username or password) and auth.auth:
        username, password = decode_auth("the credentials of the pull", auth.auth)
    if username == "<token>":  # how docker's credential helpers mark one
        username, password, token = "", "", password
    return Credentials(username=username, password=password, identity_token=token, registry_token=auth.registry_token)


def _basic(who: Credentials) -> str:
    if not (who.username or who.password):
        return ""
    return f"Basic {base64.b64encode(f'{who.username}:{who.password}'.encode()).decode()}"


def _token_in(answer: Answer, realm: Url, who: str) -> str:
    data = b""
    while len(data) <= _MAX_TOKEN_BYTES and (piece := answer.piece()):
        data += piece
    answer.close()
    try:
        fields = json.loads(data[:_MAX_TOKEN_BYTES])
        token = fields.get("token") or fields["access_token"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        # Not "from": the text of a JSON error quotes what may be half a token.
        raise FailedPrecondition(f"{who}: its token server {realm} answered without a token") from None
    if not isinstance(token, str):
        token = ""
    remember(token)
    return _sendable(token, f"token of {realm}")


def _sendable(text: str, what: str) -> str:
    """Return a text that goes into a header as it is.

    :raises InvalidArgument: if it would end the header, or is no text for one.
    """
    if not _SENDABLE.fullmatch(text):
        raise InvalidArgument(f"the {what} has characters that no header can have, or is too long")
    return text
