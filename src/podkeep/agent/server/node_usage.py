"""What the machine uses, for ``/stats/summary``: CPU time, memory, swap, network, processes, from /proc.

A machine's memory and CPU time are read where every kernel has them, not from the root cgroup, which has no memory
figures in version 2. Working set, usage and rss are cAdvisor's: what is not free, without the page cache that the
kernel would drop first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.cgroup import cgroup_files
from podkeep.kernel.cgroup.cgroup_files import Psi
from podkeep.kernel.network import netdev
from podkeep.kernel.network.netdev import Interface
from podkeep.kernel.process import totals

_IGNORED = ("lo", "veth", "docker", "nerdctl", "cbr")
"""Beginnings of the names of interfaces that are pods' or of none (cAdvisor: isIgnoredDevice)."""
PROC = Path("/proc")


class NodeUsage(FrozenStruct, kw_only=True):
    """Sizes in bytes."""

    cpu_ns: int
    usage: int
    working_set: int
    available: int
    rss: int
    page_faults: int
    major_page_faults: int
    swap_usage: int
    swap_available: int
    interfaces: tuple[Interface, ...]
    pressure: Mapping[str, Psi]
    """Of ``cpu``, ``memory`` and ``io``, where the kernel has it."""
    processes: int
    max_processes: int


def read(proc: Path = PROC) -> NodeUsage:
    """Return what the machine uses now. Blocking, for some 0.2 ms.

    :raises Internal: if the kernel's texts are none that are known.
    """
    memory, events = totals.memory(proc), totals.table(totals.text(proc / "vmstat"))
    total, free = memory["MemTotal"], memory["MemFree"]
    usage = total - free
    working_set = max(0, usage - memory.get("Inactive(file)", 0))
    swap = memory.get("SwapTotal", 0)
    return NodeUsage(
        cpu_ns=_cpu_ns(totals.text(proc / "stat")),
        usage=usage,
        working_set=working_set,
        available=max(0, total - working_set),
        rss=memory.get("AnonPages", 0),
        page_faults=events.get("pgfault", 0),
        major_page_faults=events.get("pgmajfault", 0),
        swap_usage=swap - memory.get("SwapFree", 0),
        swap_available=memory.get("SwapFree", 0),
        interfaces=_interfaces(proc),
        pressure=_pressure(proc),
        processes=totals.tasks(proc),
        max_processes=totals.max_tasks(proc),
    )


def boot_time(proc: Path = PROC) -> float:
    """Return when the machine was booted, in seconds since 1970."""
    return next(
        (float(line.split()[1]) for line in totals.text(proc / "stat").splitlines() if line.startswith("btime")), 0.0
    )


def _interfaces(proc: Path) -> tuple[Interface, ...]:
    found = netdev.parse(totals.text(proc / "net/dev"))
    return tuple(item for item in found if not item.name.startswith(_IGNORED))


def _cpu_ns(stat: str) -> int:
    """Return the time that all processors worked: neither idle nor waiting for a disk; guests are in user time."""
    ticks = [int(word) for word in stat.partition("\n")[0].split()[1:9]]
    # /proc/stat: user, nice, system, then idle and iowait, then irq, softirq, steal (proc_stat(5)).
    busy = sum(ticks[:3]) + sum(ticks[5:8])
    return busy * (10**9 // os.sysconf("SC_CLK_TCK"))


def _pressure(proc: Path) -> dict[str, Psi]:
    found = {}
    for name in ("cpu", "memory", "io"):
        try:
            found[name] = cgroup_files.psi((proc / "pressure" / name).read_bytes())
        except OSError:
            continue
    return {name: value for name, value in found.items() if value is not None}
