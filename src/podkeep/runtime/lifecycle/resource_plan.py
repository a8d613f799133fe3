"""From resources to writes into a cgroup's files. Pure.

Owns: what is in force after an update, and which files get which text in which order. Does not own: reading and
writing (``updates.py``), the ranges of values (``oci/resources.py``), or the limits a container starts with, which the
OCI runtime sets.

Sources: CRI, LinuxContainerResources; OCI runtime-spec, config-linux.md (swap is memory and swap together); the
kernel's cgroup-v1/memory.rst, cgroup-v2.rst and sched-bwc.rst; KEP-2254 for shares and weight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.model.records import Resources
from podkeep.runtime.oci.resources import CPU_SHARES, UNLIMITED, check_values, check_whole

DEFAULT_PERIOD_US = 100_000
# Six digits at most: parse_list makes every number of a range, and a client writes the list.
_LIST_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


class Write(FrozenStruct, kw_only=True):
    """One text for one file of the cgroup; ``before`` is what the file held."""

    file: str
    text: str
    before: str


def merge(current: Resources, asked: Resources) -> Resources:
    """Return the resources in force after an update: what it does not mention stays as it is.

    ``oom_score_adj`` belongs to processes, not to the cgroup; as with other runtimes an update leaves it alone.
    A swap limit that only followed the memory limit follows it on.

    :raises InvalidArgument: if a value is out of range or contradicts another.
    """
    check_values("linux", asked)
    # 0 and an empty text mean "not specified" (CRI, LinuxContainerResources).
    changes = {
        name: value
        for name in ("cpu_period", "cpu_quota", "cpuset_cpus", "cpuset_mems", "memory_limit", "memory_swap_limit")
        if (value := getattr(asked, name))
    }
    if asked.cpu_shares:
        # The kernel clamps shares to this range, without an error.
        changes["cpu_shares"] = min(max(asked.cpu_shares, CPU_SHARES[0]), CPU_SHARES[1])
    follows = current.memory_swap_limit in {0, current.memory_limit}
    if asked.memory_limit and not asked.memory_swap_limit and current.memory_swap_limit and follows:
        changes["memory_swap_limit"] = asked.memory_limit
    changes["hugepage_limits"] = {**current.hugepage_limits, **asked.hugepage_limits}
    changes["unified"] = {**current.unified, **asked.unified}
    merged = msgspec.structs.replace(current, **changes)
    check_whole("linux", merged)
    return merged


def parse_list(field: str, text: str) -> frozenset[int]:
    """Return the numbers in a list of CPUs or memory nodes such as ``0-3,7`` (cpuset(7), formats).

    :raises InvalidArgument: naming ``field``, if it is not one.
    """
    result: set[int] = set()
    for part in text.split(",") if text else []:
        match = _LIST_PART.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InvalidArgument(f"{field}: {text[:80]!r} is no list of numbers", hint="write it like 0-3,7")
        result.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(result)


def check_subset(field: str, asked: str, available: str) -> None:
    """Check that a list of CPUs or memory nodes has only what there is.

    :raises InvalidArgument: naming those that are missing.
    """
    missing = sorted(parse_list(field, asked) - parse_list(field, available.strip()))
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        raise InvalidArgument(f"{field}: {shown} not available here", hint=f"available: {available.strip() or 'none'}")


def check_usage(limit: int, current: int, reclaimable: int) -> None:
    """Check that a memory limit does not mean the end of what runs (version 2, where the kernel does not refuse it).

    :param current: bytes in use; of these ``reclaimable`` are page cache.
    :raises FailedPrecondition: if more is in use than could stay.
    """
    if 0 < limit < current - reclaimable:
        raise FailedPrecondition(
            f"memory_limit_in_bytes: {limit} is less than the {current - reclaimable} bytes in use",
            hint="processes would be killed; stop the container or choose a larger limit",
        )


def weight_of(shares: int) -> int:
    """Return version 2's cpu.weight (1 to 10000) for version 1's cpu.shares (2 to 262144), as OCI runtimes do."""
    least, most = CPU_SHARES
    return 1 + (shares - least) * 9999 // (most - least)


def files(version: int, asked: Resources) -> tuple[str, ...]:
    """Return the files of a cgroup that an update may write; a caller reads them before :func:`plan`.

    :raises InvalidArgument: if the update needs version 2 and there is version 1.
    """
    if asked.unified and version == 1:
        raise InvalidArgument(f"unified: {', '.join(sorted(asked.unified))}: this machine has cgroup version 1")
    cpu = ("cpu.weight", "cpu.max") if version == 2 else ("cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us")
    memory = (
        ("memory.max", "memory.swap.max") if version == 2 else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    )
    ending = "max" if version == 2 else "limit_in_bytes"
    result = [
        *(("cpuset.cpus",) if asked.cpuset_cpus else ()),
        *(("cpuset.mems",) if asked.cpuset_mems else ()),
        *(cpu if asked.cpu_shares or asked.cpu_quota or asked.cpu_period else ()),
        *(f"hugetlb.{size}.{ending}" for size in sorted(asked.hugepage_limits)),
        *sorted(asked.unified),
        *(memory if asked.memory_limit or asked.memory_swap_limit else ()),
    ]
    return tuple(dict.fromkeys(result))


def plan(version: int, held: Mapping[str, str], asked: Resources, merged: Resources) -> tuple[Write, ...]:
    """Return the writes of an update, in an order in which each is allowed if the whole is.

    :param held: what the files of :func:`files` hold; a file that does not exist is left out.
    :param merged: what :func:`merge` returned.
    :raises FailedPrecondition: naming a file that is needed and missing: its controller is not there.
    """
    wanted = _plan_v2(held, asked, merged) if version == 2 else _plan_v1(held, asked, merged)
    wanted += [(key, asked.unified[key]) for key in sorted(asked.unified)]
    ending = "max" if version == 2 else "limit_in_bytes"
    pages = [(f"hugetlb.{size}.{ending}", str(limit)) for size, limit in sorted(asked.hugepage_limits.items())]
    result = []
    # Memory after the other fields: it is what the kernel refuses most, and taking back the others always works.
    for file, text in [*pages, *wanted]:
        if file not in held and file.startswith("hugetlb."):
            # The kubelet sends limits of huge pages with every update, also where nothing counts them.
            continue
        if file not in held:
            raise FailedPrecondition(
                f"the container's cgroup has no {file}", hint="the kernel or the cgroup tree lacks its controller"
            )
        if held[file].strip() != text:
            result.append(Write(file=file, text=text, before=held[file].strip()))
    return tuple(result)


def within(asked: Resources, above: tuple[int, int], held_period: int = 0) -> Resources:
    """Return what is asked for without a CPU quota that is larger than the one above.

    Version 1 refuses that, and the smaller one counts anyway. A kubelet asks the runtime before it gives the pod's
    cgroup, which is above a sandbox's, the quota of a resize (kubelet, ``setPodCgroupConfig``).

    :param above: quota and period in µs of the nearest cgroup above that has a quota.
    :param held_period: in µs, what is in force if none is asked for; 0: the default.
    """
    quota, period = above
    if asked.cpu_quota * period <= quota * (asked.cpu_period or held_period or DEFAULT_PERIOD_US):
        return asked
    return msgspec.structs.replace(asked, cpu_quota=UNLIMITED)


def _cpusets(asked: Resources) -> list[tuple[str, str]]:
    given = (("cpuset.cpus", asked.cpuset_cpus), ("cpuset.mems", asked.cpuset_mems))
    return [(file, text) for file, text in given if text]


def _plan_v1(held: Mapping[str, str], asked: Resources, merged: Resources) -> list[tuple[str, str]]:
    result = _cpusets(asked)
    if asked.cpu_shares:
        result.append(("cpu.shares", str(merged.cpu_shares)))
    if asked.cpu_quota or asked.cpu_period:
        result += _bandwidth_v1(held, asked)
    if asked.memory_limit or asked.memory_swap_limit:
        result += _memory_v1(held, asked, merged)
    return result


def _bandwidth_v1(held: Mapping[str, str], asked: Resources) -> list[tuple[str, str]]:
    """Order quota and period so that the share of CPU between the two writes is no larger than needed.

    The kernel compares it with the parent's after each write, and refuses more.
    """
    period, quota = asked.cpu_period, asked.cpu_quota
    writes = []
    if period:
        writes.append(("cpu.cfs_period_us", str(period)))
    if quota:
        writes.append(("cpu.cfs_quota_us", str(quota)))
    if period and quota:
        old_period, old_quota = int(held.get("cpu.cfs_period_us", "0") or 0), int(held.get("cpu.cfs_quota_us", "-1"))
        period_first = _ratio(old_quota, period)
        quota_first = _ratio(quota, old_period or DEFAULT_PERIOD_US)
        if quota < 0 or quota_first < period_first:  # no quota of its own is always allowed
            writes.reverse()
    return writes


def _ratio(quota: int, period: int) -> float:
    return float("inf") if quota < 0 else quota / period


def _memory_v1(held: Mapping[str, str], asked: Resources, merged: Resources) -> list[tuple[str, str]]:
    limit = merged.memory_limit
    swap = merged.memory_swap_limit or limit
    writes = [("memory.limit_in_bytes", str(limit))] if asked.memory_limit else []
    swap_file = "memory.memsw.limit_in_bytes"
    # Without swap accounting there is no such file; a limit that only repeats the memory limit is then kept anyway.
    if swap_file in held or asked.memory_swap_limit not in {0, limit}:
        writes.append((swap_file, str(swap)))
    # memory + swap must never be below memory alone, also between the two writes.
    grows = swap < 0 or swap > int(held.get(swap_file, "0") or 0)
    return writes[::-1] if grows else writes


def _plan_v2(held: Mapping[str, str], asked: Resources, merged: Resources) -> list[tuple[str, str]]:
    result = _cpusets(asked)
    if asked.cpu_shares:
        result.append(("cpu.weight", str(weight_of(merged.cpu_shares))))
    if asked.cpu_quota or asked.cpu_period:
        old_quota, _, old_period = held.get("cpu.max", "max").strip().partition(" ")
        quota = asked.cpu_quota or (UNLIMITED if old_quota == "max" else int(old_quota))
        period = asked.cpu_period or int(old_period or DEFAULT_PERIOD_US)
        result.append(("cpu.max", f"{_limit_v2(quota)} {period}"))
    if asked.memory_limit or asked.memory_swap_limit:
        limit = merged.memory_limit
        swap = merged.memory_swap_limit or limit
        # OCI's limit is memory and swap together, that of version 2 swap alone.
        alone = UNLIMITED if swap < 0 else swap - limit
        if "memory.swap.max" in held or alone != 0:
            result.append(("memory.swap.max", _limit_v2(alone)))
        if asked.memory_limit:
            result.append(("memory.max", _limit_v2(limit)))
    return result


def _limit_v2(value: int) -> str:
    return "max" if value < 0 else str(value)


def total(resources: Resources, overhead: Resources) -> Resources:
    """Return the limits of a whole pod: its containers' and its overhead together; without a limit there is none."""
    period = resources.cpu_period or overhead.cpu_period
    quota = _sum(resources.cpu_quota, overhead.cpu_quota if overhead.cpu_period in {0, period} else 0)
    return msgspec.structs.replace(
        resources,
        cpu_period=period,
        cpu_quota=quota,
        cpu_shares=_sum(resources.cpu_shares, overhead.cpu_shares),
        memory_limit=_sum(resources.memory_limit, overhead.memory_limit),
        memory_swap_limit=_sum(resources.memory_swap_limit, overhead.memory_limit),
        oom_score_adj=0,
    )


def _sum(value: int, more: int) -> int:
    """Add an overhead to a limit; without a limit (0 or negative) there is nothing to add to."""
    return value + max(more, 0) if value > 0 else value
