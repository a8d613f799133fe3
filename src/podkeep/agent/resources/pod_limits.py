"""What the cgroup of a pod, of a QoS class and of all pods is limited to, and which files that is. Pure.

Rules: pkg/kubelet/cm (ResourceConfigForPod, the QoS container manager, node allocatable enforcement).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from podkeep.agent.resources import machine, qos, requests
from podkeep.api.pod import Pod
from podkeep.base.frozen import FrozenStruct

_SHARES = (2, 262_144)
_WEIGHTS = (1, 10_000)
_UNLIMITED = 1 << 60
"""From so many bytes on, a limit of memory is none: version 1 has the largest number of pages there."""


class CgroupLimits(FrozenStruct, kw_only=True):
    """Limits in the kernel's units; ``None``: as it is. ``quota_us`` 0: no limit of CPU time."""

    shares: int | None = None
    quota_us: int | None = None
    memory: int | None = None
    pids: int | None = None
    hugepages: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Bytes by page size, ``2MB``."""


def of_pod(pod: Pod, *, pids_limit: int = -1, cfs_quota: bool = True) -> CgroupLimits:
    """Return the limits of a pod's cgroup: those that all its containers have, or the pod as a whole.

    :param pids_limit: processes and threads; negative or 0: no limit.
    """
    kind = qos.qos_class(pod)
    wanted, limits = requests.pod_requests(pod), requests.pod_limits(pod)
    cpu, memory = _declared(pod, requests.CPU), _declared(pod, requests.MEMORY)
    if kind == "BestEffort":
        cpu = memory = False
    quota = qos.quota(limits.get(requests.CPU, 0)) if cfs_quota else 0
    return CgroupLimits(
        shares=_SHARES[0] if kind == "BestEffort" else qos.shares(wanted.get(requests.CPU, 0)),
        quota_us=quota if cpu else None,
        memory=limits.get(requests.MEMORY) if memory else None,
        pids=pids_limit if pids_limit > 0 else None,
        hugepages=qos.hugepage_limits(wanted),
    )


def of_all_pods(enforced: Mapping[str, int]) -> CgroupLimits:
    """Return the limits of the cgroup above all pods.

    :param enforced: what ``allocatable.enforced`` returned.
    """
    return CgroupLimits(
        shares=qos.shares(enforced[requests.CPU]),
        memory=enforced[requests.MEMORY],
        pids=enforced[machine.PID],
        hugepages=qos.hugepage_limits(enforced),
    )


def of_reserve(reserve: Mapping[str, int], *, compressible: bool) -> CgroupLimits:
    """Return the limits of a cgroup of the machine that is held to its reserve.

    :param compressible: CPU alone.
    """
    cpu = reserve.get(requests.CPU)
    shares = None if cpu is None else qos.shares(cpu)
    if compressible:
        return CgroupLimits(shares=shares)
    return CgroupLimits(
        shares=shares,
        memory=reserve.get(requests.MEMORY),
        pids=reserve.get(machine.PID),
        hugepages=qos.hugepage_limits(reserve),
    )


def files(limits: CgroupLimits, version: int) -> list[tuple[str, str]]:
    """Return the files of a cgroup and what is written to them, for version 1 or 2 of cgroups."""
    return _v2(limits) if version == 2 else _v1(limits)


def parse(texts: Mapping[str, str]) -> CgroupLimits:
    """Return the limits that files of a cgroup hold, by their names; those of :func:`files` for CPU and memory."""
    if "cpu.weight" in texts:
        quota, _, _ = texts["cpu.max"].partition(" ")
        memory = texts["memory.max"].strip()
        return CgroupLimits(
            shares=level_shares([int(texts["cpu.weight"] or 1)], 2),
            quota_us=0 if quota in ("max", "") else int(quota),
            memory=None if memory in ("max", "") else int(memory),
        )
    memory_v1 = int(texts["memory.limit_in_bytes"] or _UNLIMITED)
    return CgroupLimits(
        shares=int(texts["cpu.shares"] or _SHARES[0]),
        quota_us=max(int(texts["cpu.cfs_quota_us"] or -1), 0),
        memory=None if memory_v1 >= _UNLIMITED else memory_v1,
    )


def properties(limits: CgroupLimits, version: int) -> list[str]:
    """Return limits as properties of a systemd slice, ``NAME=VALUE``; huge pages are none of them."""
    found = []
    if limits.shares is not None:
        # systemd's units are the kernel's of each version.
        found.append(f"CPUWeight={weight(limits.shares)}" if version == 2 else f"CPUShares={limits.shares}")
    if limits.quota_us is not None:
        # An empty CPUQuota= takes a limit away (systemd.resource-control(5)).
        percent = f"{limits.quota_us * 100 / qos.PERIOD_US:g}%" if limits.quota_us else ""
        found.append(f"CPUQuota={percent}")
    if limits.memory is not None:
        found.append(f"MemoryMax={limits.memory}" if version == 2 else f"MemoryLimit={limits.memory}")
    if limits.pids is not None:
        found.append(f"TasksMax={limits.pids}")
    return found


def weight(shares: int) -> int:
    """Return version 2's cpu.weight for version 1's cpu.shares, as OCI runtimes do (KEP-2254)."""
    return _WEIGHTS[0] + (shares - _SHARES[0]) * (_WEIGHTS[1] - _WEIGHTS[0]) // (_SHARES[1] - _SHARES[0])


def level_shares(pods: Iterable[int], version: int) -> int:
    """Return the shares of the cgroup of a QoS class, from what cpu.shares (or cpu.weight) its pods have.

    From weights it is as exact as they are: 26 shares are one step.
    """
    least, step = _SHARES[0], (_SHARES[1] - _SHARES[0]) / (_WEIGHTS[1] - _WEIGHTS[0])
    shares = sum(round(least + (value - 1) * step) for value in pods) if version == 2 else sum(pods)
    return min(max(shares, least), _SHARES[1])


def _declared(pod: Pod, name: str) -> bool:
    """Return whether everything in the pod has a limit of a resource, so that the pod has one."""
    if requests.amount(name, requests.pod_level(pod).limits.get(name, "0")):
        return True
    return all(
        requests.amount(name, container.resources.limits.get(name, "0"))
        for container in (*pod.spec.containers, *pod.spec.init_containers)
    )


def _v1(limits: CgroupLimits) -> list[tuple[str, str]]:
    found = []
    if limits.shares is not None:
        found.append(("cpu.shares", str(limits.shares)))
    if limits.quota_us is not None:
        # The period first: the kernel holds a quota against the period that is in force.
        found.append(("cpu.cfs_period_us", str(qos.PERIOD_US)))
        found.append(("cpu.cfs_quota_us", str(limits.quota_us or -1)))
    if limits.memory is not None:
        found.append(("memory.limit_in_bytes", str(limits.memory)))
    if limits.pids is not None:
        found.append(("pids.max", str(limits.pids)))
    return found + [(f"hugetlb.{size}.limit_in_bytes", str(value)) for size, value in sorted(limits.hugepages.items())]


def _v2(limits: CgroupLimits) -> list[tuple[str, str]]:
    found = []
    if limits.shares is not None:
        found.append(("cpu.weight", str(weight(limits.shares))))
    if limits.quota_us is not None:
        found.append(("cpu.max", f"{limits.quota_us or 'max'} {qos.PERIOD_US}"))
    if limits.memory is not None:
        found.append(("memory.max", str(limits.memory)))
    if limits.pids is not None:
        found.append(("pids.max", str(limits.pids)))
    return found + [(f"hugetlb.{size}.max", str(value)) for size, value in sorted(limits.hugepages.items())]
