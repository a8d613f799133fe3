"""Who may ask for what of the kubelet's endpoints: subresources of the Node; the API decides (kubelet: ``auth.go``)."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from podkeep.agent.server.authentication import Review, User
from podkeep.agent.server.ttl_cache import TtlCache
from podkeep.base.errors import PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.http.messages import Refused

log = logging.getLogger(__name__)

Mode = Literal["Webhook", "AlwaysAllow"]
_NOT_REVIEWED = "an access cannot be reviewed: %s"
_REVIEWS = 16
_VERBS = {"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_FINE = (("/pods", "pods"), ("/healthz", "healthz"), ("/configz", "configz"), ("/runningpods", "pods"))
"""Paths whose own subresource is tried before ``proxy`` (KEP-2862)."""
_OWN = (
    ("/stats", "stats"),
    ("/metrics", "metrics"),
    ("/logs", "log"),
    ("/checkpoint", "checkpoint"),
    ("/statusz", "statusz"),
    ("/flagz", "configz"),
)
"""Paths that have a subresource instead of ``proxy``."""
_RUNS = ("/exec", "/attach", "/portForward", "/run")
"""Paths that need ``create`` with any method: WebSockets ask with GET, and reading is not running commands."""


class Wanted(FrozenStruct, kw_only=True):
    """What a request is for: a verb on any of these subresources of the node will do."""

    verb: str
    subresources: tuple[str, ...]


def wanted(method: str, path: str) -> Wanted:
    """Return what a request for ``path`` needs; of a method that is none of the API's the verb is empty."""

    def below(place: str) -> bool:
        return path == place or path.startswith(f"{place}/")

    fine = tuple(name for place, name in _FINE if below(place))
    own = next((name for place, name in _OWN if below(place)), "proxy")
    verb = _VERBS.get(method, "")
    if verb and any(map(below, _RUNS)):
        verb = "create"
    return Wanted(verb=verb, subresources=(*fine[:1], own))


class _Question(FrozenStruct, kw_only=True):
    user: str
    uid: str
    groups: tuple[str, ...]
    extra: tuple[tuple[str, tuple[str, ...]], ...]
    verb: str
    subresource: str


class Authorizer:
    """Asks the API, and remembers its answers for a while.

    :param review: has the API review an access; None: nobody may do anything.
    :param allowed_ttl: seconds for which a yes counts; ``denied_ttl``: a no.
    """

    def __init__(self, node: str, mode: Mode, review: Review | None, *, allowed_ttl: float, denied_ttl: float) -> None:
        self._node, self._mode, self._review = node, mode, review
        self._allowed_ttl, self._denied_ttl = allowed_ttl, denied_ttl
        self._cache: TtlCache[_Question, bool] = TtlCache()
        self._places = asyncio.Semaphore(_REVIEWS)
        self._is_failing = False

    async def check(self, user: User, want: Wanted) -> None:
        """Return if a user may do that.

        :raises Refused: 403, if not; 500, if the API does not say.
        """
        if self._mode == "AlwaysAllow":
            return
        for subresource in want.subresources:
            if await self._allows(user, want.verb, subresource):
                return
        places = " ".join(want.subresources)
        raise Refused(
            403, f"Forbidden (user={user.name}, verb={want.verb}, resource=nodes, subresource(s)=[{places}])\n"
        )

    async def _allows(self, user: User, verb: str, subresource: str) -> bool:
        question = _Question(
            user=user.name,
            uid=user.uid,
            groups=user.groups,
            extra=tuple(sorted(user.extra.items())),
            verb=verb,
            subresource=subresource,
        )
        if (found := self._cache.get(question)) is not None:
            return found[0]
        if self._review is None:
            return False
        try:
            async with self._places:
                status = await self._review(_spec(question, self._node))
        except PodkeepError as error:
            # Said once: users may ask as often as they like.
            log.log(logging.DEBUG if self._is_failing else logging.WARNING, _NOT_REVIEWED, error.message)
            self._is_failing = True
            what = f"user={user.name}, verb={verb}, resource=nodes, subresource={subresource}"
            raise Refused(500, f"Authorization error ({what})") from error
        self._is_failing = False
        # Fail closed: anything but a clear yes is a no.
        allowed = status.get("allowed") is True and status.get("denied") is not True
        self._cache.put(question, allowed, self._allowed_ttl if allowed else self._denied_ttl)
        return allowed


def _spec(question: _Question, node: str) -> dict[str, object]:
    return {
        "user": question.user,
        "uid": question.uid,
        "groups": list(question.groups),
        "extra": {key: list(values) for key, values in question.extra},
        "resourceAttributes": {
            "verb": question.verb,
            "version": "v1",
            "resource": "nodes",
            "subresource": question.subresource,
            "name": node,
        },
    }
