"""The file of RDT partitions and classes, as goresctrl defines it (doc/rdt.md), read strictly.

Owns: the keys, and every check that needs no hardware, so that a file can be judged on any machine. Does not own: how a
value is written (``proportions.py``), what it becomes on this machine (``allocation.py``).

Stricter than goresctrl: unknown keys and units, a cache that is named twice, a class called ``default``, and names that
the Kubernetes API could not carry are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.class_resources import yamlfile
from podkeep.runtime.class_resources.model import Origin, check_class
from podkeep.runtime.class_resources.rdt import partitioning
from podkeep.runtime.class_resources.rdt.proportions import (
    Access,
    BandwidthValue,
    Bits,
    CacheValue,
    Kind,
    Location,
    PerCache,
    Share,
    bandwidth_request,
    bits_inside,
    cache_request,
)
from podkeep.runtime.class_resources.yamlfile import Node

ROOT_CLASS = "system/default"
"""goresctrl's name of the root group, in which everything is that has no class; an empty name means it, too."""
_ALLOCATIONS = {Kind.L2: "l2Allocation", Kind.L3: "l3Allocation", Kind.MB: "mbAllocation"}
_DENYING = {"denyPodAnnotation": Origin.POD, "denyContainerAnnotation": Origin.CONTAINER}
_RESERVED = frozenset("info mon_groups mon_data tasks cpus cpus_list schemata mode size mba_MBps_event".split())
"""What is in resctrl's root directory and so cannot be a group."""


class Request(FrozenStruct, kw_only=True):
    """What a partition or a class asks for; None: the key is not there."""

    caches: Mapping[Kind, PerCache[CacheValue]]
    mb: PerCache[BandwidthValue] | None = None

    def of(self, kind: Kind) -> PerCache[CacheValue] | PerCache[BandwidthValue] | None:
        """Return what it asks for of ``kind``, if it does."""
        return self.mb if kind is Kind.MB else self.caches.get(kind)

    def needs(self, kind: Kind) -> bool:
        """Does it ask for a limit of ``kind``? All of something needs no hardware."""
        asked = self.of(kind)
        return asked is not None and not all(value.is_everything for value in asked.values())


class ClassConfig(Location, kw_only=True):
    """A class: a control group of resctrl."""

    name: str
    request: Request
    denied: frozenset[Origin] = frozenset()
    """Whose annotations may not ask for it (``kubernetes.denyPodAnnotation``, ``denyContainerAnnotation``)."""


class PartitionConfig(Location, kw_only=True):
    """A part of the caches that no other partition has, and the classes in it."""

    name: str
    request: Request
    classes: tuple[ClassConfig, ...]
    """In the file's order."""


class Configuration(FrozenStruct, kw_only=True):
    """A whole file."""

    source: str
    optional: Mapping[Kind, bool]
    """``options.<kind>.optional``, where it is written."""
    partitions: tuple[PartitionConfig, ...]
    """By name, which is the order in which they get their parts."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of all classes, sorted."""
        return tuple(sorted(each.name for partition in self.partitions for each in partition.classes))


def load(path: Path) -> Configuration:
    """Read a file; :func:`read` says what it may raise."""
    return read(yamlfile.load(path))


def read(root: Node) -> Configuration:
    """Return what a file says.

    :param root: its tree.
    :raises InvalidArgument: naming file, line and key, if it is not in order whatever the hardware.
    """
    fields = root.fields({"options", "partitions"})
    entries = fields["partitions"].entries() if "partitions" in fields else {}
    configuration = Configuration(
        source=root.source,
        optional=_optional(fields["options"]) if "options" in fields else {},
        partitions=tuple(_partition(name, node) for name, node in sorted(entries.items())),
    )
    _check_unique(configuration)
    for kind in (Kind.L2, Kind.L3):
        partitioning.check({each.name: each.request.caches.get(kind) for each in configuration.partitions}, kind=kind)
    return configuration


def _optional(node: Node) -> dict[Kind, bool]:
    found: dict[Kind, bool] = {}
    for name, option in node.fields([kind.value for kind in Kind]).items():
        fields = option.fields({"optional"})
        if "optional" in fields:
            found[Kind(name)] = fields["optional"].boolean()
    return found


def _partition(name: str, node: Node) -> PartitionConfig:
    fields = node.fields({*_ALLOCATIONS.values(), "classes"})
    request = _request(fields)
    for cache in request.caches.values():
        for value in cache.values():
            for share in map(value.written, Access):
                if isinstance(share, Share) and share.is_range:
                    raise share.node.error(
                        f"a partition cannot have a range such as {share}",
                        hint="partitions are laid out one after the other: write how much it gets, or which bits",
                    )
    entries = fields["classes"].entries() if "classes" in fields else {}
    classes = tuple(_class(each, entry) for each, entry in entries.items())
    for each in classes:
        _check_inside(each, name, request)
    return PartitionConfig(node=node, name=name, request=request, classes=classes)


def _class(name: str, node: Node) -> ClassConfig:
    if name in {"", ROOT_CLASS}:
        name = ROOT_CLASS
    else:
        check_class(name, key=node.place)
        if name in _RESERVED:
            raise node.error(f"{name!r} is a name of resctrl's own", hint="give the class another name")
    fields = node.fields({*_ALLOCATIONS.values(), "kubernetes"})
    denies = fields["kubernetes"].fields(_DENYING) if "kubernetes" in fields else {}
    denied = frozenset(_DENYING[key] for key, value in denies.items() if value.boolean())
    return ClassConfig(node=node, name=name, request=_request(fields), denied=denied)


def _request(fields: Mapping[str, Node]) -> Request:
    bandwidth = fields.get(_ALLOCATIONS[Kind.MB])
    return Request(
        caches={
            kind: cache_request(fields[_ALLOCATIONS[kind]])
            for kind in (Kind.L2, Kind.L3)
            if _ALLOCATIONS[kind] in fields
        },
        mb=None if bandwidth is None else bandwidth_request(bandwidth),
    )


def _check_inside(each: ClassConfig, partition: str, request: Request) -> None:
    """Raise if a class divides what its partition does not have."""
    for kind, key in _ALLOCATIONS.items():
        asked = each.request.of(kind)
        if asked and not request.of(kind):
            raise asked.node.error(
                f"the partition {partition!r} has no {key}, of which the class {each.name!r} could get a part",
                hint=f"give every partition its {key}",
            )
    for kind, asked_of_cache in each.request.caches.items():
        _check_masks(asked_of_cache, request.caches[kind], kind)


def _check_masks(asked: PerCache[CacheValue], base: PerCache[CacheValue], kind: Kind) -> None:
    """Raise if a class's mask is outside of its partition's, where both are written as masks."""
    for cache in (*sorted({*asked.by_id, *base.by_id}), None):
        mine, all_of_it = (each.rest if cache is None else each.get(cache) for each in (asked, base))
        if mine is None or all_of_it is None:
            continue
        for access in Access:
            share, whole = mine.effective(access), all_of_it.effective(access)
            if isinstance(share, Bits) and isinstance(whole, Bits):
                allocation_of = kind.upper() if cache is None else f"{kind.upper()}, cache {cache}"
                bits_inside(share, whole.mask, what=allocation_of)


def _check_unique(configuration: Configuration) -> None:
    found: dict[str, ClassConfig] = {}
    for partition in configuration.partitions:
        for each in partition.classes:
            if each.name in found:
                raise each.node.error(
                    f"the class {each.name!r} is there twice, first at {found[each.name].node.place}",
                    hint="the names of classes are unique across partitions",
                )
            found[each.name] = each
