"""Tokens of service accounts: making them for ``TokenRequest``, and telling whose they are (``pkg/serviceaccount``).

A token is bound to its service account, and to a pod, secret or node if it was asked for so: it is good only while
these are there, which is looked up each time. That its signature is right is remembered for a while.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from podkeep.apiserver.auth import jwt
from podkeep.apiserver.auth.jwt import InvalidToken, SigningKey, VerificationKey
from podkeep.apiserver.auth.signed_tokens import SignedTokens, common_audiences
from podkeep.apiserver.auth.tokens import TokenUser
from podkeep.apiserver.auth.user import User, service_account_groups, service_account_name
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import metadata
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import rfc3339

# That of kube-apiserver (go-jose: DefaultLeeway).
LEEWAY_SECONDS = 60
"""By which the clocks of two machines may differ."""
_PREFIX = "authentication.kubernetes.io/"


class Ref(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object that a token is bound to."""

    name: str = ""
    uid: str = ""


class Bound(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The claim ``kubernetes.io``."""

    namespace: str
    node: Ref | None = None
    pod: Ref | None = None
    secret: Ref | None = None
    serviceaccount: Ref
    warnafter: int | None = None
    """From when on its use would be told, in seconds since 1970."""


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What a token says; times are seconds since 1970."""

    aud: list[str]
    exp: int
    iat: int
    iss: str
    jti: str
    bound: Bound = msgspec.field(name="kubernetes.io")
    nbf: int
    sub: str


_claims = msgspec.json.Decoder(Claims).decode


class Binding(FrozenStruct, kw_only=True):
    """What a token is made for: the objects, as they are stored. At most one of pod and secret."""

    account: Mapping[str, Any]
    pod: Mapping[str, Any] | None = None
    secret: Mapping[str, Any] | None = None
    node: Ref | None = None
    """Of a pod, the node that it is on."""


class ServiceAccountTokens:
    """Makes tokens and tells whose they are.

    :param issuer: what ``iss`` says.
    :param audiences: of the API itself; a token for none of those that are asked for is not taken.
    :param signing: the key of new tokens; ``verification``: other keys whose tokens are taken.
    """

    def __init__(
        self,
        issuer: str,
        audiences: Sequence[str],
        signing: SigningKey,
        lister: Lister,
        verification: Sequence[VerificationKey] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self.issuer = issuer
        self.audiences = tuple(audiences)
        self._signing = signing
        self._keys = {key.identifier: key for key in (signing.public, *verification)}
        self._lister = lister
        self._now = now
        self._signed = SignedTokens(issuer, _claims, self._keys)

    @property
    def keys(self) -> Sequence[VerificationKey]:
        """The keys whose tokens are taken."""
        return list(self._keys.values())

    def issue(self, binding: Binding, audiences: Sequence[str], seconds: int, warn_after: int = 0) -> str:
        """Return a new token.

        :param seconds: for how long it is good.
        :param warn_after: seconds after which its user should have got another; 0: none are meant.
        """
        now = int(self._now())
        fields = metadata(binding.account)
        claims = Claims(
            aud=list(audiences),
            exp=now + seconds,
            iat=now,
            iss=self.issuer,
            jti=str(uuid.uuid4()),
            bound=Bound(
                namespace=fields["namespace"],
                node=binding.node,
                pod=_ref(binding.pod),
                secret=_ref(binding.secret),
                serviceaccount=Ref(fields["name"], fields["uid"]),
                warnafter=now + warn_after if warn_after else None,
            ),
            nbf=now,
            sub=service_account_name(fields["namespace"], fields["name"]),
        )
        return jwt.encode(claims, self._signing)

    def authenticate(self, token: str, audiences: Sequence[str] | None = None) -> TokenUser | None:
        """Return whose token it is, and for which of the audiences; None: it is no token of this issuer.

        :param audiences: what it may be for; None: the API's own.
        :raises InvalidToken: if it is one that is not good (any more).
        """
        claims = self._signed.verify(token)
        if claims is None:
            return None
        common = common_audiences(claims.aud, self.audiences, audiences)
        now = self._now()
        if now - LEEWAY_SECONDS > claims.exp:
            raise InvalidToken("service account token has expired")
        if now + LEEWAY_SECONDS < claims.nbf:
            raise InvalidToken("service account token is not valid yet")
        if now + LEEWAY_SECONDS < claims.iat:
            raise InvalidToken("service account token is issued in the future")
        # `deletionTimestamp` is when the grace period ends: until then what shuts down may use its token.
        _check_bound(claims.bound, self._lister, now - LEEWAY_SECONDS)
        return TokenUser(_user(claims), common)


def _ref(value: Mapping[str, Any] | None) -> Ref | None:
    return None if value is None else Ref(metadata(value)["name"], metadata(value)["uid"])


def _check_bound(bound: Bound, lister: Lister, deleted_before: float) -> None:
    """Require that what a token is bound to is still there.

    :raises InvalidToken: if it is not, or is another object of the same name.
    """
    namespace, account = bound.namespace, bound.serviceaccount
    found = lister.get("serviceaccounts", namespace, account.name)
    if found is None:
        raise InvalidToken(f'serviceaccounts "{account.name}" not found')
    if metadata(found)["uid"] != account.uid:
        raise InvalidToken(f"service account UID ({metadata(found)['uid']}) does not match claim ({account.uid})")
    if _is_deleted(found, deleted_before):
        raise InvalidToken(f"service account {namespace}/{account.name} has been deleted")
    # The node of a pod is told, not required: the pod is what the token is bound to.
    node = bound.node if bound.pod is None else None
    for resource, kind, place, ref in (
        ("secrets", "secret", namespace, bound.secret),
        ("pods", "pod", namespace, bound.pod),
        ("nodes", "node", "", node),
    ):
        if ref is None:
            continue
        found = lister.get(resource, place, ref.name)
        if found is None:
            raise InvalidToken("service account token has been invalidated")
        if metadata(found)["uid"] != ref.uid:
            raise InvalidToken(
                f"{kind} UID ({metadata(found)['uid']}) does not match service account {kind} ref claim ({ref.uid})"
            )
        if _is_deleted(found, deleted_before):
            raise InvalidToken("service account token has been invalidated")


def _is_deleted(value: Mapping[str, Any], before: float) -> bool:
    deleted = metadata(value).get("deletionTimestamp", "")
    return bool(deleted) and rfc3339.seconds(deleted) < before


def _user(claims: Claims) -> User:
    bound = claims.bound
    extra: dict[str, tuple[str, ...]] = {f"{_PREFIX}credential-id": (f"JTI={claims.jti}",)}
    for kind, ref in (("pod", bound.pod), ("node", bound.node)):
        if ref is not None:
            extra[f"{_PREFIX}{kind}-name"] = (ref.name,)
            if ref.uid:
                extra[f"{_PREFIX}{kind}-uid"] = (ref.uid,)
    return User(
        name=service_account_name(bound.namespace, bound.serviceaccount.name),
        uid=bound.serviceaccount.uid,
        groups=service_account_groups(bound.namespace),
        extra=extra,
    )
