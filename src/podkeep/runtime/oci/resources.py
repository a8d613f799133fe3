"""Resource limits of a container: their rules, and OCI's form of them. Pure.

Sources: CRI, LinuxContainerResources; OCI runtime-spec, config-linux.md, Control groups; the ranges are the kernel's
(cgroup-v1/memory.rst, cgroup-v2.rst, scheduler/sched-bwc.rst). The OCI runtime turns what is written in version 1's
terms (shares, memory with swap) into version 2's.
"""

from __future__ import annotations

import re
from typing import Any

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.model.records import Resources

MIN_CPU_QUOTA_US = 1000
CPU_PERIOD_US = range(1000, 1_000_001)
CPU_SHARES = (2, 262144)
"""What the kernel makes of smaller and larger shares on version 1; on version 2 an OCI runtime would fail on them."""
OOM_SCORES = range(-1000, 1001)
UNLIMITED = -1
MAX_TEXT = 4095
"""Characters that one write to a cgroup's file can hold: a page."""
MAX_ENTRIES = 64
_INT64 = 2**63
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_PAGE_SIZE = re.compile(r"[1-9][0-9]{0,5}(KB|MB|GB)")
_UNIFIED_KEY = re.compile(r"[a-z][a-z0-9_]*(\.[A-Za-z0-9_]+)+")


class ResourceFacts(FrozenStruct, kw_only=True):
    """What the machine's cgroups can limit. ``page_sizes``: of the huge pages that the machine has, like ``2MB``."""

    version: int = 1
    swap: bool = True
    hugetlb: bool = True
    page_sizes: frozenset[str] = frozenset()
    pids_limit: int = 0
    """Processes and threads that a container may have; 0: no limit."""


def check_values(field: str, asked: Resources) -> None:
    """Check each limit against the kernel's range for it.

    :param field: what holds them in the request, for the error.
    :raises InvalidArgument: naming the field.
    """
    _check_cpu(field, asked)
    _check_memory(field, asked)
    for name in ("cpuset_cpus", "cpuset_mems"):
        text = getattr(asked, name)
        if text and not _is_list(text):
            raise InvalidArgument(f"{field}.{name}: {_short(text)} is not a list of numbers", hint="like 0-3,7")
    if asked.oom_score_adj not in OOM_SCORES:
        raise InvalidArgument(f"{field}.oom_score_adj: {asked.oom_score_adj} is not between -1000 and 1000")
    if len(asked.hugepage_limits) > MAX_ENTRIES:
        raise InvalidArgument(f"{field}.hugepage_limits: more than {MAX_ENTRIES} entries")
    for size, limit in asked.hugepage_limits.items():
        if not _PAGE_SIZE.fullmatch(size):
            raise InvalidArgument(f"{field}.hugepage_limits: {_short(size)} is no page size", hint="like 2MB or 1GB")
        if not 0 <= limit < _INT64:
            raise InvalidArgument(f"{field}.hugepage_limits: {limit} bytes of {size} is no limit")
    _check_unified(f"{field}.unified", asked)


def _check_cpu(field: str, asked: Resources) -> None:
    if asked.cpu_period and asked.cpu_period not in CPU_PERIOD_US:
        raise InvalidArgument(f"{field}.cpu_period: {asked.cpu_period} is not between 1000 and 1000000 microseconds")
    if asked.cpu_quota not in {0, UNLIMITED} and asked.cpu_quota < MIN_CPU_QUOTA_US:
        raise InvalidArgument(
            f"{field}.cpu_quota: {asked.cpu_quota} is less than {MIN_CPU_QUOTA_US} microseconds",
            hint="-1 means no limit",
        )
    if asked.cpu_shares < 0:
        raise InvalidArgument(f"{field}.cpu_shares: {asked.cpu_shares} is negative")


def _check_memory(field: str, asked: Resources) -> None:
    for name in ("memory_limit", "memory_swap_limit"):
        if (value := getattr(asked, name)) < UNLIMITED:
            raise InvalidArgument(f"{field}.{name}_in_bytes: {value} is negative", hint="-1 means no limit")


