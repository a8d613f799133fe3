"""Node pressure: looks how much is left, reports conditions, and ends pods one at a time when it is too little.

                ┌───────── every 10 s, and once a pod that was ended is cleaned up ─────┐
                ▼                                                                        │
    observe ──▶ conditions ──▶ local storage: pods beyond their own limits are ended ────┤
                                   ▼                                                     │
                     a threshold is due: ended containers and unused images go ──────────┤
                                   ▼ not enough                                          │
                     the pod that uses most beyond its request is ended ─────────────────┘

What takes as long as pods have it take, counting files and freeing a disk, goes on beside the loop: memory and process
IDs are looked at meanwhile.

Owns the loop and what it remembers. Decisions are in ``pressure`` and ``ranking``, figures come from ``statistics``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from podkeep.agent.eviction import pressure, ranking
from podkeep.agent.eviction.ending import Ending
from podkeep.agent.eviction.local_storage import LocalStorage
from podkeep.agent.eviction.pressure import Pressure
from podkeep.agent.eviction.ranking import Filesystems
from podkeep.agent.eviction.statistics import Statistics
from podkeep.agent.eviction.usage import PodUse
from podkeep.agent.metrics import EVICTIONS
from podkeep.agent.resources import critical, thresholds
from podkeep.agent.resources import thresholds as signals
from podkeep.agent.resources.thresholds import Observations, Threshold
from podkeep.api.pod import Pod
from podkeep.base.config import AgentConfig
from podkeep.base.errors import PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.metrics import Metrics

log = logging.getLogger(__name__)

INTERVAL_S = 10.0
"""Between two looks, as a kubelet has it (housekeeping interval)."""
_FREEING_S = 1.0
"""How long room on a disk is waited for at each look."""
_LEAST_WAIT_S = 10.0
"""How long the end of an evicted pod is waited for beyond its grace period, at least."""
_CLEANUP_S = 30.0
"""How long is waited until an evicted pod has given back its volumes, as with a kubelet (podCleanupTimeout)."""
_NOT_ENDED = "Container runtime did not kill the pod within specified grace period."
_AT_ONCE_S = 1
"""Grace period of a pod that is ended because of a hard threshold, or beyond its own limits."""


class Pods(Protocol):
    """The pods of the node (``agent/manager``)."""

    def active(self) -> Sequence[Pod]:
        """Return the pods that are taken on and have not ended, with the resources that they were granted."""
        ...

    async def end(self, pod: Pod, ending: Ending) -> None:
        """End a pod, and return when its containers have ended; nothing happens if it is gone."""
        ...

    async def settled(self, pod: Pod) -> None:
        """Return when a pod that was ended has given back its volumes."""
        ...


class Events(Protocol):
    """Where events go."""

    def node(self, kind: str, reason: str, message: str) -> None:
        """Report an event of the node; ``kind`` is Normal or Warning."""

    def pod(self, pod: Pod, kind: str, reason: str, message: str, annotations: dict[str, str] | None = None) -> None:
        """Report an event of a pod."""


class Freed(FrozenStruct, kw_only=True):
    """What became of a disk that was full: whether there is enough room now, and what pods use if there is not.

    ``pods``: UIDs of those that there were when the count began.
    """

    enough: bool
    uses: Mapping[str, PodUse] = msgspec.field(default_factory=dict)
    pods: frozenset[str] = frozenset()


Reclaim = Callable[[], Awaitable[object]]
"""Removes from a disk what is not used: ended containers, or images."""


class EvictionManager:
    """Keeps the node from running out of memory, disk and processes.

    :param containers: removes containers that have ended.
    :param images: removes images that nothing uses.
    :raises InvalidArgument: if a threshold of the configuration cannot be read.
    """

    def __init__(
        self,
        *,
        agent: AgentConfig,
        statistics: Statistics,
        pods: Pods,
        events: Events,
        containers: Reclaim,
        images: Reclaim,
        metrics: Metrics,
    ) -> None:
        self._agent = agent
        self._statistics = statistics
        self._pods = pods
        self._events = events
        self._containers = containers
        self._images = images
        self._metrics = metrics
        self._given = thresholds.read(agent)
        self._thresholds: tuple[Threshold, ...] | None = None
        self._filesystems = Filesystems()
        self._pressure = Pressure()
        self._storage = LocalStorage(statistics)
        self._waits = False
        self._late: set[str] = set()
        """UIDs of pods that were evicted and have not ended in time."""
        self._freeing: asyncio.Future[Freed] | None = None
        self._freeing_for = ""
        """The signal for which that began."""
        self._freeing_in_vain = False
        """Whether its disk was not full at some time since that began: what it says then is of the time before."""
        self.changed = asyncio.Event()
        """Set whenever the conditions change; who waits for it clears it."""

    @property
    def conditions(self) -> Sequence[str]:
        """The conditions of pressure that the node reports, in upstream's order."""
        return self._pressure.conditions

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        if not self._given and not self._agent.local_storage_capacity_isolation:
            return
        try:
            while True:
                ended = []
                try:
                    ended = await self.look()
                except (PodkeepError, OSError) as error:
                    log.warning("eviction manager: %s", error)
                except Exception:  # the supervisor of its task: one error must not leave the node without evictions
                    log.exception("the eviction manager failed unexpectedly")
                if not ended:
                    await asyncio.sleep(INTERVAL_S)
                    continue
                # What its volumes held, in memory too, is free only then: looking before that would end the next pod.
                cleanups = asyncio.gather(*(self._pods.settled(pod) for pod in ended))
                with suppress(TimeoutError):
                    await asyncio.wait_for(cleanups, _CLEANUP_S)
        finally:
            self._statistics.close()
            await self._storage.close()
            if self._freeing is not None:
                # A count is on a thread, which a cancellation does not end: Statistics.close has told it to stop.
                self._freeing.cancel()
                await asyncio.gather(self._freeing, return_exceptions=True)

    async def look(self) -> list[Pod]:
        """Look once, do what there is to do, and return the pods that were ended.

        :raises PodkeepError: if the runtime does not answer.
        """
        known = await self._of_this_node()
        self._late &= {pod.metadata.uid for pod in self._pods.active()}
        observed = await self._statistics.observe()
        before = self._pressure
        self._pressure = pressure.advance(
            before,
            known,
            observed,
            now=time.monotonic(),
            transition=self._agent.eviction_pressure_transition_period,
        )
        if self._pressure.conditions != before.conditions:
            self.changed.set()
        if not any(map(self._is_being_freed, self._pressure.due)):
            self._freeing_in_vain = True
        # In turns: with pods that always exceed their limits, nothing else would ever be reclaimed.
        ended = [] if self._waits and self._pressure.due else await self._beyond_their_limits()
        self._waits = bool(ended)
        # One reason at a time: what was just ended may have been enough, and the next look tells.
        if ended or not self._pressure.due:
            return ended
        return await self._reclaim(self._pressure.due, observed)

    async def _of_this_node(self) -> tuple[Threshold, ...]:
        if self._thresholds is None:
            self._filesystems = await self._statistics.filesystems()
            self._thresholds = thresholds.for_filesystems(
                self._given,
                images_apart=self._filesystems.images_apart,
                layers_apart=self._filesystems.layers_apart,
            )
        return self._thresholds

    # ------------------------------------------------------------------------------------------------ local storage

    async def _beyond_their_limits(self) -> list[Pod]:
        """End the pods that use more local storage than they may."""
        if not self._agent.local_storage_capacity_isolation:
            return []
        limited = [
            pod for pod in self._pods.active() if ranking.limits_storage(pod) and pod.metadata.uid not in self._late
        ]
        uses = await self._storage.uses(limited)
        ended = []
        for pod in limited:
            use = uses.get(pod.metadata.uid)
            found = None if use is None else ranking.violation(pod, use, self._filesystems)
            if found is not None and await self._evict(
                pod, Ending(reason=ranking.REASON, message=found.message, grace=_AT_ONCE_S), found.signal, {}
            ):
                ended.append(pod)
        return ended

    # ------------------------------------------------------------------------------------------------ node pressure

    async def _reclaim(self, due: Sequence[Threshold], observed: Observations) -> list[Pod]:
        threshold = self._first(due)
        if threshold is None:
            return []
        resource = signals.RESOURCES[threshold.signal]
        if _is_of_disk(threshold):
            freed = await self._freed(threshold.signal)
            if freed is None:
                # What else is due cannot wait for it.
                return await self._reclaim([item for item in due if not _is_of_disk(item)], observed)
            if freed.enough:
                log.info("eviction manager: enough %s was reclaimed without ending a pod", resource)
                return []
            # One that came later did not fill it, and would go first as one of which nothing is known.
            uses, active = freed.uses, [pod for pod in self._pods.active() if pod.metadata.uid in freed.pods]
        else:
            self._tell(threshold.signal)
            active = list(self._pods.active())
            # Files are not counted where nothing depends on them: memory is gone before they are.
            uses = await self._statistics.to_rank(active, files=False)
        order = ranking.rank(threshold.signal, active, lambda pod: uses.get(pod.metadata.uid), self._filesystems)
        # Those that are being ended already come last: one that hangs would be chosen again at each look.
        for pod in sorted(order, key=lambda pod: pod.metadata.uid in self._late):
            use = uses.get(pod.metadata.uid)
            text, annotations = ranking.message(resource, pod, use, due, observed)
            ending = Ending(reason=ranking.REASON, message=text, grace=self._grace(threshold, pod), disruption=text)
            if await self._evict(pod, ending, threshold.signal, annotations):
                return [pod]
        log.error("eviction manager: %s is low, and no pod can be evicted", threshold.signal)
        return []

    def _first(self, due: Sequence[Threshold]) -> Threshold | None:
        """Return the threshold to look after; of two full disks the one that was begun with: of the other one nothing
        has been removed yet."""
        threshold = ranking.first(due)
        if threshold is None or not _is_of_disk(threshold):
            return threshold
        return next(filter(self._is_being_freed, due), threshold)

    def _tell(self, signal: str) -> None:
        resource = signals.RESOURCES[signal]
        log.warning("eviction manager: %s is low, attempting to reclaim %s", signal, resource)
        self._events.node("Warning", "EvictionThresholdMet", f"Attempting to reclaim {resource}")

    async def _freed(self, signal: str) -> Freed | None:
        """Return what became of the disk of a signal; nothing while it is being freed, or pods are being counted."""
        if self._freeing is not None and self._freeing.done() and self._freeing_in_vain:
            self._freeing.exception()  # of a time that is over
            self._freeing = None
        if self._freeing is None:
            self._tell(signal)
            self._freeing_for, self._freeing_in_vain = signal, False
            self._freeing = asyncio.ensure_future(self._free(signal))
        await asyncio.wait({self._freeing}, timeout=_FREEING_S)
        if not self._freeing.done() or self._freeing_in_vain:
            return None
        done, self._freeing = self._freeing, None
        return done.result()

    def _is_being_freed(self, threshold: Threshold) -> bool:
        """Return whether what is being freed, or has been, is the disk of a threshold."""
        if self._freeing is None or not _is_of_disk(threshold):
            return False
        return self._functions(threshold.signal) == self._functions(self._freeing_for)

    async def _free(self, signal: str) -> Freed:
        if await self._reclaim_of_node(signal):
            return Freed(enough=True)
        active = list(self._pods.active())
        # Counted anew: by what was known before the disk filled, an innocent pod would go.
        uses = await self._statistics.to_rank(active, files=True)
        return Freed(enough=False, uses=uses, pods=frozenset(pod.metadata.uid for pod in active))

    async def _reclaim_of_node(self, signal: str) -> bool:
        """Remove what is not used from the disk of a signal; return whether that was enough."""
        functions = self._functions(signal)
        if not functions:
            return False
        for function in functions:
            try:
                await function()
            except PodkeepError as error:
                log.warning("eviction manager: %s", error)
        observed = await self._statistics.observe()
        return not thresholds.met(self._thresholds or (), observed, with_reclaim=True)

    def _functions(self, signal: str) -> list[Reclaim]:
        both = [self._containers, self._images]
        if not self._filesystems.images_apart:
            return both
        if self._filesystems.layers_apart:
            return [self._images] if signal in (signals.IMAGEFS, signals.IMAGEFS_INODES) else [self._containers]
        return [] if signal in (signals.NODEFS, signals.NODEFS_INODES) else both

    def _grace(self, threshold: Threshold, pod: Pod) -> int:
        if threshold.is_hard:
            return _AT_ONCE_S
        most, own = self._agent.eviction_max_pod_grace_period, pod.spec.termination_grace_period_seconds
        return most if own is None else min(most, own)

    async def _evict(self, pod: Pod, ending: Ending, signal: str, annotations: dict[str, str]) -> bool:
        """End a pod, and return whether it may be ended at all."""
        if critical.is_critical(pod):
            log.warning("eviction manager: cannot evict critical pod %s/%s", pod.metadata.namespace, pod.metadata.name)
            return False
        self._events.pod(pod, "Warning", ranking.REASON, ending.message, annotations or None)
        log.warning("evicting pod %s/%s: %s", pod.metadata.namespace, pod.metadata.name, ending.message)
        grace = ending.grace_of(pod)
        try:
            # As long as a kubelet waits (killPodNow): what hangs must not keep other pods from being evicted.
            await asyncio.wait_for(self._pods.end(pod, ending), grace + max(grace / 2, _LEAST_WAIT_S))
        except TimeoutError:
            log.warning("pod %s/%s has not ended yet", pod.metadata.namespace, pod.metadata.name)
            self._events.pod(pod, "Warning", "ExceededGracePeriod", _NOT_ENDED)
            self._late.add(pod.metadata.uid)
        self._metrics.add(EVICTIONS, signal)
        return True


def _is_of_disk(threshold: Threshold) -> bool:
    return signals.CONDITIONS[threshold.signal] == "DiskPressure"
