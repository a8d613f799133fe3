"""Shows what a file of RDT classes means on this machine: text with the masks drawn, or JSON.

Pure; for ``podkeep classes check`` and verbose status. Does not own: the meaning (``allocation.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from podkeep.runtime.class_resources.model import Origin
from podkeep.runtime.class_resources.rdt import bitmask
from podkeep.runtime.class_resources.rdt.allocation import ClassPlan, PartitionPlan, Plan
from podkeep.runtime.class_resources.rdt.configuration import ROOT_CLASS
from podkeep.runtime.class_resources.rdt.hardware import Bandwidth, Cache

_SET = "#"
_FREE = "."
_INDENT = "  "
_SHARED = "(shared)"


def explain(plan: Plan) -> list[str]:
    """Return lines of text: what the machine has, partitions and classes as masks, groups, and what is to be known.

    Masks are drawn as the kernel shows them, the highest bit on the left. Caches with the same picture share one.
    """
    blocks = [list(_cache(plan, cache, resource)) for cache in plan.hardware.caches for resource in cache.resources]
    if plan.hardware.mb:
        blocks.append(list(_bandwidth(plan, plan.hardware.mb)))
    blocks.append(list(_groups(plan)))
    if plan.unavailable:
        blocks.append(["not offered:", *(f"{_INDENT}{name}: {why}" for name, why in plan.unavailable.items())])
    if plan.warnings:
        blocks.append(["to be known:", *(_INDENT + warning for warning in plan.warnings)])
    lines: list[str] = []
    for block in blocks:
        lines += ["", *block] if lines else block
    return lines


def describe(plan: Plan) -> dict[str, Any]:
    """Return the same as JSON: hardware, partitions, classes with the lines of their groups, warnings."""
    hardware = plan.hardware
    found: dict[str, Any] = {
        "file": plan.source,
        "closids": {"available": hardware.closids, "used": _used(plan), "others": list(plan.foreign)},
        "caches": {cache.level: _describe_cache(cache) for cache in hardware.caches},
        "monitoring": list(hardware.monitoring),
        "partitions": {
            each.name: {
                "masks": {
                    resource: {str(number): f"{mask:#x}" for number, mask in by_id.items()}
                    for resource, by_id in each.masks.items()
                },
                "classes": list(each.classes),
            }
            for each in plan.partitions
        },
        "classes": {
            each.name: {
                "partition": each.partition,
                "schemata": list(each.schemata),
                "denyPodAnnotation": Origin.POD in each.denied,
                "denyContainerAnnotation": Origin.CONTAINER in each.denied,
            }
            for each in _classes(plan)
        },
        "unavailable": dict(plan.unavailable),
        "warnings": list(plan.warnings),
    }
    if hardware.mb:
        unit = "MBps" if hardware.mb.mbps else _unit(hardware.mb)
        found["memoryBandwidth"] = {
            "ids": list(hardware.mb.ids),
            "unit": unit,
            "minimum": hardware.mb.minimum,
            "step": hardware.mb.step,
        }
    return found


def _describe_cache(cache: Cache) -> dict[str, Any]:
    return {
        "ids": list(cache.ids),
        "mask": f"{cache.mask:#x}",
        "minimumBits": cache.least,
        "shareable": f"{cache.shareable:#x}",
        "sparse": cache.sparse,
        "codeAndData": cache.cdp,
    }


def _classes(plan: Plan) -> list[ClassPlan]:
    """Return the classes in the order in which they are shown, the root group's last."""
    return [*plan.classes.values(), *([plan.root] if plan.root else [])]


def _used(plan: Plan) -> int:
    return 1 + len(plan.classes) + len(plan.foreign)


