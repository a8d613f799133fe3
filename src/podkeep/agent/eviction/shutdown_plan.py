"""In which order, and how fast, pods are ended when the machine shuts down. Pure.

Rules: pkg/kubelet/nodeshutdown (migrateConfig, groupByPriority).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from podkeep.agent.eviction.ending import Ending
from podkeep.agent.resources import critical
from podkeep.api.pod import Pod
from podkeep.base.config import AgentConfig, ShutdownGracePeriod
from podkeep.base.frozen import FrozenStruct

REASON = "Terminated"
MESSAGE = "Pod was terminated in response to imminent node shutdown."


class Group(FrozenStruct, kw_only=True):
    """Pods that are ended together, within ``seconds``."""

    priority: int
    seconds: float
    pods: tuple[Pod, ...]


def periods(agent: AgentConfig) -> tuple[ShutdownGracePeriod, ...]:
    """Return what each range of priorities has, lowest first; nothing if a shutdown does not wait."""
    if agent.shutdown_grace_period_by_pod_priority:
        return tuple(sorted(agent.shutdown_grace_period_by_pod_priority, key=lambda item: item.priority))
    if not agent.shutdown_grace_period:
        return ()
    last = agent.shutdown_grace_period_critical_pods
    return (
        ShutdownGracePeriod(priority=0, seconds=agent.shutdown_grace_period - last),
        ShutdownGracePeriod(priority=critical.SYSTEM_CRITICAL_PRIORITY, seconds=last),
    )


def total(given: Iterable[ShutdownGracePeriod]) -> float:
    """Return for how many seconds the machine has to wait in all."""
    return sum(item.seconds for item in given)


def groups(given: Sequence[ShutdownGracePeriod], pods: Iterable[Pod]) -> list[Group]:
    """Return who is ended when; a pod belongs to the highest priority that is not above its own, or to the lowest."""
    found: list[list[Pod]] = [[] for _ in given]
    for pod in pods:
        below = [index for index, item in enumerate(given) if item.priority <= critical.priority(pod)]
        found[max(below, default=0)].append(pod)
    return [
        Group(priority=item.priority, seconds=item.seconds, pods=tuple(members))
        for item, members in zip(given, found, strict=True)
        if members
    ]


def ending(pod: Pod, group: Group) -> Ending:
    """Return how a pod of a group is ended: in its own grace period, if that is shorter."""
    own, most = pod.spec.termination_grace_period_seconds, int(group.seconds)
    return Ending(reason=REASON, message=MESSAGE, grace=most if own is None else min(own, most), disruption=MESSAGE)
