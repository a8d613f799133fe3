"""Quality-of-service class of a pod and what follows from it: OOM score, CPU shares, quota, memory limit. Pure.

The figures are the kubelet's, so that a pod weighs the same on every node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from podkeep.agent.resources import critical, requests
from podkeep.api.containers import Container, ResourceRequirements, is_sidecar
from podkeep.api.pod import Pod
from podkeep.api.status import PodQOSClass
from podkeep.base.frozen import FrozenStruct

PERIOD_US = 100_000
"""Over which a CPU quota is counted (kubelet: cpuCFSQuotaPeriod)."""
_CLASSES = (requests.CPU, requests.MEMORY)
_GUARANTEED_OOM_SCORE = -997
_BEST_EFFORT_OOM_SCORE = 1000
# The kernel refuses a quota below a millisecond (EINVAL), and cuts shares to between 2 and 262144.
_MIN_QUOTA_US = 1000
_MOST_MILLI_CPU = 8192 * 1000
"""Of a limit: Linux has no more processors (CONFIG_NR_CPUS), and refuses quotas that it cannot count."""
_MIN_SHARES = 2
_MAX_SHARES = 262_144


class LinuxResources(FrozenStruct, kw_only=True):
    """Limits of one container in the kernel's units; 0 means no limit (CRI: LinuxContainerResources)."""

    cpu_period_us: int
    cpu_quota_us: int
    cpu_shares: int
    memory_limit_bytes: int
    oom_score_adj: int
    hugepage_limits: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Bytes by page size as CRI spells it, ``2MB``; 0 is a limit here."""
    ends_whole: bool = False
    """Where memory runs out, all its processes are ended, as cgroup version 2 can (memory.oom.group)."""
    no_swap: bool = False
    """Nothing of it is written to swap, as cgroup version 2 can see to without a limit of memory."""

    @property
    def unified(self) -> dict[str, str]:
        """Files of cgroup version 2 and what is written to them (kubelet, generateLinuxContainerResources)."""
        whole = {"memory.oom.group": "1"} if self.ends_whole else {}
        return whole | ({"memory.swap.max": "0"} if self.no_swap else {})


def qos_class(pod: Pod) -> PodQOSClass:
    """Return the class of ``pod``: Guaranteed if everything limits what it requests, BestEffort if nothing asks.

    What the pod asks for as a whole counts alone (KEP-2837); classes (KEP-3008) are none of it.
    """
    own = pod.spec.resources
    if own is not None and (own.limits or own.requests or not own.classes):
        groups = [own]
    else:
        groups = [container.resources for container in (*pod.spec.init_containers, *pod.spec.containers)]
    if not any(_positive(kind, name) for item in groups for kind in (item.limits, item.requests) for name in _CLASSES):
        return "BestEffort"
    return "Guaranteed" if all(_is_guaranteed(item, name) for item in groups for name in _CLASSES) else "Burstable"


def _is_guaranteed(given: ResourceRequirements, name: str) -> bool:
    limit = given.limits.get(name)
    if limit is None or not (value := requests.amount(name, limit)):
        return False
    return requests.amount(name, given.requests.get(name, limit)) == value


def _positive(amounts: Mapping[str, str], name: str) -> bool:
    return name in amounts and requests.amount(name, amounts[name]) > 0


def linux_resources(
    pod: Pod,
    container: Container,
    memory_capacity: int,
    page_sizes: Collection[str] = (),
    *,
    cfs_quota: bool = True,
    ends_whole: bool = False,
    no_swap: bool = False,
) -> LinuxResources:
    """Return the limits of ``container``; where it has none, the pod's as a whole apply.

    :param memory_capacity: bytes of memory the node has.
    :param cfs_quota: enforce limits of CPU time.
    :param ends_whole: memory that runs out ends all of it.
    :param no_swap: keep it from swap whether or not its memory has a limit (kubelet: ``memorySwap``, ``NoSwap``).
    :param page_sizes: huge pages of the node (``2MB``), which a container gets none of unless it asks.
    """
    own = requests.pod_level(pod).limits
    limits = own | {name: text for name, text in container.resources.limits.items() if _positive({name: text}, name)}
    cpu_limit = requests.amount(requests.CPU, limits.get(requests.CPU, "0"))
    cpu_request = container.resources.requests.get(requests.CPU)
    return LinuxResources(
        cpu_period_us=PERIOD_US,
        cpu_quota_us=quota(cpu_limit) if cfs_quota else 0,
        cpu_shares=shares(cpu_limit if cpu_request is None else requests.amount(requests.CPU, cpu_request)),
        memory_limit_bytes=requests.amount(requests.MEMORY, limits.get(requests.MEMORY, "0")),
        oom_score_adj=oom_score_adj(pod, container, memory_capacity),
        hugepage_limits=dict.fromkeys(page_sizes, 0) | hugepage_limits(requests.amounts(limits)),
        ends_whole=ends_whole,
        no_swap=no_swap,
    )


def shares(milli_cpu: int) -> int:
    """Return the weight of a cgroup that requests so many thousandths of a CPU (version 1: cpu.shares)."""
    return min(max(milli_cpu * 1024 // 1000, _MIN_SHARES), _MAX_SHARES)


def quota(milli_cpu: int) -> int:
    """Return the microseconds of CPU time in each :data:`PERIOD_US`; 0 for no limit, or for one above every machine."""
    return max(milli_cpu * PERIOD_US // 1000, _MIN_QUOTA_US) if 0 < milli_cpu <= _MOST_MILLI_CPU else 0


def hugepage_limits(amounts: Mapping[str, int]) -> dict[str, int]:
    """Return bytes by page size as the kernel and CRI spell it: ``hugepages-2Mi`` is ``2MB``."""
    prefix = requests.HUGE_PAGES
    return {page_size(name.removeprefix(prefix)): value for name, value in amounts.items() if name.startswith(prefix)}


def page_size(text: str) -> str:
    """Return the kernel's name of a size of pages: ``2Mi`` is ``2MB``."""
    size = requests.amount(requests.HUGE_PAGES, text)
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"


def oom_score_adj(pod: Pod, container: Container, memory_capacity: int) -> int:
    """Return how willingly the kernel kills ``container`` when memory runs out: the less it asked for, the sooner."""
    kind = qos_class(pod)
    if kind == "Guaranteed" or critical.is_node_critical(pod):
        return _GUARANTEED_OOM_SCORE
    if kind == "BestEffort":
        return _BEST_EFFORT_OOM_SCORE
    request = _memory_request(container)
    if is_sidecar(container) and container in pod.spec.init_containers:
        # A sidecar is not killed before those that it serves.
        request = max(request, min(_memory_request(item) for item in pod.spec.containers))
    score = 1000 - 1000 * (request + _share_of_pod(pod)) // max(memory_capacity, 1)
    # 999 is the last one before BestEffort's; the lower end stays above Guaranteed's.
    return min(max(score, 1000 + _GUARANTEED_OOM_SCORE), _BEST_EFFORT_OOM_SCORE - 1)


def _memory_request(container: Container) -> int:
    return requests.amount(requests.MEMORY, container.resources.requests.get(requests.MEMORY, "0"))


def _share_of_pod(pod: Pod) -> int:
    """Return what each container has of the memory that the pod requests beyond its containers."""
    own = requests.pod_level(pod).requests.get(requests.MEMORY)
    if own is None:
        return 0
    rest = requests.amount(requests.MEMORY, own) - requests.aggregate(pod, "requests").get(requests.MEMORY, 0)
    return rest // max(len(pod.spec.containers) + len(pod.spec.init_containers), 1)