def _cache(plan: Plan, cache: Cache, resource: str) -> Iterator[str]:
    """Draw one resource: a picture for each set of caches that are divided alike."""
    width = cache.mask.bit_length()
    blocks = "of any bits" if cache.sparse else "of one block"
    yield f"{resource}: {cache.mask.bit_count()} bits; masks {blocks}, at least {cache.least} wide"
    names = max([len(_SHARED), *(len(_INDENT + name) for name in _names(plan))]) + len(_INDENT)
    for numbers in _alike(plan, resource, cache.ids):
        first = numbers[0]
        yield f"{_INDENT}cache {bitmask.listed(numbers)}"
        yield f"{_INDENT * 2}{'':{names}}{_ruler(width)}"
        for partition in plan.partitions:
            if resource in partition.masks:
                mask = partition.masks[resource][first]
                yield f"{_INDENT * 2}{partition.name:{names}}{_draw(mask, width)}  {_amount(mask, cache)}"
            for each in _of(plan, partition):
                mask = each.values[resource][first]
                label = _INDENT + each.name
                yield f"{_INDENT * 2}{label:{names}}{_draw(mask, width)}  {_amount(mask, cache)}"
        if cache.shareable:
            yield (
                f"{_INDENT * 2}{_SHARED:{names}}{_draw(cache.shareable, width)}  other hardware uses these bits, too"
            )


def _bandwidth(plan: Plan, mb: Bandwidth) -> Iterator[str]:
    unit = "MBps" if mb.mbps else _unit(mb)
    least = "" if mb.mbps else f", at least {mb.minimum}, in steps of {mb.step}"
    yield f"MB: memory bandwidth in {unit}{least}"
    names = max((len(name) for name in _names(plan)), default=0) + len(_INDENT)
    for numbers in _alike(plan, "MB", mb.ids):
        yield f"{_INDENT}cache {bitmask.listed(numbers)}"
        for partition in plan.partitions:
            for each in _of(plan, partition):
                value = each.values["MB"][numbers[0]]
                yield f"{_INDENT * 2}{each.name:{names}}{'no limit' if value == mb.maximum else value}"


def _groups(plan: Plan) -> Iterator[str]:
    if not plan.hardware.closids:
        yield "control groups: none, this machine can allocate neither cache nor memory bandwidth"
        return
    strangers = f", {len(plan.foreign)} of others ({', '.join(plan.foreign)})" if plan.foreign else ""
    root = f" ({ROOT_CLASS})" if plan.root else ""
    yield (
        f"control groups: {_used(plan)} of {plan.hardware.closids}:"
        f" the root group{root}, {len(plan.classes)} of classes{strangers}"
    )
    for each in _classes(plan):
        if words := " and ".join(origin for origin in (Origin.POD, Origin.CONTAINER) if origin in each.denied):
            yield f"{_INDENT}{each.name}: not by {words} annotation"


def _names(plan: Plan) -> Iterator[str]:
    for partition in plan.partitions:
        yield partition.name
        yield from partition.classes


def _of(plan: Plan, partition: PartitionPlan) -> list[ClassPlan]:
    return [each for each in _classes(plan) if each.partition == partition.name]


def _alike(plan: Plan, resource: str, ids: tuple[int, ...]) -> list[list[int]]:
    """Return the caches in sets in which everybody has the same."""
    pictures: dict[tuple[int, ...], list[int]] = {}
    shown: list[Mapping[int, int]] = [each.masks[resource] for each in plan.partitions if resource in each.masks]
    shown += [each.values[resource] for each in _classes(plan)]
    for number in ids:
        pictures.setdefault(tuple(values[number] for values in shown), []).append(number)
    return list(pictures.values())


def _draw(mask: int, width: int) -> str:
    return "".join(_SET if mask >> bit & 1 else _FREE for bit in reversed(range(width)))


def _ruler(width: int) -> str:
    """Return the numbers of the highest and the lowest bit above their columns."""
    highest = str(width - 1)
    return highest if width == 1 else f"{highest}{'0':>{width - len(highest)}}"


def _amount(mask: int, cache: Cache) -> str:
    percent = round(100 * mask.bit_count() / cache.mask.bit_count())
    digits = (cache.mask.bit_length() + 3) // 4
    return f"0x{mask:0{digits}x} {percent:>3}%  {'bit' if mask.bit_count() == 1 else 'bits'} {bitmask.text(mask)}"


def _unit(mb: Bandwidth) -> str:
    return "percent" if mb.maximum == 100 else f"units of the hardware, {mb.maximum} of them"
