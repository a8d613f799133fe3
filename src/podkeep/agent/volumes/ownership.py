"""fsGroup: giving a volume's files to a group.

The group is the number that the pod's author wrote. With ``hostUsers: false`` it is an ID inside the pod's user
namespace; the idmapped mount shifts it, so the number on disk is the same in both cases and nothing is changed for a
mapping (KEP-127, handling of volumes).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from podkeep.base.errors import KernelCallError
from podkeep.kernel.files import openat

_READ_WRITE = 0o660
_READ_ONLY = 0o440
_DIRECTORY = stat.S_ISGID | 0o110


def give_to_group(root: Path, group: int, *, writable: bool) -> None:
    """Make ``group`` own everything from ``root`` down, as :func:`give_tree_to_group` does.

    :raises OSError: if the kernel refuses.
    """
    with openat.closing(openat.open_directory(root)) as fd:
        give_tree_to_group(fd, group, writable=writable)


def give_tree_to_group(root: int, group: int, *, writable: bool) -> None:
    """Make ``group`` own the directory behind ``root`` and all below, readable and (if ``writable``) writable for it.

    New files in directories inherit the group. Symbolic links are owned, not followed; mounts are not entered.

    :raises ResourceExhausted: if there is more than a walk takes.
    :raises KernelCallError: if something cannot be opened.
    :raises OSError: if the kernel refuses.
    """
    _give(root, group, writable)
    for found in openat.walk(root):
        if stat.S_ISLNK(found.status.st_mode):
            os.chown(found.name, -1, group, dir_fd=found.directory, follow_symlinks=False)
            continue
        rules = openat.CONFINED | openat.Resolve.NO_XDEV
        try:
            fd = openat.openat2(found.directory, os.fsencode(found.name), os.O_PATH, rules)
        except KernelCallError as error:
            if error.errno in openat.NOT_THERE:
                continue
            raise
        with openat.closing(fd):
            _give(fd, group, writable)


def mode_for_group(mode: int, *, writable: bool) -> int:
    """Return the permission bits that something with this ``st_mode`` gets."""
    wanted = mode | (_READ_WRITE if writable else _READ_ONLY)
    if stat.S_ISDIR(mode):
        wanted |= _DIRECTORY
    return stat.S_IMODE(wanted)


def belongs(root: os.stat_result, group: int, *, writable: bool) -> bool:
    """Return whether the root of a volume looks as if the volume was given to ``group`` (OnRootMismatch)."""
    wanted = mode_for_group(stat.S_IFDIR, writable=writable)
    return root.st_gid == group and stat.S_ISDIR(root.st_mode) and root.st_mode & wanted == wanted


def _give(fd: int, group: int, writable: bool) -> None:
    openat.change(fd, gid=group)
    # Only now: the change of the group has cleared what would run programs as the owner.
    openat.change(fd, mode=mode_for_group(os.fstat(fd).st_mode, writable=writable))
