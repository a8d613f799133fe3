"""User and group ID mappings of a user namespace: values, rules and the text the kernel reads.

Pure: no system calls. The rules are user_namespaces(7), "User and group ID mappings", and the rule of the CRI tests
that ID 0 of the container is always mapped. Used by the runtime (parsing a request), the agent (allocating) and the
namespace helper's client.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct

MAX_ID = 2**32 - 2
"""The largest ID; 2^32-1 means "no ID" to the kernel."""
MAX_USER = 2**31 - 1
"""The largest user or group that a container may be told to run as, by a request or by its image (Kubernetes'
validation of ``runAsUser``). Owners of user namespaces come after it (``nshelper.py``): nothing may run as these.
"""
MAX_EXTENTS = 340
"""UID_GID_MAP_MAX_EXTENTS of the kernel (since Linux 4.15)."""
MAX_TEXT_BYTES = 4096
"""A write to uid_map or gid_map must be shorter than one page; 4096 is the smallest page in use."""


class IdMapping(FrozenStruct, kw_only=True):
    """``length`` IDs from ``container_id`` inside are the IDs from ``host_id`` outside.

    The fields are those of the OCI runtime-spec, config-linux.md, "User namespace mappings".
    """

    container_id: int
    host_id: int
    length: int

    def __str__(self) -> str:
        return f"{self.container_id}:{self.host_id}:{self.length}"


class IdMap(FrozenStruct, kw_only=True):
    """The mappings of one user namespace; UIDs and GIDs may differ (KEP-127: an fsGroup entry is in the GIDs only)."""

    uids: tuple[IdMapping, ...]
    gids: tuple[IdMapping, ...]

    def validate(self) -> None:
        """Check every rule of the kernel and of the CRI that can be checked without trying.

        :raises InvalidArgument: if a list is empty, an entry is empty or out of range, entries overlap inside or
            outside, container ID 0 is not mapped, or the list is too long for the kernel.
        """
        _validate("UID", self.uids)
        _validate("GID", self.gids)

    def host_uid(self, container_uid: int) -> int:
        """Return the host UID of ``container_uid``.

        :raises InvalidArgument: if it is not mapped.
        """
        return _to_host("UID", self.uids, container_uid)

    def host_gid(self, container_gid: int) -> int:
        """Return the host GID of ``container_gid``.

        :raises InvalidArgument: if it is not mapped.
        """
        return _to_host("GID", self.gids, container_gid)

    def container_uid(self, host_uid: int) -> int:
        """Return the container UID that ``host_uid`` is; the inverse of :meth:`host_uid`.

        :raises InvalidArgument: if it is not mapped.
        """
        return _to_container("UID", self.uids, host_uid)

    def container_gid(self, host_gid: int) -> int:
        """Return the container GID that ``host_gid`` is; the inverse of :meth:`host_gid`.

        :raises InvalidArgument: if it is not mapped.
        """
        return _to_container("GID", self.gids, host_gid)


def proc_text(mappings: Sequence[IdMapping]) -> str:
    """Return the lines for ``/proc/<pid>/uid_map`` or ``gid_map``, to be written in a single write."""
    return "".join(f"{item.container_id} {item.host_id} {item.length}\n" for item in mappings)


def block(host_id: int, length: int) -> IdMap:
    """Return the map of a pod's block: container IDs 0 to ``length``-1 from ``host_id`` up, for UIDs and GIDs alike."""
    mappings = (IdMapping(container_id=0, host_id=host_id, length=length),)
    return IdMap(uids=mappings, gids=mappings)


def _validate(name: str, mappings: Sequence[IdMapping]) -> None:
    if not mappings:
        raise InvalidArgument(f"user namespace without {name} mappings")
    for item in mappings:
        if item.length <= 0:
            raise InvalidArgument(f"{name} mapping {item} has no length")
        for first in (item.container_id, item.host_id):
            if first < 0 or first + item.length - 1 > MAX_ID:
                raise InvalidArgument(f"{name} mapping {item} leaves the range 0 to {MAX_ID}")
    for side in ("container_id", "host_id"):
        in_order = sorted(mappings, key=lambda item: int(getattr(item, side)))
        for one, other in pairwise(in_order):
            if getattr(one, side) + one.length > getattr(other, side):
                where = "container" if side == "container_id" else "host"
                raise InvalidArgument(f"{name} mappings {one} and {other} overlap on the {where} side")
    # The namespace helper becomes the root of the user namespace, and the CRI tests expect one.
    if not any(item.container_id == 0 for item in mappings):
        raise InvalidArgument(f"{name} 0 of the container is not mapped", hint="map container ID 0 to a host ID")
    # The kernel takes the whole map in one write, of less than a page.
    size = len(proc_text(mappings))
    if len(mappings) > MAX_EXTENTS or size >= MAX_TEXT_BYTES:
        raise InvalidArgument(
            f"{len(mappings)} {name} mappings ({size} bytes) are more than the kernel takes",
            hint=f"at most {MAX_EXTENTS} entries in less than {MAX_TEXT_BYTES} bytes: join neighbouring ranges",
        )


def _to_host(name: str, mappings: Sequence[IdMapping], inside: int) -> int:
    for item in mappings:
        if item.container_id <= inside < item.container_id + item.length:
            return item.host_id + inside - item.container_id
    raise InvalidArgument(f"{name} {inside} of the container is not mapped by {_list(mappings)}")


def _to_container(name: str, mappings: Sequence[IdMapping], outside: int) -> int:
    for item in mappings:
        if item.host_id <= outside < item.host_id + item.length:
            return item.container_id + outside - item.host_id
    raise InvalidArgument(f"{name} {outside} of the host is not mapped by {_list(mappings)}")


def _list(mappings: Sequence[IdMapping]) -> str:
    return ", ".join(str(item) for item in mappings)
