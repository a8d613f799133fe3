"""One mapping for all pods of a node (KEP-127 draft): reading it, and an fsGroup in it. Pure.

Owns: what ``agent.uid_mapping`` and ``agent.gid_mapping`` mean. Does not own: which pods get it (``choice``), blocks of
pods' own and records of both (``blocks``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from podkeep.agent.user_namespaces import subordinate_ids
from podkeep.agent.user_namespaces.subordinate_ids import Granted
from podkeep.base.errors import InvalidArgument
from podkeep.base.text.printable import printable
from podkeep.kernel.namespace.idmap import IdMap, IdMapping

_NAMES = ("agent.uid_mapping (--uid-mapping)", "agent.gid_mapping (--gid-mapping)")
"""The settings, and the flags of those who give them on the command line."""
_EXTENT = re.compile(r"([0-9]{1,10}):([0-9]{1,10}):([0-9]{1,10})", re.ASCII)
_EXAMPLE = "write container_id:host_id:length, several separated by commas, as in 0:100000:65536"
_ANY = (IdMapping(container_id=0, host_id=1, length=1),)
"""A side of a mapping with which nothing is wrong."""
_SHOWN = 60
_RESERVED = 65536
"""Below are IDs of the node's own users and files (KEP-127, configuration of ranges)."""


def read(uids: str, gids: str) -> IdMap | None:
    """Return the mapping that both settings say; ``None`` if neither says anything.

    :raises InvalidArgument: naming the flag: if one of the two is missing, has another form, breaks a rule of
        user_namespaces(7), does not map ID 0 of the pod, or maps ID 0 of the node.
    """
    if not uids and not gids:
        return None
    for text, name, other in zip((uids, gids), _NAMES, reversed(_NAMES), strict=True):
        if not text:
            raise InvalidArgument(f"{other} is given without {name}", hint="give both, or neither")
    id_map = IdMap(uids=_extents(uids, _NAMES[0]), gids=_extents(gids, _NAMES[1]))
    # Each side for itself, so that the message can name the flag.
    _check(structs.replace(id_map, gids=_ANY), id_map.uids, _NAMES[0])
    _check(structs.replace(id_map, uids=_ANY), id_map.gids, _NAMES[1])
    return id_map


def _sides(id_map: IdMap) -> tuple[tuple[Sequence[IdMapping], str], ...]:
    return (id_map.uids, _NAMES[0]), (id_map.gids, _NAMES[1])


def _check(id_map: IdMap, extents: Sequence[IdMapping], name: str) -> None:
    try:
        id_map.validate()
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error.message}", hint=error.hint) from error
    for extent in extents:
        if extent.host_id == 0:
            raise InvalidArgument(
                f"{name}: {extent} maps ID 0 of the node: pods would be its root",
                hint="map to host IDs that nothing else has, such as 0:100000:65536",
            )


def _extents(text: str, name: str) -> tuple[IdMapping, ...]:
    found = []
    for part in text.split(","):
        match = _EXTENT.fullmatch(part)
        if match is None:
            shown = printable(part[:_SHOWN])
            raise InvalidArgument(f"{name}: {shown!r} is not container_id:host_id:length", hint=_EXAMPLE)
        container_id, host_id, length = map(int, match.groups())
        found.append(IdMapping(container_id=container_id, host_id=host_id, length=length))
    return tuple(found)


def warnings(id_map: IdMap, granted: Sequence[Granted] = ()) -> Iterator[str]:
    """Yield what is unwise about a mapping of the node.

    :param granted: the ranges that users of the machine have.
    """
    for extents, name in _sides(id_map):
        for extent in extents:
            if extent.host_id < _RESERVED:
                yield f"{name}: {extent} has host IDs below {_RESERVED}, which the node's own users and files have"
            if others := [item for item in granted if item.overlaps(extent.host_id, extent.length)]:
                yield f"{name}: {extent} has host IDs of others: {subordinate_ids.holders(others)}"


def with_fs_group(id_map: IdMap, group: int) -> IdMap:
    """Return ``id_map`` with a group of the node as the pod's group of the same number (KEP-127 draft, volumes).

    The kernel wants no ID of either side mapped twice: what ``group`` was mapped to on either side is mapped no more.

    :raises InvalidArgument: if that cannot be: the pod's GID 0 would not be mapped, or would be the node's, or the
        kernel takes no more extents.
    """
    wanted = IdMapping(container_id=group, host_id=group, length=1)
    # The mapping has the group as itself already.
    if any(item.container_id == item.host_id and item.container_id <= group < _end(item) for item in id_map.gids):
        return id_map
    if group == 0:
        raise InvalidArgument(
            "fsGroup 0 is the root group of the node, where fsGroup is one of its groups",
            hint="choose another fsGroup, or set `hostUsers: true`",
        )
    rest = [
        # Both the pod's GID of that number and the pod's GID that has the group as its host ID have to go.
        piece
        for item in id_map.gids
        for piece in _without(item, {group - item.container_id, group - item.host_id})
    ]
    if not any(item.container_id == 0 for item in rest):
        raise InvalidArgument(
            f"fsGroup {group} is the group of the node that the pod's GID 0 is mapped to, which must stay mapped",
            hint="choose another fsGroup, or set `hostUsers: true`",
        )
    found = structs.replace(id_map, gids=tuple(sorted((*rest, wanted), key=lambda item: item.container_id)))
    try:
        found.validate()
    except InvalidArgument as error:
        raise InvalidArgument(f"fsGroup {group}: {error.message}", hint=error.hint) from error
    return found


def _end(item: IdMapping) -> int:
    return item.container_id + item.length


def _without(item: IdMapping, offsets: Iterable[int]) -> Iterator[IdMapping]:
    """Yield what is left of an extent when the IDs at ``offsets`` are cut out."""
    start = 0
    for offset in sorted(offsets):
        if start <= offset < item.length:
            yield from _piece(item, start, offset)
            start = offset + 1
    yield from _piece(item, start, item.length)


def _piece(item: IdMapping, start: int, end: int) -> Iterator[IdMapping]:
    if start < end:
        yield IdMapping(container_id=item.container_id + start, host_id=item.host_id + start, length=end - start)