def check_whole(field: str, asked: Resources) -> None:
    """Check the limits that a container starts with against each other.

    :raises InvalidArgument: naming the field.
    """
    limit, swap = asked.memory_limit, asked.memory_swap_limit
    if swap > 0 and limit <= 0:
        raise InvalidArgument(
            f"{field}.memory_swap_limit_in_bytes: {swap} without a memory limit",
            hint="it limits memory and swap together: set memory_limit_in_bytes as well",
        )
    if 0 < swap < limit:
        raise InvalidArgument(
            f"{field}.memory_swap_limit_in_bytes: {swap} is less than memory_limit_in_bytes, {limit}",
            hint="it limits memory and swap together",
        )


def _check_unified(field: str, asked: Resources) -> None:
    if len(asked.unified) > MAX_ENTRIES:
        raise InvalidArgument(f"{field}: more than {MAX_ENTRIES} entries")
    for key, value in asked.unified.items():
        # Files of the core (cgroup.kill, cgroup.procs) limit nothing: they move and end processes.
        if len(key) > MAX_TEXT or not _UNIFIED_KEY.fullmatch(key) or key.startswith("cgroup."):
            raise InvalidArgument(
                f"{field}: {_short(key)} is no file of a cgroup's controller", hint="like memory.high"
            )
        if len(value) > MAX_TEXT or not value.isascii() or "\0" in value:
            raise InvalidArgument(f"{field}: the value of {key}, {_short(value)}, cannot be written to it")


def _is_list(text: str) -> bool:
    """Return whether the kernel reads ``text`` as a list of CPUs or nodes (cpuset(7), List format)."""
    if len(text) > MAX_TEXT:
        return False
    for item in text.split(","):
        found = _RANGE.fullmatch(item)
        if found is None or (found[2] is not None and int(found[1]) > int(found[2])):
            return False
    return True


def _short(text: str) -> str:
    return repr(text) if len(text) <= 64 else f"{text[:61]!r}..."


def to_oci(asked: Resources, facts: ResourceFacts) -> dict[str, Any]:
    """Return ``linux.resources`` without devices.

    Where a machine does not account for swap or huge pages there is nothing to limit, and the limits are left out, as
    every CRI runtime does: the kubelet sends them with every container.

    :raises InvalidArgument: if files of cgroup version 2 are asked for on version 1, or the machine has no huge pages
        of a size.
    """
    result: dict[str, Any] = {}
    low, high = CPU_SHARES
    cpu = {
        "shares": min(max(asked.cpu_shares, low), high) if asked.cpu_shares else 0,
        "quota": asked.cpu_quota,
        "period": asked.cpu_period,
        "cpus": asked.cpuset_cpus,
        "mems": asked.cpuset_mems,
    }
    memory = {"limit": asked.memory_limit}
    if facts.swap:
        # OCI's value is memory and swap together: the same as the memory limit means no swap.
        memory["swap"] = asked.memory_swap_limit or asked.memory_limit
    for name, values in (("cpu", cpu), ("memory", memory)):
        given = {key: value for key, value in values.items() if value}
        if given:
            result[name] = given
    if missing := sorted(asked.hugepage_limits.keys() - facts.page_sizes):
        raise InvalidArgument(
            f"resources.hugepage_limits: this machine has no huge pages of {', '.join(missing)}",
            hint=f"it has: {', '.join(sorted(facts.page_sizes)) or 'none'}",
        )
    if asked.hugepage_limits and facts.hugetlb:
        limits = sorted(asked.hugepage_limits.items())
        result["hugepageLimits"] = [{"pageSize": size, "limit": limit} for size, limit in limits]
    if asked.unified:
        if facts.version == 1:
            raise InvalidArgument(
                f"resources.unified: {', '.join(sorted(asked.unified))}: this machine has cgroup version 1",
                hint="boot with systemd.unified_cgroup_hierarchy=1, or leave them out",
            )
        result["unified"] = asked.unified
    if facts.pids_limit:
        result["pids"] = {"limit": facts.pids_limit}
    return result
