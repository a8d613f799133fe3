"""What a file asks for: shares of a cache and of memory bandwidth, as they are written.

Pure. Does not own: the keys around them (``configuration.py``), or what they become on a machine (``partitioning.py``,
``allocation.py``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.class_resources.rdt import bitmask
from podkeep.runtime.class_resources.yamlfile import Node

T = TypeVar("T")

ALL = "all"
"""Stands for the caches that are not named."""
_UINT32 = 1 << 32
_CACHE_HINT = 'write a percentage such as "60%", bits such as "0-3", or a mask such as "0xf0"'
_MBPS = "MBps"


class Kind(enum.StrEnum):
    """What can be allocated."""

    L2 = "l2"
    L3 = "l3"
    MB = "mb"


class Access(enum.StrEnum):
    """Which accesses a part of a cache is for; code and data matter where the hardware tells them apart (CDP)."""

    UNIFIED = "unified"
    CODE = "code"
    DATA = "data"


class Location(FrozenStruct, kw_only=True):
    """Something that is written in a file, and where."""

    node: Node


class Share(Location, kw_only=True):
    """Percent of what there is: of the cache for a partition, of the partition's bits for a class."""

    low: int
    """0, unless it is a range."""
    high: int
    is_range: bool = False

    def __str__(self) -> str:
        return f"{self.low}-{self.high}%" if self.is_range else f"{self.high}%"


class Bits(Location, kw_only=True):
    """Bits of the cache for a partition; for a class counted from the lowest bit of its partition."""

    mask: int

    def __str__(self) -> str:
        return f"{self.mask:#x}"


Proportion = Share | Bits


class CacheValue(FrozenStruct, kw_only=True):
    """What is asked for of one cache; code and data are both there, or none."""

    unified: Proportion
    code: Proportion | None = None
    data: Proportion | None = None

    def written(self, access: Access) -> Proportion | None:
        found: Proportion | None = getattr(self, access)
        return found

    def effective(self, access: Access) -> Proportion:
        """Return what holds for ``access``: what is written for it, or else ``unified``."""
        return self.written(access) or self.unified

    @property
    def is_everything(self) -> bool:
        """Does it ask for no limit?"""
        shares = [self.effective(access) for access in Access]
        return all(isinstance(share, Share) and share.low <= 1 and share.high == 100 for share in shares)


class BandwidthValue(Location, kw_only=True):
    """Limits of memory bandwidth; which one counts is decided by how resctrl is mounted."""

    percent: int | None = None
    mbps: int | None = None

    @property
    def is_everything(self) -> bool:
        """Does it ask for no limit? Judged by the percentage, as most machines do."""
        return self.percent == 100


class PerCache(Location, Generic[T], kw_only=True):
    """Values by cache ID."""

    by_id: Mapping[int, T]
    rest: T | None
    """For every other cache; None: not written, which means all of it."""

    def values(self) -> list[T]:
        return [*self.by_id.values(), *([] if self.rest is None else [self.rest])]

    def get(self, cache: int) -> T | None:
        """Return the value of one cache; None: nothing is written for it."""
        return self.by_id.get(cache, self.rest)


def cache_request(node: Node) -> PerCache[CacheValue]:
    """Read ``l2Allocation`` or ``l3Allocation``: a proportion, or one (or unified, code, data) for each cache.

    :raises InvalidArgument: if it is anything else.
    """
    return _per_cache(node, _cache_value)


def bandwidth_request(node: Node) -> PerCache[BandwidthValue]:
    """Read ``mbAllocation``: a list of limits, or such a list for each cache.

    :raises InvalidArgument: if it is anything else.
    """
    return _per_cache(node, _bandwidth_value)


def bits_inside(share: Bits, base: int, *, what: str) -> int:
    """Return the bits of the cache that a class gets, whose partition has those of ``base``.

    :param what: the cache, for messages.
    :raises InvalidArgument: if they are not inside.
    """
    try:
        return bitmask.within(base, share.mask)
    except ValueError as error:
        most = base >> bitmask.bits(base)[0]
        hint = (
            f"bits of a class count from the lowest bit of its partition, which has {base:#x} here: at most {most:#x}"
        )
        raise share.node.error(f"{what}: {error}", hint=hint) from error


