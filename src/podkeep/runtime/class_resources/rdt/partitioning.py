"""Divides a cache among partitions that do not overlap.

Pure. Percentages become bits in goresctrl's way, so that a file means the same under both: the smallest first, the last
gets what is left, and the masks follow one another from the lowest bit in the order of the partitions' names. Does not
own: what a class gets of its partition (``allocation.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

from podkeep.runtime.class_resources.rdt import bitmask
from podkeep.runtime.class_resources.rdt.hardware import Cache
from podkeep.runtime.class_resources.rdt.proportions import (
    Access,
    Bits,
    CacheValue,
    Kind,
    PerCache,
    Proportion,
    Share,
)

Requests = Mapping[str, PerCache[CacheValue] | None]
"""By partition, sorted by name; None: it does not ask."""


def check(requests: Requests, *, kind: Kind) -> None:
    """Check what can be said without hardware about the partitions' requests for one level of cache.

    A cache is judged if every partition says something about it: what is not written means all of the cache, which is
    an error only on a machine that has it.

    :raises InvalidArgument: if some partitions ask and others do not, relative and absolute are mixed, or together they
        ask for more than there is.
    """
    asking = _all_or_none(requests, kind=kind)
    named = {cache for request in asking.values() for cache in request.by_id}
    for cache in (*sorted(named), None):
        values = {name: each.rest if cache is None else each.get(cache) for name, each in asking.items()}
        known = {name: value for name, value in values.items() if value is not None}
        if len(known) == len(asking) > 0:
            others = "each cache that is not named" if named else "each cache"
            what = f"{kind.upper()}, {others if cache is None else f'cache {cache}'}"
            for access in Access:
                _agree(known, access=access, what=what)


def divide(requests: Requests, cache: Cache, number: int) -> dict[str, dict[Access, int]]:
    """Return for each partition its masks of one cache; code and data where they were asked for.

    :param number: ID of the cache.
    :return: empty, if no partition asks for this level of cache.
    :raises InvalidArgument: as :func:`check`, and if it does not fit this hardware.
    """
    asking = _all_or_none(requests, kind=Kind(cache.level.lower()))
    if not asking:
        return {}
    what = f"{cache.level}, cache {number}"
    values: dict[str, CacheValue] = {}
    for name, each in asking.items():
        everything = CacheValue(unified=Share(node=each.node, low=0, high=100))
        values[name] = each.get(number) or everything
    found: dict[str, dict[Access, int]] = {name: {} for name in values}
    for access in Access:
        shares = _agree(values, access=access, what=what)
        if not shares:
            continue
        absolute = {name: share for name, share in shares.items() if isinstance(share, Bits)}
        relative = {name: share for name, share in shares.items() if isinstance(share, Share)}
        masks = _absolute(absolute, cache, what) if absolute else _relative(relative, cache, what)
        for name, mask in masks.items():
            found[name][access] = mask
    return found


def _all_or_none(requests: Requests, *, kind: Kind) -> dict[str, PerCache[CacheValue]]:
    """Return the requests, if every partition asks; nothing, if none does."""
    asking = {name: request for name, request in requests.items() if request is not None}
    silent = [name for name in requests if name not in asking]
    if asking and silent:
        first = next(iter(asking.values()))
        raise first.node.error(
            f"the partitions {', '.join(silent)} have no {kind.value}Allocation",
            hint="if one partition has a part of a cache, every one needs its own, or they would overlap",
        )
    return asking


def _agree(values: Mapping[str, CacheValue], *, access: Access, what: str) -> dict[str, Proportion]:
    """Return what is written for one access, after checking that it can be together; empty if nobody wrote anything.

    This is checked for code and data also where the hardware does not tell them apart, as a file is for many machines.
    """
    shares = {name: share for name, value in values.items() if (share := value.written(access)) is not None}
    missing = [name for name in values if name not in shares]
    if not shares:
        return {}
    first = next(iter(shares.values()))
    if missing:
        raise first.node.error(
            f"{what}: the partitions {', '.join(missing)} have no {access.value!r}",
            hint="if one partition tells code and data apart, every one has to",
        )
    odd = next((share for share in shares.values() if type(share) is not type(first)), None)
    if odd:
        raise odd.node.error(
            f"{what}: {odd} is {_way(odd)}, and {first} at {first.node.place} is {_way(first)}",
            hint="for one cache write percentages for all partitions, or masks for all of them",
        )
    total = sum(share.high for share in shares.values() if isinstance(share, Share))
    if total > 100:
        asked = ", ".join(f"{name} {share}" for name, share in shares.items())
        raise first.node.error(
            f"{what}: the partitions ask for {total}% of {access.value} together ({asked})",
            hint="make it 100% at most; a partition that names neither this cache nor 'all' asks for 100% of it",
        )
    _refuse_overlap(shares, what)
    return shares


def _refuse_overlap(shares: Mapping[str, Proportion], what: str) -> None:
    taken: dict[str, Bits] = {}
    for name, share in shares.items():
        if not isinstance(share, Bits):
            continue
        for other, bits in taken.items():
            if share.mask & bits.mask:
                raise share.node.error(
                    f"{what}: bits {bitmask.text(share.mask & bits.mask)} of {share} are also those of the partition"
                    f" {other!r} ({bits} at {bits.node.place})",
                    hint="partitions share no bit; classes in one partition may",
                )
        taken[name] = share


def _absolute(shares: Mapping[str, Bits], cache: Cache, what: str) -> dict[str, int]:
    for share in shares.values():
        text = bitmask.problem(share.mask, supported=cache.mask, least=cache.least, sparse=cache.sparse)
        if text:
            raise share.node.error(f"{what}: {share} {text}")
    return {name: share.mask for name, share in shares.items()}


def _relative(shares: Mapping[str, Share], cache: Cache, what: str) -> dict[str, int]:
    available = bitmask.bits(cache.mask)
    counts = _counts({name: share.high for name, share in shares.items()}, bits=len(available), least=cache.least)
    if counts is None:
        first = next(iter(shares.values()))
        raise first.node.error(
            f"{what}: {len(shares)} partitions need {len(shares) * cache.least} bits,"
            f" {cache.least} each, and it has {len(available)}",
            hint="put classes that may share cache into one partition",
        )
    masks: dict[str, int] = {}
    start = 0
    for name in shares:
        masks[name] = bitmask.of(available[start : start + counts[name]])
        start += counts[name]
    return masks


def _counts(percents: Mapping[str, int], *, bits: int, least: int) -> dict[str, int] | None:
    """Return how many bits each partition gets; None: there are too few for all.

    Nobody gets less than ``least``; where that takes more than the percentages allow together, they get that.
    """
    total = sum(percents.values())
    granted = max(total * bits // 100, len(percents) * least)
    if granted > bits:
        return None
    left = granted
    counts: dict[str, int] = {}
    order = sorted(percents, key=lambda name: percents[name])
    for index, name in enumerate(order):
        waiting = len(order) - index - 1
        percent_left = max(1, left * total // granted)
        count = max(least, percents[name] * left // percent_left)
        counts[name] = min(count, left - waiting * least) if waiting else left
        left -= counts[name]
    return counts


def _way(share: Proportion) -> str:
    return "a part" if isinstance(share, Share) else "a mask"
