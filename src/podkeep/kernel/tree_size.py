"""How much a directory tree takes on its disk, as ``du -x`` counts it.

For trees that a container fills and changes meanwhile: every directory is opened relative to the tree's root, by rules
of the kernel that lead through no symbolic link and onto no other file system.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from podkeep.base.errors import KernelCallError
from podkeep.kernel.openat import Resolve, openat2

MAX_INODES = 5_000_000
"""A larger tree is counted only this far: the walk's memory grows with it."""
_FAR = 2000
"""Bytes of a path after which what is below is looked for from there, because paths end at 4096."""
_BLOCK_BYTES = 512  # st_blocks, whatever the file system's block size is (inode(7))
_RULES = Resolve.BENEATH | Resolve.NO_SYMLINKS | Resolve.NO_XDEV


class TreeSize(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whole blocks in bytes, and inodes, the root's included; a file with several names counts once."""

    used_bytes: int
    inodes: int


def measure(root: str, *, stop: Callable[[], bool] = lambda: False) -> TreeSize | None:
    """Return the size of the tree at ``root``; None if it is gone, or ``stop`` said so meanwhile.

    What vanishes during the walk is not counted.

    :param stop: asked once for each directory.
    """
    try:
        root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _walk(root_fd, stop)
    finally:
        os.close(root_fd)


def _walk(root_fd: int, stop: Callable[[], bool]) -> TreeSize | None:
    status = os.stat(root_fd)
    device, blocks, inodes = status.st_dev, status.st_blocks, 1
    linked: set[int] = set()
    # Where to go, and relative to what; without a path: a descriptor that nothing is relative to any more.
    waiting: list[tuple[int, bytes | None]] = [(root_fd, b".")]
    try:
        while waiting and inodes < MAX_INODES:
            if stop():
                return None
            base, directory = waiting.pop()
            if directory is None:
                os.close(base)
                continue
            try:
                fd = openat2(base, directory, os.O_RDONLY | os.O_DIRECTORY, _RULES)
            except KernelCallError:
                continue
            above: tuple[int, bytes] = (base, directory)
            if len(directory) > _FAR:
                above = (fd, b"")
                waiting.append((fd, None))
            try:
                for entry, status in _entries(fd):
                    if status.st_dev != device:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((above[0], os.path.join(above[1], os.fsencode(entry.name))))
                    elif status.st_nlink > 1:
                        if status.st_ino in linked:
                            continue
                        linked.add(status.st_ino)
                    blocks += status.st_blocks
                    inodes += 1
            finally:
                if above[0] != fd:
                    os.close(fd)
    finally:
        for base, directory in waiting:
            if directory is None:
                os.close(base)
    return TreeSize(used_bytes=blocks * _BLOCK_BYTES, inodes=inodes)


def _entries(directory: int) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """Yield what is in a directory and still there."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield entry, status
