"""What a machine with resctrl has: the part of it that its ``info`` directory shows.

Owns: the description, a few well-known machines, and reading it from a mounted resctrl. Does not own: how the file
system behaves (``groups.py``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Cache:
    """Cache allocation of one level."""

    cbm_mask: int = 0xFFFFF
    min_cbm_bits: int = 1
    num_closids: int = 16
    """Of the hardware; with ``cdp`` half of them are left."""
    shareable_bits: int = 0
    sparse_masks: bool | None = False
    """None: a kernel before 6.7, whose ``info`` does not say."""
    cdp: bool = False
    """Mounted with separate masks for code and data."""
    io_alloc: bool = False
    """Devices have a class of their own, which takes a CLOSID that ``num_closids`` counts (Linux 6.19)."""
    domains: tuple[int, ...] = (0, 1)
    size: int = 35 << 20
    """Bytes of one domain's cache."""


@dataclass(frozen=True, kw_only=True)
class MemoryBandwidth:
    """Memory bandwidth allocation."""

    min_bandwidth: int = 10
    bandwidth_gran: int = 10
    max_bandwidth: int = 100
    """What ``info`` does not say, and a new group has."""
    delay_linear: int = 1
    num_closids: int = 8
    mbps: bool = False
    """Mounted with ``mba_MBps``: values are MiB/s, and there is no upper limit."""
    domains: tuple[int, ...] = (0, 1)


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """L3 monitoring."""

    num_rmids: int = 32
    events: tuple[str, ...] = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
    domains: tuple[int, ...] = (0, 1)


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One machine; what is None it does not have."""

    l3: Cache | None = None
    l2: Cache | None = None
    mb: MemoryBandwidth | None = None
    monitoring: Monitoring | None = None
    cpus: int = field(default_factory=lambda: os.cpu_count() or 1)
    task_lists: bool = True
    """Several process IDs in one write, separated by commas; False: a kernel before 6.7."""
    pseudo_locking: bool = False
    """A group can hold a part of a cache for one program."""
    movable_monitors: bool = True
    """A monitoring group can go to another control group; False: a kernel before 6.5."""


INTEL = Hardware(l3=Cache(), mb=MemoryBandwidth(), monitoring=Monitoring())
"""Two sockets of a Xeon."""
HASWELL = Hardware(
    l3=Cache(min_cbm_bits=2, num_closids=4, domains=(0,), sparse_masks=None), task_lists=False, movable_monitors=False
)
"""The first with cache allocation, and an old kernel: two bits at least, four classes."""
AMD = Hardware(
    l3=Cache(cbm_mask=0xFFFF, sparse_masks=True, domains=(0, 1, 2, 3), size=32 << 20),
    mb=MemoryBandwidth(
        min_bandwidth=1, bandwidth_gran=1, max_bandwidth=2048, delay_linear=1, num_closids=16, domains=(0, 1, 2, 3)
    ),
    monitoring=Monitoring(num_rmids=256, domains=(0, 1, 2, 3)),
)
"""Masks may have gaps, and bandwidth is in steps of 1/8 GB/s."""
ARM = Hardware(
    l3=Cache(cbm_mask=0xFFF, num_closids=32, sparse_masks=True, domains=(1,)), mb=MemoryBandwidth(domains=(1,))
)
"""MPAM: a cache whose ID is not 0, no monitoring."""
MONITORING_ONLY = Hardware(monitoring=Monitoring())


def read(info: Path) -> Hardware:
    """Return what the ``info`` directory of a mounted resctrl says; domains are those of the root's schemata."""
    schemata = {}
    if (info.parent / "schemata").exists():
        for line in (info.parent / "schemata").read_text().splitlines():
            name, _, values = line.strip().partition(":")
            schemata[name] = tuple(int(item.partition("=")[0]) for item in values.split(";"))
    mbps = (info.parent / "mba_MBps_event").exists() or "mba_MBps" in _options(info.parent)
    return Hardware(
        l3=_cache(info, "L3", schemata),
        l2=_cache(info, "L2", schemata),
        mb=_bandwidth(info / "MB", schemata.get("MB", ()), mbps=mbps),
        monitoring=_monitoring(info / "L3_MON"),
    )


def _options(mount: Path) -> set[str]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, _, options, *_ = line.split()
        if where == str(mount):
            return set(options.split(","))
    return set()


def _cache(info: Path, level: str, schemata: dict[str, tuple[int, ...]]) -> Cache | None:
    cdp = (info / f"{level}CODE").exists()
    directory = info / (f"{level}CODE" if cdp else level)
    if not directory.exists():
        return None
    sparse = directory / "sparse_masks"
    return Cache(
        cbm_mask=int((directory / "cbm_mask").read_text(), 16),
        min_cbm_bits=int((directory / "min_cbm_bits").read_text()),
        num_closids=int((directory / "num_closids").read_text()) * (2 if cdp else 1),
        shareable_bits=int((directory / "shareable_bits").read_text(), 16),
        sparse_masks=bool(int(sparse.read_text())) if sparse.exists() else None,
        cdp=cdp,
        domains=schemata[directory.name],
    )


def _bandwidth(directory: Path, domains: tuple[int, ...], *, mbps: bool) -> MemoryBandwidth | None:
    if not directory.exists():
        return None
    return MemoryBandwidth(
        min_bandwidth=int((directory / "min_bandwidth").read_text()),
        bandwidth_gran=int((directory / "bandwidth_gran").read_text()),
        delay_linear=int((directory / "delay_linear").read_text()),
        num_closids=int((directory / "num_closids").read_text()),
        mbps=mbps,
        domains=domains,
    )


def _monitoring(directory: Path) -> Monitoring | None:
    if not directory.exists():
        return None
    data = directory.parents[1] / "mon_data"
    return Monitoring(
        num_rmids=int((directory / "num_rmids").read_text()),
        events=tuple((directory / "mon_features").read_text().split()),
        domains=tuple(sorted(int(path.name.rpartition("_")[2]) for path in data.iterdir())),
    )
