"""Quality-of-service class of a pod and what follows from it: OOM score, CPU shares, quota, memory limit. Pure.

The figures are the kubelet's, so that a pod weighs the same on every node.
"""

from __future__ import annotations

from dataclasses import dataclass

from podkeep.api.containers import Container, ResourceRequirements
from podkeep.api.pod import Pod
from podkeep.api.status import PodQOSClass
from podkeep.base import quantity

_CLASSES = ("cpu", "memory")
_GUARANTEED_OOM_SCORE = -997
_BEST_EFFORT_OOM_SCORE = 1000
_PERIOD_US = 100_000
_MIN_QUOTA_US = 1000
_MIN_SHARES = 2
_MAX_SHARES = 262_144


@dataclass(frozen=True, kw_only=True)
class LinuxResources:
    """Limits of one container in the kernel's units; 0 means no limit (CRI: LinuxContainerResources)."""

    cpu_period_us: int
    cpu_quota_us: int
    cpu_shares: int
    memory_limit_bytes: int
    oom_score_adj: int


def qos_class(pod: Pod) -> PodQOSClass:
    """Return the class of ``pod``: Guaranteed if every container limits what it requests, BestEffort if none asks."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    if not any(_positive(kind, name) for c in containers for kind in _kinds(c.resources) for name in _CLASSES):
        return "BestEffort"
    for container in containers:
        for name in _CLASSES:
            limit = container.resources.limits.get(name)
            request = container.resources.requests.get(name, limit)
            if not limit or not request or quantity.parse(limit) != quantity.parse(request):
                return "Burstable"
    return "Guaranteed"


def _kinds(resources: ResourceRequirements) -> tuple[dict[str, str], dict[str, str]]:
    return resources.limits, resources.requests


def _positive(amounts: dict[str, str], name: str) -> bool:
    return name in amounts and quantity.parse(amounts[name]) > 0


def linux_resources(pod: Pod, container: Container, memory_capacity: int) -> LinuxResources:
    """Return the limits of ``container``.

    :param memory_capacity: bytes of memory the node has.
    """
    limits, requests = container.resources.limits, container.resources.requests
    cpu_limit = quantity.milli(limits["cpu"]) if "cpu" in limits else 0
    cpu_request = quantity.milli(requests["cpu"]) if "cpu" in requests else 0
    quota = max(cpu_limit * _PERIOD_US // 1000, _MIN_QUOTA_US) if cpu_limit else 0
    shares = min(max(cpu_request * 1024 // 1000, _MIN_SHARES), _MAX_SHARES)
    return LinuxResources(
        cpu_period_us=_PERIOD_US,
        cpu_quota_us=quota,
        cpu_shares=shares,
        memory_limit_bytes=quantity.units(limits["memory"]) if "memory" in limits else 0,
        oom_score_adj=oom_score_adj(pod, container, memory_capacity),
    )


def oom_score_adj(pod: Pod, container: Container, memory_capacity: int) -> int:
    """Return how willingly the kernel kills ``container`` when memory runs out: the less it asked for, the sooner."""
    kind = qos_class(pod)
    if kind == "Guaranteed":
        return _GUARANTEED_OOM_SCORE
    if kind == "BestEffort":
        return _BEST_EFFORT_OOM_SCORE
    request = quantity.units(container.resources.requests.get("memory", "0"))
    score = 1000 - 1000 * request // max(memory_capacity, 1)
    # 999 is the last one before BestEffort's; the lower end stays above Guaranteed's.
    return min(max(score, 1000 + _GUARANTEED_OOM_SCORE), _BEST_EFFORT_OOM_SCORE - 1)
