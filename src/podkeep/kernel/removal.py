"""Removing trees of any depth that somebody hostile may have made, and nothing that is mounted in them.

Neither Python's recursion limit nor the number of open files bounds the depth here, as they do for ``shutil.rmtree``:
a directory's subdirectories are lifted to the top before it is removed. Symbolic links are removed, never followed. A
mount, also one of the same file system (a bind mount), is recognised by its ID and never entered: what is behind it
belongs to somebody else. Called by whoever removes a directory; does not own unmounting (``mounts``).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from podkeep.base.errors import FailedPrecondition, KernelCallError
from podkeep.kernel import libc, mountinfo

SMALL_ENTRIES = 200
SMALL_DEPTH = 8
"""What has no more is looked at entry by entry, for mounts in it. The table of mounts has some lines for each pod, so
that reading it for each pod costs the square of their number."""


class _NotSmall(Exception):
    """A tree has more than :data:`SMALL_ENTRIES`, or is deeper than :data:`SMALL_DEPTH`."""


def remove_tree(path: Path) -> None:
    """Remove what is at ``path``, a tree or a file; a missing one is no error.

    :raises FailedPrecondition: naming the mount, if ``path`` is one or has one in it; if the calling process's table
        of mounts shows it, nothing was removed.
    :raises OSError: if the file system refuses.
    """
    path = Path(os.path.abspath(path))
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        mounted = _mounted(parent, path.name)
        if mounted is not None:
            raise _refused(mounted)
        remove_entry(parent, path.name)
    finally:
        os.close(parent)


def _mounted(parent: int, name: str) -> str | None:
    """Return where something is mounted, at or below ``name``; None: nowhere."""
    path = f"{os.readlink(f'/proc/self/fd/{parent}')}/{name}"
    try:
        if libc.is_mount_root(parent, os.fsencode(name)):
            return path
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            return None
        below = _mounted_below(parent, name, iter(range(SMALL_ENTRIES)), SMALL_DEPTH)
        return None if below is None else f"{path}/{below}"
    except (_NotSmall, KernelCallError, FileNotFoundError):
        found = mountinfo.under(path)
        return found[-1].mount_point if found else None


def _mounted_below(parent: int, name: str, entries_left: Iterator[int], depth_left: int) -> str | None:
    if not depth_left:
        raise _NotSmall
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if next(entries_left, None) is None:
                    raise _NotSmall
                if libc.is_mount_root(directory, os.fsencode(entry.name)):
                    return entry.name
                if entry.is_dir(follow_symlinks=False):
                    below = _mounted_below(directory, entry.name, entries_left, depth_left - 1)
                    if below is not None:
                        return f"{entry.name}/{below}"
    finally:
        os.close(directory)
    return None


def remove_entry(parent: int, name: bytes | str) -> None:
    """Remove ``name`` in the directory behind descriptor ``parent``, whatever it is; a missing one is no error.

    For processes without ``/proc``: mounts are found only when it is their turn.

    :raises FailedPrecondition: naming the mount, if ``name`` is one or has one in it.
    :raises OSError: if the file system refuses.
    """
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return
        mount = libc.mount_id(parent)
        top = _open(parent, name, mount)
    except FileNotFoundError:
        return
    try:
        _empty(top, mount)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _empty(top: int, mount: int) -> None:
    fresh = count()
    while True:
        directories = _unlink_files(top)
        if not directories:
            return
        for name in directories:
            inner = _open(top, name, mount)
            try:
                for nested in _unlink_files(inner):
                    _lift(inner, nested, top, _unused(top, fresh))
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)


def _lift(directory: int, name: str, top: int, new: str) -> None:
    try:
        os.rename(name, new, src_dir_fd=directory, dst_dir_fd=top)
    except OSError as error:
        if error.errno == errno.EBUSY:  # the kernel renames no mount points
            raise _refused(f"{_path(directory, '')}/{name}") from error
        raise


def _unlink_files(directory: int) -> list[str]:
    """Remove what is not a directory; return the names of those that are."""
    directories = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=directory)
    return directories


def _unused(top: int, fresh: count[int]) -> str:
    while True:
        name = f".lifted-{next(fresh)}"
        try:
            os.stat(name, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return name


def _open(parent: int, name: bytes | str, mount: int) -> int:
    """Open a directory that is on the mount with ID ``mount``; the caller closes it."""
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if libc.mount_id(fd) != mount:
            raise _refused(_path(fd, name))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _path(fd: int, name: bytes | str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return os.fsdecode(name)


def _refused(mount_point: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"{mount_point} is a mount point: what is mounted there is not removed",
        hint=f"unmount it: umount {mount_point}",
    )
