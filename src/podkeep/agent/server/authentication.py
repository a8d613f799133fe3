"""Who asks the kubelet's endpoints: by a client certificate, or by a token that the API reviews.

Owns: the order, and for how long an answer of the API counts (``authentication.webhook.cacheTTL``). A token is kept as
its keyed digest only. Who shows nothing is nobody, and let in only if ``authentication.anonymous.enabled`` is set.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import structs

from podkeep.agent.server.ttl_cache import TtlCache
from podkeep.base.errors import PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.http.messages import Refused, Request

log = logging.getLogger(__name__)

AUTHENTICATED = "system:authenticated"
_NOT_REVIEWED = "a token cannot be reviewed: %s"
_MAX_TOKEN = 16 * 1024
_REVIEWS = 16
"""Tokens that the API is asked about at a time; others wait, so that strangers do not flood it."""

Review = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Creates a review with a ``spec`` and returns its ``status``."""


class User(FrozenStruct, kw_only=True):
    """Who asks (``authentication.k8s.io/v1`` ``UserInfo``)."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


NOBODY = User(name="system:anonymous", groups=("system:unauthenticated",))


class Unauthorized(Refused):
    """Nobody has shown who they are."""

    def __init__(self) -> None:
        super().__init__(401, "Unauthorized")


def certified(certificate: Mapping[str, Any] | None) -> User | None:
    """Return whose verified certificate this is: common name and organizations; None if it names nobody."""
    fields = [pair for part in (certificate or {}).get("subject", ()) for pair in part]
    names = [value for kind, value in fields if kind == "commonName"]
    if not names or not names[-1]:
        return None
    return _authenticated(
        User(name=names[-1], groups=tuple(text for kind, text in fields if kind == "organizationName"))
    )


def _authenticated(user: User) -> User:
    if user.name == NOBODY.name or AUTHENTICATED in user.groups:
        return user
    return structs.replace(user, groups=(*user.groups, AUTHENTICATED))


def reviewed(status: Mapping[str, Any]) -> User | None:
    """Return whose token it is by a ``TokenReviewStatus``; None if it is nobody's."""
    user = status.get("user")
    if status.get("authenticated") is not True or not isinstance(user, Mapping) or not user.get("username"):
        return None
    return _authenticated(
        User(
            name=str(user["username"]),
            uid=str(user.get("uid") or ""),
            groups=tuple(map(str, user.get("groups") or ())),
            extra={str(key): tuple(map(str, values)) for key, values in (user.get("extra") or {}).items()},
        )
    )


class Authenticator:
    """Tells who asks.

    :param review: has the API review a token; None: tokens are not taken.
    :param ttl: seconds for which its answer counts.
    :param anonymous: whether nobody may ask.
    """

    def __init__(self, review: Review | None, *, ttl: float, anonymous: bool) -> None:
        self._review, self._anonymous = review, anonymous
        self._cache: TtlCache[bytes, User | None] = TtlCache()
        self._ttl = ttl
        self._is_failing = False
        self._places = asyncio.Semaphore(_REVIEWS)
        # Digests in memory are of no use to who reads them elsewhere.
        self._key = os.urandom(32)

    async def authenticate(self, request: Request) -> User:
        """Return who asks.

        :raises Unauthorized: if they do not show it, or what they show is not good.
        """
        # TLS has verified it against the authority of the configuration already: without one there is no certificate
        # here.
        if user := certified(request.peer.certificate):
            return user
        token = bearer(request)
        if token and self._review is not None:
            user = await request.while_there(self._by_token(self._review, token))
            if user is None:
                raise Unauthorized
            return user
        if token or not self._anonymous:
            raise Unauthorized
        return NOBODY

    async def _by_token(self, review: Review, token: str) -> User | None:
        digest = hashlib.blake2b(token.encode(), key=self._key, digest_size=32).digest()
        if (found := self._cache.get(digest)) is not None:
            return found[0]
        async with self._places:
            if (found := self._cache.get(digest)) is not None:
                return found[0]
            try:
                user = reviewed(await review({"token": token}))
            except PodkeepError as error:
                # Not kept: the API may answer the next time, and who has no answer is not let in. Said once: strangers
                # may ask as often as they like.
                log.log(logging.DEBUG if self._is_failing else logging.WARNING, _NOT_REVIEWED, error.message)
                self._is_failing = True
                return None
            self._is_failing = False
            self._cache.put(digest, user, self._ttl)
            return user


def bearer(request: Request) -> str:
    """Return the token of ``Authorization: Bearer``; empty if there is none.

    :raises Unauthorized: if there are several such headers, or the token is longer than any.
    """
    given = request.headers.get("authorization", ())
    if not given:
        return ""
    kind, _, rest = given[0].strip().partition(" ")
    token = rest.strip()
    if kind.lower() != "bearer" or not token:
        return ""
    # Which of two headers counts is not defined, so none does; what cannot be a token is not sent to the API.
    if len(given) > 1 or len(token) > _MAX_TOKEN or not token.isascii():
        raise Unauthorized
    return token
