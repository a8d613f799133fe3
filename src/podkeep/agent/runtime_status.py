"""What the runtime said of itself (CRI: Status): asked for once, and not for each pod.

Owns the last answer and its age. Does not own what follows from it: which pods it can run (``pod/admission.py``),
classes (``resources/class_resources.py``), what the Node says (``node_status/runtime_state.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Literal

import msgspec

from podkeep.agent.resources import class_messages
from podkeep.agent.resources.class_resources import Offers
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

MAX_AGE_S = 10.0
"""Seconds for which an answer is good enough, as long as the connection holds; a kubelet's is as old."""

Feature = Literal["recursive_read_only_mounts", "user_namespaces"]
"""A field of CRI's RuntimeHandlerFeatures."""

_NETWORK = "NetworkReady"
_READY = {"RuntimeReady": "container runtime not ready", _NETWORK: "container runtime network not ready"}
_MAX_TEXT = 4096
"""Characters of a reason or a message."""
_UNREADY_S = 1.0
"""Seconds for which it counts that a network is not ready: pods wait for it."""
_MAPPED = frozenset({"", "idmapped"})
"""``rootfs.variant`` of podkeep's runtime where no image is copied for the owners of a pod; empty: it has none."""


class _Rootfs(msgspec.Struct, frozen=True):
    """What podkeep's runtime says of root file systems in a verbose Status."""

    variant: str = ""


class RuntimeStatus:
    """The last answer of one runtime."""

    def __init__(self, client: CriClient) -> None:
        self._client = client
        self._last = api_pb2.StatusResponse()
        self._offers = Offers()
        self._until = self._asked = 0.0
        self._lost = client.lost
        self._asking = asyncio.Lock()
        self.copies_owners = False
        """Whether it copies images, or their inodes, for the owners of a pod; only podkeep's says so."""

    async def read(self, *, fresh: bool = False, timeout: float | None = None) -> api_pb2.StatusResponse:
        """Return the runtime's status.

        :param fresh: ask for it in any case.
        :param timeout: seconds; ``None``: as long as any call may take.
        :raises PodkeepError: if it does not answer.
        """
        if fresh:
            return await self._ask(timeout)
        # Pods that come at once share one answer.
        async with self._asking:
            if time.monotonic() >= self._until or self._lost != self._client.lost:
                return await self._ask(timeout)
        return self._last

    async def offers(self, *, fresh: bool = False) -> Offers:
        """Return which classes it offers.

        :param fresh: ask it in any case: a class may have come with a reload a moment ago.
        :raises PodkeepError: if it does not answer.
        """
        await self.read(fresh=fresh)
        return self._offers

    async def supports(self, handler: str, feature: Feature, *, fresh: bool = False) -> bool:
        """Say whether ``handler`` has ``feature``. What it lacks is asked for once more: it may have come since.

        :param fresh: ask in any case.
        :raises PodkeepError: if the runtime does not answer.
        """
        if not fresh and _has(await self.read(), handler, feature):
            return True
        return _has(await self.read(fresh=True), handler, feature)

    async def network_problem(self) -> str:
        """Return why pods have no network now, in a kubelet's words; empty: they have, as far as the runtime says.

        :raises PodkeepError: if the runtime does not answer.
        """
        if not _lacks_network(await self.read()):
            return ""
        async with self._asking:
            answer = self._last if time.monotonic() < self._asked + _UNREADY_S else await self._ask(None)
        return not_ready(answer)[_NETWORK] if _lacks_network(answer) else ""

    def immutable(self) -> Mapping[Literal["pod", "container"], frozenset[str]]:
        """Return the types whose class cannot be changed, as the last answer had them."""
        return {
            "pod": frozenset(name for name, offer in self._offers.pod.items() if offer.immutable),
            "container": frozenset(name for name, offer in self._offers.container.items() if offer.immutable),
        }

    def keep(self, answer: api_pb2.StatusResponse, *, lost: int) -> None:
        """Note an answer: one of a runtime that came back may be that of another runtime.

        :param lost: ``CriClient.lost`` before it was asked for: it may be the last of a runtime that has ended since.
        """
        self._last, self._offers = answer, class_messages.offers(answer)
        self._asked, self._lost = time.monotonic(), lost
        self._until = self._asked + MAX_AGE_S
        if answer.info:
            self.copies_owners = _variant(answer.info.get("rootfs", "{}")) not in _MAPPED

    async def _ask(self, timeout: float | None) -> api_pb2.StatusResponse:
        lost = self._client.lost
        answer: api_pb2.StatusResponse = await self._client.runtime.Status(api_pb2.StatusRequest(), timeout=timeout)
        self.keep(answer, lost=lost)
        return answer


def _lacks_network(answer: api_pb2.StatusResponse) -> bool:
    return any(item.type == _NETWORK and not item.status for item in answer.status.conditions)


def not_ready(answer: api_pb2.StatusResponse) -> dict[str, str]:
    """Return what is not ready of a runtime, by the condition that says it, in a kubelet's words."""
    known = {condition.type: condition for condition in answer.status.conditions}
    found = {}
    for kind, words in _READY.items():
        condition = known.get(kind)
        if condition is None:
            found[kind] = f"{words}: network state unknown" if kind == _NETWORK else f"{words}: condition not set"
        elif not condition.status:
            reason, message = condition.reason[:_MAX_TEXT], condition.message[:_MAX_TEXT]
            found[kind] = f"{words}: {kind}=false reason:{reason} message:{message}"
    return found


def _has(answer: api_pb2.StatusResponse, handler: str, feature: Feature) -> bool:
    return any(known.name == handler and getattr(known.features, feature) for known in answer.runtime_handlers)


def _variant(rootfs: str) -> str:
    try:
        return msgspec.json.decode(rootfs, type=_Rootfs).variant
    except msgspec.MsgspecError:
        return ""  # another runtime's
