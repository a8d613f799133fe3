"""Whom the files of a volume belong to: fsGroup, and on a node with one mapping root of the pod.

The group is the number that the pod's author wrote. With a mapping for each pod it is an ID inside the pod's user
namespace; the idmapped mount shifts it, so the number on disk is the same as without a user namespace, and nothing is
changed for a mapping (KEP-127, handling of volumes). On a node with one mapping, mounts are plain: the group is one of
the node, mapped as itself, and what would belong to the node's root belongs to the pod's (KEP-127 draft, volumes).
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from podkeep.base.errors import KernelCallError, ResourceExhausted
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.files import openat
from podkeep.kernel.files.openat import Found
from podkeep.kernel.namespace.idmap import IdMap, IdMapping

log = logging.getLogger(__name__)

_UNCHANGEABLE = frozenset({errno.EPERM, errno.EROFS})
_READ_WRITE = 0o660
_READ_ONLY = 0o440
_DIRECTORY = stat.S_ISGID | 0o110
_LEAVE = -1
"""An ID that chown(2) leaves as it is."""


class Owners(FrozenStruct, kw_only=True):
    """Whom the files of a pod's volumes belong to on disk.

    :ivar id_map: the pod's mapping, if its volumes are mounted plainly; ``None``: owners on disk are what they would be
        without a user namespace.
    :ivar group: the pod's ``fsGroup``.
    """

    id_map: IdMap | None = None
    group: int | None = None

    @property
    def root(self) -> tuple[int, int]:
        """UID and GID of what the pod is to see as its root's."""
        if self.id_map is None:
            return os.geteuid(), os.getegid()
        return self.id_map.host_uid(0), self.id_map.host_gid(0)

    def user(self, inside: int) -> int:
        """Return the UID on disk of a user of the pod.

        :raises InvalidArgument: if the pod's user namespace does not have it.
        """
        return inside if self.id_map is None else self.id_map.host_uid(inside)

    def change_of(self, status: os.stat_result) -> tuple[int, int]:
        """Return the UID and the GID that a file on disk is to get; -1: it keeps its own.

        What belongs to an ID of the mapping is left to it: it is data that the pod, or one before it, gave away itself.
        Nor is a device of the node given to anybody but the group.
        """
        uid = gid = _LEAVE
        if self.id_map is not None and not _is_device(status):
            root_uid, root_gid = self.root
            uid = _LEAVE if _has(self.id_map.uids, status.st_uid) else root_uid
            gid = _LEAVE if _has(self.id_map.gids, status.st_gid) else root_gid
        return uid, gid if self.group is None else self.group


UNCHANGED = Owners()
"""Files belong to whoever makes them."""


def _is_device(status: os.stat_result) -> bool:
    return stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode)


def _has(mappings: tuple[IdMapping, ...], outside: int) -> bool:
    return any(item.host_id <= outside < item.host_id + item.length for item in mappings)


def give(root: Path, owners: Owners, *, writable: bool) -> None:
    """Give everything from ``root`` down to ``owners``, as :func:`give_tree` does.

    :raises OSError: if the kernel refuses.
    """
    with openat.closing(openat.open_directory(root)) as fd:
        give_tree(fd, owners, writable=writable)


def give_tree(root: int, owners: Owners, *, writable: bool) -> None:
    """Give the directory behind ``root`` and all below to ``owners``.

    If they have a group, all is readable and (if ``writable``) writable for it, and new files in directories inherit
    it. Symbolic links are owned, not followed; mounts are not entered.

    What cannot be changed keeps its owners, and is told in the log: another pod with the volume may have made it
    immutable (chattr(1)), or read-only (a subvolume of btrfs), and would keep others from the volume. So does what is
    more, or deeper, than a walk takes.

    :raises KernelCallError: if something cannot be opened.
    :raises OSError: if the kernel refuses.
    """
    kept = _Kept()
    with kept.noted("."):
        _give(root, owners, writable)
    try:
        for found in openat.walk(root, too_deep=partial(kept.note, "there are too many directories inside each other")):
            with kept.noted(found.path):
                _give_entry(found, owners, writable)
    except ResourceExhausted as error:
        kept.note(error.message)
    if kept.number:
        log.warning("%d files or directories of a volume keep their owners: %s", kept.number, kept.first)


@dataclass
class _Kept:
    """What could not be changed."""

    number: int = 0
    first: str = ""

    @contextmanager
    def noted(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _UNCHANGEABLE:
                raise
            self.note(f"{path[:200]!r}: {error.strerror}")

    def note(self, why: str) -> None:
        self.number += 1
        self.first = self.first or why


def _give_entry(found: Found, owners: Owners, writable: bool) -> None:
    if stat.S_ISLNK(found.status.st_mode):
        uid, gid = owners.change_of(found.status)
        with suppress(FileNotFoundError):  # gone meanwhile
            os.chown(found.name, uid, gid, dir_fd=found.directory, follow_symlinks=False)
        return
    # A pod may change the tree during the walk: what is opened is the entry itself, and no mount that came over it.
    rules = openat.CONFINED | openat.Resolve.NO_XDEV
    try:
        fd = openat.openat2(found.directory, os.fsencode(found.name), os.O_PATH, rules)
    except KernelCallError as error:
        if error.errno in openat.NOT_THERE:
            return
        raise
    with openat.closing(fd):
        _give(fd, owners, writable)


def mode_for_group(mode: int, *, writable: bool) -> int:
    """Return the permission bits that something with this ``st_mode`` gets."""
    wanted = mode | (_READ_WRITE if writable else _READ_ONLY)
    if stat.S_ISDIR(mode):
        wanted |= _DIRECTORY
    return stat.S_IMODE(wanted)


def belongs(root: os.stat_result, owners: Owners, *, writable: bool) -> bool:
    """Return whether the root of a volume looks as if the volume was given to ``owners`` (OnRootMismatch)."""
    uid, gid = owners.change_of(root)
    if uid != _LEAVE or gid not in {_LEAVE, root.st_gid} or not stat.S_ISDIR(root.st_mode):
        return False
    wanted = 0 if owners.group is None else mode_for_group(stat.S_IFDIR, writable=writable)
    return root.st_mode & wanted == wanted


def _give(fd: int, owners: Owners, writable: bool) -> None:
    status = os.fstat(fd)
    uid, gid = owners.change_of(status)
    openat.change(fd, uid=uid, gid=gid)
    if owners.group is not None:
        # Only now: the change of the owner has cleared what would run programs as the owner.
        openat.change(fd, mode=mode_for_group(os.fstat(fd).st_mode, writable=writable))