def _per_cache(node: Node, read: Callable[[Node], T]) -> PerCache[T]:
    """Read what is written for all caches, or for those that are named and for all others."""
    if not node.is_mapping:
        return PerCache(node=node, by_id={}, rest=read(node))
    named: dict[int, Node] = {}
    others: Node | None = None
    for key, value in node.entries().items():
        if key == ALL:
            others = value
            continue
        try:
            ids = bitmask.numbers(key, below=_UINT32)
        except ValueError as error:
            hint = f"keys here are cache IDs such as 0 or 0-1,3, and {ALL!r} for all others"
            if key in list(Access):
                hint = f"write {key} below a cache ID, or below {ALL!r}"
            raise value.error(f"not cache IDs: {error}", hint=hint) from error
        if len(named) > bitmask.MAX_NUMBERS:
            raise value.error(f"more than {bitmask.MAX_NUMBERS} caches are named")
        for cache in ids:
            if cache in named:
                raise value.error(f"cache {cache} is there twice, first in line {named[cache].line}")
            named[cache] = value
    by_id = {cache: read(value) for cache, value in named.items()}
    return PerCache(node=node, by_id=by_id, rest=None if others is None else read(others))


def _cache_value(node: Node) -> CacheValue:
    if not node.is_mapping:
        return CacheValue(unified=_proportion(node))
    found = {key: _proportion(value) for key, value in node.fields([access.value for access in Access]).items()}
    if Access.UNIFIED not in found:
        raise node.error("'unified' is missing", hint="it holds where code and data are not told apart")
    if (Access.CODE in found) != (Access.DATA in found):
        there, missing = (Access.CODE, Access.DATA) if Access.CODE in found else (Access.DATA, Access.CODE)
        raise node.error(f"has {there.value!r} without {missing.value!r}", hint="write both or none")
    return CacheValue(unified=found[Access.UNIFIED], code=found.get(Access.CODE), data=found.get(Access.DATA))


def _proportion(node: Node) -> Proportion:
    if node.is_null:
        raise node.error("nothing is written here", hint=f"{_CACHE_HINT}; leave the key out for all of it")
    text = node.text().strip()
    if text.endswith("%"):
        first, dash, last = text[:-1].partition("-")
        low, high = (_percent(node, first), _percent(node, last)) if dash else (0, _percent(node, first))
        if low > high:
            raise node.error(f"the range {text!r} does not rise")
        if not high:
            raise node.error(f"{text!r} is nothing of the cache", hint='the least that can be asked for is "1%"')
        return Share(node=node, low=low, high=high, is_range=bool(dash))
    try:
        return Bits(node=node, mask=bitmask.parse(text))
    except ValueError as error:
        raise node.error(str(error), hint=_CACHE_HINT) from error


def _bandwidth_value(node: Node) -> BandwidthValue:
    hint = (
        'write a list of one or two limits: ["50%"], or ["50%", "1000MBps"] where resctrl may be mounted with mba_MBps'
    )
    entries = node.items() if node.is_list else []
    if not entries:
        raise node.error("must be a list of limits", hint=hint)
    percent: int | None = None
    mbps: int | None = None
    for entry in entries:
        text = entry.text().strip()
        if text.endswith("%") and percent is None:
            percent = _percent(entry, text[:-1])
        elif text.endswith(_MBPS) and mbps is None:
            mbps = _mbps(entry, text)
        elif text.endswith(("%", _MBPS)):
            raise entry.error(f"{text!r} is the second limit of its unit", hint=hint)
        else:
            raise entry.error(f"{text!r} has no unit that is known here: % or {_MBPS}", hint=hint)
    return BandwidthValue(node=node, percent=percent, mbps=mbps)


def _mbps(node: Node, text: str) -> int:
    value = _decimal(text.removesuffix(_MBPS))
    if value is None or not 0 < value < _UINT32:
        raise node.error(f"{text!r} is not 1 to {_UINT32 - 1} {_MBPS}")
    return value


def _percent(node: Node, text: str) -> int:
    value = _decimal(text)
    if value is None or value > 100:
        raise node.error(f"{text.strip()!r} is no whole percentage of 0 to 100")
    return value


def _decimal(text: str) -> int | None:
    return int(text) if bitmask.is_number(text.strip()) else None
