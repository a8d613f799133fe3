"""How much a directory tree takes on its disk, as ``du -x`` counts it, and subvolumes (btrfs) in it.

For trees that a container fills and changes meanwhile; ``openat.walk`` says how they are walked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from podkeep.base.errors import KernelCallError, NotFound, ResourceExhausted
from podkeep.kernel import libc
from podkeep.kernel.files import openat
from podkeep.kernel.mount import mountinfo

MAX_INODES = openat.MAX_ENTRIES
"""A larger tree is counted only this far, and said to hide the rest."""
MAX_LINKED = 500_000
"""After so many files with several names, every further name counts: they are remembered."""
_BLOCK_BYTES = 512  # st_blocks, whatever the file system's block size is (inode(7))


class TreeSize(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whole blocks in bytes, and inodes, the root's included; a file with several names counts once.

    ``hidden``: there is more than a walk takes: too many entries, or directories inside or beside each other.
    """

    used_bytes: int
    inodes: int
    hidden: bool = False


class Volume(NamedTuple):
    """A descriptor of a directory that is measured; ``apart``: it is a file system in memory, of its own."""

    fd: int
    apart: bool


def open_volume(path: Path) -> Volume | None:
    """Open a directory that was made for a volume, or the file system in memory that was mounted there for it.

    None: it is gone, or a container has mounted something over it (Bidirectional). That is asked for nothing: a FUSE
    may never answer, or tell whatever it likes. The caller closes it.
    """
    try:
        with openat.closing(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as seen:
            apart = libc.is_mount_root(seen, b"")
            if apart and not mountinfo.is_in_memory(seen):
                return None
            return Volume(openat.reopen(seen, os.O_RDONLY | os.O_DIRECTORY), apart)
    except (OSError, KernelCallError, NotFound):
        return None


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
        return count(root_fd, stop=stop, partly=partly)


def measure_file(path: str) -> TreeSize | None:
    """Return the size of what is at ``path`` alone, a link itself; None if nothing is."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return TreeSize(used_bytes=status.st_blocks * _BLOCK_BYTES, inodes=1)


def count(root: int, *, stop: Callable[[], bool] = lambda: False, partly: bool = False) -> TreeSize | None:
    """Return the size of the tree at a descriptor, as :func:`measure` does."""
    blocks, inodes = os.fstat(root).st_blocks, 1
    if stop() and not partly:
        return None
    linked: set[tuple[int, int]] = set()
    hidden: list[bool] = []

    def hide() -> None:
        hidden[:] = [True]

    try:
        for found in openat.walk(root, max_entries=MAX_INODES, tolerant=True, too_deep=hide):
            status = found.status
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
    except ResourceExhausted:
        # Whatever comes after is not counted: who fills a limited volume must not choose what that is.
        hide()
    return TreeSize(used_bytes=blocks * _BLOCK_BYTES, inodes=inodes, hidden=bool(hidden))
