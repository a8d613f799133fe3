"""From a file and the hardware to what every class gets: the lines of its ``schemata``.

Pure, and driven by resctrl's ``info/`` alone. A class's share is one of its partition's. Values are rounded as the
kernel rounds them, so that what is written can be compared with what is read back. Does not own: how partitions divide
a cache (``partitioning.py``), writing (``groups.py``), or drawing (``explain.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from podkeep.base.errors import FailedPrecondition, ResourceExhausted
from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.class_resources.model import Origin
from podkeep.runtime.class_resources.rdt import bitmask, partitioning, schemata
from podkeep.runtime.class_resources.rdt.configuration import (
    ROOT_CLASS,
    ClassConfig,
    Configuration,
    PartitionConfig,
    Request,
)
from podkeep.runtime.class_resources.rdt.hardware import UNLIMITED_MBPS, Bandwidth, Cache, Hardware
from podkeep.runtime.class_resources.rdt.proportions import (
    Access,
    BandwidthValue,
    Bits,
    CacheValue,
    Kind,
    PerCache,
    Proportion,
    bits_inside,
)

Values = Mapping[str, Mapping[int, int]]
"""Resource, as ``schemata`` names it, to cache ID to mask or bandwidth."""
_ACCESSES = {"": Access.UNIFIED, "CODE": Access.CODE, "DATA": Access.DATA}
_NAMES = {Kind.L2: "L2 cache", Kind.L3: "L3 cache", Kind.MB: "memory bandwidth"}


class PartitionPlan(FrozenStruct, kw_only=True):
    """What a partition has."""

    name: str
    masks: Values
    """By resource, for caches that the partitions divide; a resource that is missing is everybody's."""
    classes: tuple[str, ...]
    """Sorted; with the root group's, without those that are not available."""


class ClassPlan(FrozenStruct, kw_only=True):
    """What a class gets."""

    name: str
    partition: str
    values: Values
    denied: frozenset[Origin] = frozenset()
    """Whose annotations may not ask for it."""

    @property
    def schemata(self) -> tuple[str, ...]:
        """Return the lines to write into its group's ``schemata``, without newlines."""
        return schemata.lines(self.values)


class Plan(FrozenStruct, kw_only=True):
    """What a file means on this machine."""

    source: str
    """The file."""
    hardware: Hardware
    partitions: tuple[PartitionPlan, ...]
    classes: Mapping[str, ClassPlan]
    """What is offered, sorted by name; without the root group."""
    unavailable: Mapping[str, str]
    """Classes of the file that this machine cannot give, and why."""
    warnings: tuple[str, ...]
    root: ClassPlan | None = None
    """For the root group, if the file has ``system/default``."""
    foreign: tuple[str, ...] = ()
    """Control groups that are not ours and take CLOSIDs."""


def plan(configuration: Configuration, hardware: Hardware, *, foreign: Collection[str] = ()) -> Plan:
    """Return what ``configuration`` means on ``hardware``.

    :param foreign: names of control groups that are there, are not ours and will stay.
    :raises InvalidArgument: if the file does not fit the hardware: masks overlap, or are none that the kernel takes.
    :raises FailedPrecondition: if hardware is missing that ``options`` call not optional.
    :raises ResourceExhausted: if there are more classes than CLOSIDs.
    """
    unavailable: dict[str, str] = {}
    plans: dict[str, ClassPlan] = {}
    divided = {cache.level: _divide(configuration, cache) for cache in hardware.caches}
    for partition in configuration.partitions:
        for each in partition.classes:
            why = _why_not(configuration, partition, each, hardware)
            if why:
                unavailable[each.name] = why
            else:
                plans[each.name] = _class_plan(partition, each, hardware, divided)
    # The root group is there anyway, and nobody can ask for it.
    root = plans.pop(ROOT_CLASS, None)
    # One with the name of a class is adopted (groups.py): it has its CLOSID already.
    others = tuple(sorted(set(foreign) - set(plans)))
    _check_budget(configuration, hardware, plans, others)
    partitions = tuple(
        PartitionPlan(
            name=partition.name,
            masks={
                resource: {number: masks[partition.name] for number, masks in by_id.items()}
                for of_level in divided.values()
                for resource, by_id in of_level.items()
            },
            classes=tuple(sorted(each.name for each in partition.classes if each.name not in unavailable)),
        )
        for partition in configuration.partitions
    )
    return Plan(
        source=configuration.source,
        hardware=hardware,
        partitions=partitions,
        classes=dict(sorted(plans.items())),
        unavailable=dict(sorted(unavailable.items())),
        warnings=tuple(_warnings(configuration, hardware, partitions, root)),
        root=root,
        foreign=others,
    )


