"""What pods with a limit of local storage use: counted while the manager goes on, each pod in its own time.

Owns: whose files are counted when. A pod's next count is the later the longer its last one took, so that it keeps the
disk busy for a bounded share of the time, and the others are not looked at less often for it. With many pods each has a
smaller share, or all together would take a processor. One that takes longer than a turn is counted apart and to its
end: in a turn it would hide whatever a walk comes to last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from podkeep.agent.eviction.statistics import Statistics
from podkeep.agent.eviction.usage import PodUse
from podkeep.api.pod import Pod

TURN_S = 1.0
"""How long the files of a pod are counted while others wait."""
WAIT_S = 1.0
"""How long counts are waited for: pods have them take long, and memory cannot wait."""
_SHARE = 50
"""The files of a pod are counted for at most one part in so many of the time."""
_WITH_SHARE = 5
"""So many pods have that share. Of more each has less: those that take long together a tenth, and so do the others."""


class LocalStorage:
    """The counts of one node's pods, on the event loop."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._due: dict[str, float] = {}
        self._large: set[str] = set()
        self._counting: dict[bool, asyncio.Future[Mapping[str, PodUse]]] = {}
        """What is being counted: of those that take long one at a time (True), and of the others."""

    async def uses(self, limited: Sequence[Pod]) -> Mapping[str, PodUse]:
        """Return what was counted of these pods since the last call, by UID, after waiting for it a little.

        :raises PodkeepError: if the runtime does not answer.
        """
        uids = {pod.metadata.uid for pod in limited}
        self._due = {uid: due for uid, due in self._due.items() if uid in uids}
        self._large &= uids
        for large in (False, True):
            chosen = [] if large in self._counting else self._chosen(limited, large=large)
            if chosen:
                alike = len(self._large) if large else len(uids) - len(self._large)
                share = _SHARE * max(alike, _WITH_SHARE) / _WITH_SHARE
                self._counting[large] = asyncio.ensure_future(self._count(chosen, large=large, share=share))
        if not self._counting:
            return {}
        await asyncio.wait(self._counting.values(), timeout=WAIT_S)
        found: dict[str, PodUse] = {}
        for large, count in list(self._counting.items()):
            if count.done():
                del self._counting[large]
                found |= count.result()
        return found

    def _chosen(self, limited: Sequence[Pod], *, large: bool) -> list[Pod]:
        now = time.monotonic()
        due = [
            pod
            for pod in limited
            if (pod.metadata.uid in self._large) == large and self._due.get(pod.metadata.uid, 0.0) <= now
        ]
        # The one that has waited longest: none of them keeps another from being counted for good.
        return sorted(due, key=lambda pod: self._due.get(pod.metadata.uid, 0.0))[:1] if large else due

    async def _count(self, pods: Sequence[Pod], *, large: bool, share: float) -> Mapping[str, PodUse]:
        uses = await self._statistics.pods(pods, turn=None if large else TURN_S)
        now = time.monotonic()
        for uid, use in uses.items():
            self._due[uid] = now if use.partly else now + use.seconds * share
            if use.partly or use.seconds > TURN_S:
                self._large.add(uid)
            else:
                self._large.discard(uid)
        return uses

    async def close(self) -> None:
        """Let go of what is being counted: threads, which a cancellation does not end, hear of it by the statistics."""
        for count in self._counting.values():
            count.cancel()
        await asyncio.gather(*self._counting.values(), return_exceptions=True)
