"""Counts of pods: how long they take to run, and how their containers end (kubelet: pod_startup_latency_tracker.go).

Only what happens while this process looks on is counted: a pod that ran already when it was first seen has no start.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from podkeep.agent import metrics as names
from podkeep.agent.events import Event
from podkeep.agent.metrics import AgentMetrics
from podkeep.api.pod import Pod
from podkeep.api.status import ContainerStatus, PodStatus
from podkeep.base.text import rfc3339

_NEW = frozenset({"", "Pending"})
_PULLING, _PULLED = "Pulling", "Pulled"


@dataclass(kw_only=True)
class _Start:
    """Times in seconds since 1970."""

    seen: float
    pulling: float = 0.0
    """When the first pull began."""
    pulled: float = 0.0
    """When the last one ended."""


@dataclass(kw_only=True)
class _Measured:
    start: _Start | None
    ended: set[str] = field(default_factory=set)
    """IDs of containers whose end was counted, or came before."""


class PodMeasures:
    """Counts for all pods of a node."""

    def __init__(self, metrics: AgentMetrics) -> None:
        self._metrics = metrics
        self._known: dict[str, _Measured] = {}

    def seen(self, pod: Pod) -> None:
        """Note a pod that was not known before."""
        start = _Start(seen=time.time()) if pod.status.phase in _NEW else None
        ended = {identity for _, _, identity in _ends(pod.status)}
        self._known[pod.metadata.uid] = _Measured(start=start, ended=ended)
        spec = pod.spec
        self._metrics.observe(
            names.CONTAINERS_PER_POD, len(spec.init_containers) + len(spec.containers) + len(spec.ephemeral_containers)
        )

    def begun(self, pod: Pod) -> None:
        """Note that a pod has its worker."""
        known = self._known.get(pod.metadata.uid)
        if known is not None and known.start is not None:
            self._metrics.observe(names.POD_WORKER_START_DURATION, time.time() - known.start.seen)

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)
        self._metrics.remaps.pop(uid, None)

    def event(self, pod: Pod, event: Event) -> None:
        """Note an event of a pod: pulls are not its own time."""
        known = self._known.get(pod.metadata.uid)
        if known is None or known.start is None:
            return
        if event.reason == _PULLING:
            known.start.pulling = known.start.pulling or time.time()
        elif event.reason == _PULLED and known.start.pulling:
            known.start.pulled = time.time()

    def status(self, pod: Pod, status: PodStatus) -> None:
        known = self._known.get(pod.metadata.uid)
        if known is None:
            return
        for kind, container, identity in _ends(status):
            if identity not in known.ended:
                known.ended.add(identity)
                end = container.state.terminated or container.last_state.terminated
                assert end is not None
                self._metrics.add(names.TERMINATED_CONTAINERS, kind, str(end.exit_code), end.reason)
        start = known.start
        if start is not None and status.phase not in _NEW:
            known.start = None
            if status.phase == "Running" and all(item.state.running for item in status.container_statuses):
                self._started(pod, status, start)

    def _started(self, pod: Pod, status: PodStatus, start: _Start) -> None:
        now = time.time()
        self._metrics.observe(names.POD_START_DURATION, now - start.seen)
        created = _seconds(pod.metadata.creation_timestamp)
        if not created:
            return
        # Giving images other owners is treated as pulling them (KEP-127, Scalability).
        apart = max(0.0, start.pulled - start.pulling) + self._metrics.remaps.pop(pod.metadata.uid, 0.0)
        total = max(0.0, now - created)
        self._metrics.observe(names.POD_START_TOTAL_DURATION, total)
        self._metrics.observe(names.POD_START_SLI_DURATION, max(0.0, total - apart - _init_seconds(status)))


def _ends(status: PodStatus) -> Iterator[tuple[str, ContainerStatus, str]]:
    """Yield containers that have ended: kind, status, ID."""
    for kind, statuses in (
        ("init_container", status.init_container_statuses),
        ("container", status.container_statuses),
        ("ephemeral_container", status.ephemeral_container_statuses),
    ):
        for item in statuses:
            end = item.state.terminated or item.last_state.terminated
            if end is not None and end.container_id:
                yield kind, item, end.container_id


def _init_seconds(status: PodStatus) -> float:
    """Return how long init containers took that have ended."""
    ends = [item.state.terminated for item in status.init_container_statuses]
    return sum(
        max(0.0, _seconds(end.finished_at) - _seconds(end.started_at))
        for end in ends
        if end is not None and end.started_at and end.finished_at
    )


def _seconds(text: str | None) -> float:
    try:
        return rfc3339.seconds(text) if text else 0.0
    except ValueError:
        return 0.0