def everything(hardware: Hardware) -> tuple[str, ...]:
    """Return the lines of a group without limits, such as the root group's after the machine started."""
    values: dict[str, dict[int, int]] = {
        resource: dict.fromkeys(cache.ids, cache.mask) for cache in hardware.caches for resource in cache.resources
    }
    if hardware.mb:
        values["MB"] = dict.fromkeys(hardware.mb.ids, hardware.mb.maximum)
    return schemata.lines(values)


_Divided = dict[str, dict[int, dict[str, int]]]
"""Resource to cache ID to partition to mask."""


def _divide(configuration: Configuration, cache: Cache) -> _Divided:
    """Return the masks of the partitions; empty, if they do not divide this cache."""
    kind = Kind(cache.level.lower())
    requests = {partition.name: partition.request.caches.get(kind) for partition in configuration.partitions}
    found: _Divided = {}
    for number in cache.ids:
        masks = partitioning.divide(requests, cache, number)
        for resource in cache.resources if masks else ():
            access = _ACCESSES[resource.removeprefix(cache.level)]
            found.setdefault(resource, {})[number] = {
                name: by_access.get(access, by_access[Access.UNIFIED]) for name, by_access in masks.items()
            }
    return found


def _why_not(configuration: Configuration, partition: PartitionConfig, each: ClassConfig, hardware: Hardware) -> str:
    """Return why this machine cannot give a class; empty if it can.

    :raises FailedPrecondition: if the file says that it must.
    """
    present = {Kind.L2: hardware.l2, Kind.L3: hardware.l3, Kind.MB: hardware.mb}
    for kind, found in present.items():
        asked = each.request.of(kind) or partition.request.of(kind)
        if found or not asked:
            continue
        optional = configuration.optional.get(kind)
        key = f"options.{kind.value}.optional"
        if optional is False:
            raise FailedPrecondition(
                f"{asked.node.place}: this machine cannot allocate {_NAMES[kind]}, and {key} is false",
                hint=f"set {key} to true, or check the processor, the kernel and how resctrl is mounted",
            )
        if optional is None and (each.request.needs(kind) or partition.request.needs(kind)):
            return (
                f"it has a part of the {_NAMES[kind]} ({asked.node.place}), which this machine cannot allocate;"
                f" {key}: true offers the class without it"
            )
    return "" if hardware.closids else "this machine can allocate neither cache nor memory bandwidth"


def _check_budget(
    configuration: Configuration, hardware: Hardware, plans: Mapping[str, ClassPlan], others: tuple[str, ...]
) -> None:
    # The root group has a CLOSID, too.
    wanted = len(plans) + len(others) + 1
    if plans and wanted > hardware.closids:
        strangers = f", {len(others)} of others ({', '.join(others)})" if others else ""
        remove = ", or remove unused control groups" if others else ""
        raise ResourceExhausted(
            f"{configuration.source}: {wanted} control groups are needed, and this machine has {hardware.closids}:"
            f" the root group, {len(plans)} classes{strangers}",
            hint=f"define fewer classes{remove}; with CDP the processor has half as many",
        )


def _class_plan(
    partition: PartitionConfig, each: ClassConfig, hardware: Hardware, divided: Mapping[str, _Divided]
) -> ClassPlan:
    values: dict[str, dict[int, int]] = {}
    for cache in hardware.caches:
        request = each.request.caches.get(Kind(cache.level.lower()))
        for resource in cache.resources:
            parts = divided[cache.level].get(resource, {})
            values[resource] = {
                number: _mask(request, parts[number][partition.name] if parts else cache.mask, cache, resource, number)
                for number in cache.ids
            }
    if hardware.mb:
        values["MB"] = {
            number: _bandwidth(partition.request, each.request, hardware.mb, number) for number in hardware.mb.ids
        }
    return ClassPlan(name=each.name, partition=partition.name, values=values, denied=each.denied)


