"""Which pods a critical pod takes the place of on the node: as few and as small ones as do. Pure.

Rule: pkg/kubelet/preemption. BestEffort pods go before Burstable ones, and these before Guaranteed ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from podkeep.agent.resources import critical, requests
from podkeep.agent.resources.qos import qos_class
from podkeep.api.pod import Pod

REASON = "Preempting"
MESSAGE = "Preempted in order to admit critical pod"
CONDITION_MESSAGE = "Pod was preempted by Kubelet to accommodate a critical pod."
"""Of the condition ``DisruptionTarget`` (reason ``TerminationByKubelet``)."""

_Needed = dict[str, int]


def choose(pod: Pod, others: Sequence[Pod], needed: Mapping[str, int]) -> tuple[Pod, ...] | None:
    """Return which of ``others`` are to be ended so that ``needed`` becomes free; ``None`` if all would not do."""
    if missing(pod, others, needed):
        return None
    best_effort, burstable, guaranteed = _by_class(pod, others)
    # From the most valuable class on: of each only what all pods of the lower ones together cannot give.
    last = _nearest(guaranteed, _less(needed, [*best_effort, *burstable]))
    then = _nearest(burstable, _less(needed, [*best_effort, *last]))
    first = _nearest(best_effort, _less(needed, [*then, *last]))
    return (*first, *then, *last)


def missing(pod: Pod, others: Sequence[Pod], needed: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return what would be missing still if every pod that ``pod`` may preempt were gone."""
    return list(_less(needed, [other for other in others if critical.may_preempt(pod, other)]).items())


def _by_class(pod: Pod, others: Sequence[Pod]) -> tuple[list[Pod], list[Pod], list[Pod]]:
    found: dict[str, list[Pod]] = {"BestEffort": [], "Burstable": [], "Guaranteed": []}
    for other in others:
        if critical.may_preempt(pod, other):
            found[qos_class(other)].append(other)
    return found["BestEffort"], found["Burstable"], found["Guaranteed"]


def _nearest(pods: Sequence[Pod], needed: _Needed) -> list[Pod]:
    """Return pods that give ``needed``, each time the one that gives most of what is missing still."""
    left, chosen = list(pods), []
    while needed and left:
        best = min(left, key=lambda one: (_distance(one, needed), _size(one)))
        left.remove(best)
        chosen.append(best)
        needed = _less(needed, [best])
    return chosen


def _distance(pod: Pod, needed: Mapping[str, int]) -> float:
    """Return how far a pod is from giving everything: 0 is all, each resource counts the same."""
    return sum((max(value - _request(pod, name), 0) / value) ** 2 for name, value in needed.items())


def _size(pod: Pod) -> tuple[int, int]:
    return _request(pod, requests.MEMORY), _request(pod, requests.CPU)


def _less(needed: Mapping[str, int], pods: Sequence[Pod]) -> _Needed:
    """Return what is needed still when ``pods`` are gone."""
    left = {name: value - sum(_request(pod, name) for pod in pods) for name, value in needed.items()}
    return {name: value for name, value in left.items() if value > 0}


def _request(pod: Pod, name: str) -> int:
    return 1 if name == requests.PODS else requests.pod_requests(pod).get(name, 0)
