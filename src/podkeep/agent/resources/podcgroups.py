"""The cgroup of a pod, under which the runtime puts those of its containers, and those of the QoS classes above it.

Owns making it, with its limits, before the sandbox is asked for, and removing it after, with the level of its class
when that is empty; the weight of a level follows from the pods in it. The caller holds the agent's root lock: of two
processes, one must not remove the level in which the other makes a pod. Does not own where it is (``cgroup_names.py``),
what it is limited to (``pod_limits.py``), or the cgroup above all pods, which the runtime makes when it starts.
"""

from __future__ import annotations

import logging
from functools import cache

from podkeep.agent.resources import cgroup_names, pod_limits
from podkeep.agent.resources.pod_limits import CgroupLimits
from podkeep.api.pod import Pod
from podkeep.base.config import AgentConfig
from podkeep.base.errors import FailedPrecondition
from podkeep.base.failpoints import reach
from podkeep.kernel.cgroup import systemd
from podkeep.kernel.cgroup.cgroups import Cgroups

log = logging.getLogger(__name__)

_BEST_EFFORT_SHARES = 2


def create(root: str, pod: Pod, agent: AgentConfig) -> None:
    """Make the cgroup of ``pod`` below ``root``, with its limits; one in which something is stays as it is.

    :raises PodkeepError: if the kernel, or systemd, refuses.
    """
    cgroups, place = _cgroups(), cgroup_names.place(root, pod)
    path = _path(place.name)
    # One that is empty may have been made by a process that was killed before it gave it limits.
    if cgroups.children(path):
        return
    if systemd.is_slice(place.name):
        systemd.start_slice(place.name)
    else:
        cgroups.create(place.name)
    try:
        reach("agent.cgroup.made")
        limits = pod_limits.of_pod(pod, pids_limit=agent.pod_pids_limit, cfs_quota=agent.cpu_cfs_quota)
        apply(cgroups, place.name, limits)
    except BaseException:
        # Without its limits it must not be taken for one that is ready.
        remove(root, pod.metadata.uid)
        raise
    _weigh(cgroups, place)


def update(root: str, pod: Pod, limits: CgroupLimits) -> None:
    """Give the cgroup of ``pod`` other limits.

    :raises PodkeepError: if the kernel, or systemd, refuses: less memory than is in use, for example.
    """
    cgroups, place = _cgroups(), cgroup_names.place(root, pod)
    apply(cgroups, place.name, limits)
    if limits.shares is not None:
        _weigh(cgroups, place)


def current(root: str, pod: Pod) -> CgroupLimits:
    """Return what limits the cgroup of ``pod`` has now: CPU and memory.

    :raises PodkeepError: if the kernel refuses to say, or the cgroup is gone.
    """
    cgroups = _cgroups()
    path = _path(cgroup_names.of_pod(root, pod))
    if not cgroups.exists(path):
        raise FailedPrecondition(f"the cgroup of pod {pod.metadata.uid} is gone")
    names = [name for name, _ in pod_limits.files(CgroupLimits(shares=2, quota_us=0, memory=0), cgroups.version)]
    return pod_limits.parse({name: cgroups.read(path, name) or "" for name in names})


def memory_in_use(root: str, pod: Pod) -> int:
    """Return the bytes that are charged to the cgroup of ``pod``."""
    cgroups = _cgroups()
    name = "memory.current" if cgroups.version == 2 else "memory.usage_in_bytes"
    return int(cgroups.read(_path(cgroup_names.of_pod(root, pod)), name) or 0)


def apply(cgroups: Cgroups, name: str, limits: CgroupLimits) -> None:
    """Write limits of a cgroup or a slice.

    :raises PodkeepError: if the kernel, or systemd, refuses, or a controller that a limit needs is missing.
    """
    if systemd.is_slice(name):
        systemd.set_properties(name, pod_limits.properties(limits, cgroups.version))
        limits = CgroupLimits(hugepages=limits.hugepages)  # systemd has no property for these
    path = _path(name)
    for file, text in pod_limits.files(limits, cgroups.version):
        if file.startswith("hugetlb.") and not cgroups.has(path, file):
            continue  # nothing counts them here
        cgroups.write(path, file, text)


def remove(root: str, uid: str) -> None:
    """Remove the cgroup of pod ``uid`` wherever its class put it, and the level of its class if that is empty now.

    :raises PodkeepError: if processes are left in it, or systemd refuses.
    """
    cgroups = _cgroups()
    # Only the UID is known of an orphan, and the class of a pod may have been another one when its cgroup was made.
    for cgroup in cgroup_names.possible(root, uid):
        if systemd.is_slice(root):
            _remove_slice(cgroups, cgroup)
        else:
            _remove_directory(cgroups, cgroup)


def can_end_whole() -> bool:
    """Return whether the kernel can end all processes of a container when its memory runs out."""
    return _cgroups().version == 2


@cache
def can_forbid_swap() -> bool:
    """Return whether a container without a limit of memory can be kept from swap.

    With cgroup version 1 there is a limit of memory and swap together alone.
    """
    cgroups = _cgroups()
    # The root has no such file; what is below has it if the kernel counts swap.
    return cgroups.version == 2 and any(cgroups.has(child, "memory.swap.max") for child in cgroups.children("/"))


@cache
def _cgroups() -> Cgroups:
    """Return the machine's cgroups; where they are mounted does not change."""
    return Cgroups()


def _weigh(cgroups: Cgroups, cgroup: cgroup_names.PodCgroup) -> None:
    """Give the cgroup of a QoS class the weight of all pods in it, so that they have it against other classes."""
    if cgroup.level is None:
        return
    shares = _BEST_EFFORT_SHARES
    if cgroup.kind == "Burstable":
        name = "cpu.weight" if cgroups.version == 2 else "cpu.shares"
        pods = [int(text) for text in cgroups.read_children(_path(cgroup.level), name)]
        shares = pod_limits.level_shares(pods, cgroups.version)
    apply(cgroups, cgroup.level, CgroupLimits(shares=shares))


def _path(name: str) -> str:
    return systemd.expand(name) if systemd.is_slice(name) else name


def _remove_directory(cgroups: Cgroups, cgroup: cgroup_names.PodCgroup) -> None:
    if not cgroups.exists(cgroup.name):
        return
    cgroups.remove(cgroup.name)
    if cgroup.level and not cgroups.remove_empty(cgroup.level):
        log.debug("%s stays: another pod is in it", cgroup.level)
        _weigh(cgroups, cgroup)


def _remove_slice(cgroups: Cgroups, cgroup: cgroup_names.PodCgroup) -> None:
    if not cgroups.exists(systemd.expand(cgroup.name)):
        return
    systemd.stop_slice(cgroup.name)
    # systemd stops what is in a slice with it.
    if not cgroup.level:
        return
    if cgroups.children(systemd.expand(cgroup.level)):
        _weigh(cgroups, cgroup)
    else:
        systemd.stop_slice(cgroup.level)
