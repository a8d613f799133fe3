"""How much a directory tree takes on its disk, as ``du -x`` counts it, and subvolumes (btrfs) in it.

For trees that a container fills and changes meanwhile; ``openat.walk`` says how they are walked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import msgspec

from podkeep.base.errors import KernelCallError, ResourceExhausted
from podkeep.kernel import libc
from podkeep.kernel.files import openat
from podkeep.kernel.files.openat import Found

MAX_INODES = openat.MAX_ENTRIES
"""A larger tree is counted only this far."""
MAX_LINKED = 500_000
"""After so many files with several names, every further name counts: they are remembered."""
_BLOCK_BYTES = 512  # st_blocks, whatever the file system's block size is (inode(7))


class TreeSize(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whole blocks in bytes, and inodes, the root's included; a file with several names counts once.

    ``too_deep``: there is more, in directories that are inside of more others than a walk takes.
    """

    used_bytes: int
    inodes: int
    too_deep: bool = False


def measure(root: str, *, stop: Callable[[], bool] = lambda: False, partly: bool = False) -> TreeSize | None:
    """Return the size of the tree at ``root``; None if it is gone, or ``stop`` said so meanwhile.

    What vanishes during the walk is not counted.

    :param stop: asked once for each directory, and for every thousandth entry.
    :param partly: if ``stop`` says so, return what was counted until then.
    """
    try:
        root_fd = openat.open_directory(root)
    except OSError:
        return None
    with openat.closing(root_fd):
        return _count(root_fd, stop, partly)


def measure_file(path: str) -> TreeSize | None:
    """Return the size of what is at ``path`` alone, a link itself; None if nothing is."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return TreeSize(used_bytes=status.st_blocks * _BLOCK_BYTES, inodes=1)


def _count(root: int, stop: Callable[[], bool], partly: bool) -> TreeSize | None:
    status = os.fstat(root)
    device, blocks, inodes = status.st_dev, status.st_blocks, 1
    if stop() and not partly:
        return None
    linked: set[tuple[int, int]] = set()
    deep: list[bool] = []

    def too_deep() -> None:
        deep[:] = [True]

    with suppress(ResourceExhausted):
        for found in openat.walk(root, max_entries=MAX_INODES, tolerant=True, too_deep=too_deep):
            status = found.status
            # The walk does not enter mounts, but it tells of the directory or file that something is mounted on. What
            # has another device and is no mount is in a subvolume (btrfs), which everybody may make.
            if status.st_dev != device and _is_mount_root(found):
                continue
            if (found.is_directory or inodes % 1000 == 0) and stop():
                if partly:
                    break
                return None
            # A directory's link count counts the directories in it, and says nothing of other names.
            if not found.is_directory and status.st_nlink > 1:
                if (status.st_dev, status.st_ino) in linked:
                    continue
                if len(linked) < MAX_LINKED:
                    linked.add((status.st_dev, status.st_ino))
            blocks += status.st_blocks
            inodes += 1
    return TreeSize(used_bytes=blocks * _BLOCK_BYTES, inodes=inodes, too_deep=bool(deep))


def _is_mount_root(found: Found) -> bool:
    try:
        return libc.is_mount_root(found.directory, os.fsencode(found.name))
    except KernelCallError:  # gone meanwhile
        return True