def _mask(request: PerCache[CacheValue] | None, base: int, cache: Cache, resource: str, number: int) -> int:
    """Return the bits that a class gets of ``base``, its partition's.

    :raises InvalidArgument: if they are not inside, or not what the kernel takes.
    """
    value = request.get(number) if request else None
    if value is None:
        return base
    share: Proportion = value.effective(_ACCESSES[resource.removeprefix(cache.level)])
    what = f"{resource}, cache {number}"
    if isinstance(share, Bits):
        mask = bits_inside(share, base, what=what)
    else:
        try:
            mask = bitmask.part(base, low=share.low, high=share.high, least=cache.least)
        except ValueError as error:
            raise share.node.error(f"{what}: {error}", hint="give the partition more") from error
    text = bitmask.problem(mask, supported=cache.mask, least=cache.least, sparse=cache.sparse)
    if text:
        raise share.node.error(f"{what}: {share} {text}")
    return mask


def _bandwidth(partition: Request, each: Request, mb: Bandwidth, number: int) -> int:
    """Return the value of a class: in MBps the smaller of the two limits, else its percentage of its partition's."""
    limits = [request.mb.get(number) for request in (partition, each) if request.mb]
    if mb.mbps:
        return min(_mbps(limit) for limit in limits) if limits else UNLIMITED_MBPS
    value = mb.maximum
    for limit in limits:
        value = value * _percent(limit) // 100
    # Upwards, as the kernel does with what is no multiple of bandwidth_gran (resctrl.rst).
    rounded = -(-max(value, mb.minimum) // mb.step) * mb.step
    return min(rounded, mb.maximum)


def _mbps(limit: BandwidthValue | None) -> int:
    if limit is None or (limit.mbps is None and limit.is_everything):
        return UNLIMITED_MBPS
    if limit.mbps is None:
        raise limit.node.error(
            "has no limit in MBps, and resctrl is mounted with mba_MBps", hint='add one: ["50%", "1000MBps"]'
        )
    return limit.mbps


def _percent(limit: BandwidthValue | None) -> int:
    if limit is None:
        return 100
    if limit.percent is None:
        raise limit.node.error(
            "has no limit in percent, and this machine limits in percent",
            hint='add one: ["50%", "1000MBps"]; or mount resctrl with mba_MBps',
        )
    return limit.percent


def _warnings(
    configuration: Configuration, hardware: Hardware, partitions: tuple[PartitionPlan, ...], root: ClassPlan | None
) -> Iterator[str]:
    yield from _strange_ids(configuration, hardware)
    for cache in hardware.caches:
        parts = [each for each in partitions if cache.resources[0] in each.masks]
        alone = [each for each in parts if any(mask != cache.mask for mask in each.masks[cache.resources[0]].values())]
        if alone and root is None:
            yield (
                f"{configuration.source}: processes without a class may use all of the {cache.level} cache, also the"
                f" part of {', '.join(each.name for each in alone)};"
                f" a class {ROOT_CLASS} in a partition keeps them there"
            )
        if cache.cdp:
            yield from _mixed(configuration.source, cache, parts)


def _strange_ids(configuration: Configuration, hardware: Hardware) -> Iterator[str]:
    """Yield what is said about caches that are not there; one file may be for several machines."""
    known: dict[Kind, tuple[int, ...]] = {Kind(cache.level.lower()): cache.ids for cache in hardware.caches}
    if hardware.mb:
        known[Kind.MB] = hardware.mb.ids
    for partition in configuration.partitions:
        for request in (partition.request, *(each.request for each in partition.classes)):
            for kind, ids in known.items():
                asked = request.of(kind)
                if asked is not None and (strange := sorted(set(asked.by_id) - set(ids))):
                    yield (
                        f"{asked.node.place}: cache {', '.join(map(str, strange))} is not there;"
                        f" this machine has {', '.join(map(str, ids))}"
                    )


def _mixed(source: str, cache: Cache, parts: list[PartitionPlan]) -> Iterator[str]:
    """Yield where the code of one partition and the data of another are in the same bits."""
    code, data = cache.resources
    for one in parts:
        for other in parts:
            numbers = [number for number in cache.ids if one.masks[code][number] & other.masks[data][number]]
            if one is not other and numbers:
                yield (
                    f"{source}: code of the partition {one.name} and data of {other.name} share bits of the"
                    f" {cache.level} cache {', '.join(map(str, numbers))};"
                    " the same bits for code and data keep them apart"
                )
