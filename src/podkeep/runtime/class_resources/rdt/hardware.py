"""What this machine can allocate, from resctrl's own description of itself.

Pure: :func:`read` is given the texts of ``info/`` and ``schemata``. No vendor and no model of processor is looked at:
what the kernel says there is all that counts (Documentation/filesystems/resctrl.rst). Does not own: reading files
(``kernel/cgroup/resctrl.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from podkeep.base.errors import FailedPrecondition
from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.class_resources.model import RDT, problem
from podkeep.runtime.class_resources.rdt import schemata as schemata_text

UNLIMITED_MBPS = (1 << 32) - 1
"""resctrl's value for "no limit" where bandwidth is in MBps (MBA_MAX_MBPS)."""
_PERCENT = 100


class Cache(FrozenStruct, kw_only=True):
    """Cache of one level that can be divided (``info/L3``, or ``info/L3CODE`` and ``info/L3DATA``)."""

    level: str
    """``L2`` or ``L3``."""
    ids: tuple[int, ...]
    mask: int
    """Every bit there is (``cbm_mask``)."""
    least: int
    """Bits that a mask needs at least (``min_cbm_bits``), 1 or more."""
    shareable: int
    """Bits that other hardware, such as a device that writes into the cache, may use as well (``shareable_bits``)."""
    sparse: bool
    """Bits of a mask need not be neighbours (``sparse_masks``)."""
    cdp: bool
    """Code and data have masks of their own."""
    closids: int

    @property
    def resources(self) -> tuple[str, ...]:
        """Return the names of its lines in ``schemata``."""
        return (f"{self.level}CODE", f"{self.level}DATA") if self.cdp else (self.level,)


class Bandwidth(FrozenStruct, kw_only=True):
    """Memory bandwidth that can be limited (``info/MB``)."""

    ids: tuple[int, ...]
    minimum: int
    """Least value (``min_bandwidth``)."""
    step: int
    """The kernel rounds up to a multiple of this (``bandwidth_gran``)."""
    maximum: int
    """The value that means no limit: 100 where values are percent, the hardware's own where they are its own units."""
    mbps: bool
    """Values are MBps, because resctrl is mounted with ``mba_MBps``."""
    closids: int


class Hardware(FrozenStruct, kw_only=True):
    """What can be allocated, and how many groups there can be."""

    l2: Cache | None = None
    l3: Cache | None = None
    mb: Bandwidth | None = None
    monitoring: tuple[str, ...] = ()
    """What can be measured (``info/L3_MON/mon_features``)."""

    @property
    def caches(self) -> tuple[Cache, ...]:
        return tuple(cache for cache in (self.l2, self.l3) if cache)

    @property
    def closids(self) -> int:
        """Return how many control groups there can be with the root group; 0: nothing can be allocated."""
        return min((each.closids for each in (self.l2, self.l3, self.mb) if each), default=0)


def read(
    info: Mapping[str, str],
    schemata: Sequence[str],
    *,
    mount_options: Collection[str] = (),
    bandwidth_maximum: int | None = None,
) -> Hardware:
    """Return what the kernel describes.

    :param info: files under ``info/`` by their path in it, such as ``L3/cbm_mask``, and their texts.
    :param schemata: texts of ``schemata`` files: the root group's first, then those of the other groups, which together
        show what ``info`` does not tell: the IDs of caches, and the largest value of bandwidth.
    :param mount_options: of the resctrl file system.
    :param bandwidth_maximum: largest value of bandwidth that the kernel says it takes (in its answer to one that is too
        large); None: the largest that ``schemata`` shows, which is less if no group is without limit.
    :raises FailedPrecondition: naming the file, if a text is not what the kernel documents.
    """
    try:
        groups = [schemata_text.parse(text) for text in schemata]
        return Hardware(
            l2=_cache("L2", info, groups),
            l3=_cache("L3", info, groups),
            mb=_bandwidth(info, groups, mbps="mba_MBps" in mount_options, maximum=bandwidth_maximum),
            monitoring=tuple(info.get("L3_MON/mon_features", "").split()),
        )
    except ValueError as error:
        raise FailedPrecondition(
            problem(RDT, f"resctrl describes itself in a way that is not understood: {error}"),
            hint="compare info/ and schemata with the kernel's Documentation/filesystems/resctrl.rst",
        ) from error


_Groups = Sequence[Mapping[str, Mapping[int, int]]]


def _cache(level: str, info: Mapping[str, str], groups: _Groups) -> Cache | None:
    cdp = f"{level}CODE/cbm_mask" in info
    if not cdp and f"{level}/cbm_mask" not in info:
        return None
    resources = (f"{level}CODE", f"{level}DATA") if cdp else (level,)
    mask = _number(info, f"{resources[0]}/cbm_mask", base=16)
    if not mask:
        raise ValueError(f"info/{resources[0]}/cbm_mask has no bit")
    return Cache(
        level=level,
        ids=_ids(resources[0], groups),
        mask=mask,
        least=max(1, *(_number(info, f"{name}/min_cbm_bits") for name in resources)),
        shareable=_number(info, f"{resources[0]}/shareable_bits", base=16, default=0),
        sparse=all(_number(info, f"{name}/sparse_masks", default=0) == 1 for name in resources),
        cdp=cdp,
        closids=min(_number(info, f"{name}/num_closids") for name in resources),
    )


def _bandwidth(info: Mapping[str, str], groups: _Groups, *, mbps: bool, maximum: int | None) -> Bandwidth | None:
    if "MB/min_bandwidth" not in info:
        return None
    shown = max((value for group in groups for value in group.get("MB", {}).values()), default=_PERCENT)
    # The mount options need not say so; a value that only MBps can have does.
    mbps = mbps or shown == UNLIMITED_MBPS
    return Bandwidth(
        ids=_ids("MB", groups),
        minimum=_number(info, "MB/min_bandwidth"),
        step=max(1, _number(info, "MB/bandwidth_gran", default=1)),
        maximum=UNLIMITED_MBPS if mbps else maximum or max(_PERCENT, shown),
        mbps=mbps,
        closids=_number(info, "MB/num_closids"),
    )


def _ids(resource: str, groups: _Groups) -> tuple[int, ...]:
    ids = groups[0].get(resource) if groups else None
    if not ids:
        raise ValueError(f"info/{resource} is there, and the root's schemata has no line {resource}")
    return tuple(sorted(ids))


def _number(info: Mapping[str, str], name: str, *, base: int = 10, default: int | None = None) -> int:
    text = info.get(name)
    if text is None:
        if default is None:
            raise ValueError(f"info/{name} is missing")
        return default
    try:
        return int(text, base)
    except ValueError as error:
        raise ValueError(f"info/{name}: {text.strip()!r} is no number") from error
