"""Removing trees of any depth that somebody hostile may have made, and nothing that is mounted in them.

Neither Python's recursion limit nor the number of open files bounds the depth here, as they do for ``shutil.rmtree``:
a directory's subdirectories are lifted to the top before it is removed. Symbolic links are removed, never followed. A
mount, also one of the same file system (a bind mount), is recognised by its ID and never entered: what is behind it
belongs to somebody else. Called by whoever removes a directory. :func:`unmount_below` unmounts what is in one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count, repeat
from pathlib import Path

from podkeep.base.errors import FailedPrecondition, KernelCallError, ResourceExhausted
from podkeep.kernel import libc
from podkeep.kernel.files import openat
from podkeep.kernel.mount import mountinfo, mounts

SMALL_ENTRIES = 200
SMALL_DEPTH = 8
"""What has no more is looked at entry by entry, for mounts in it. The table of mounts has some lines for each pod, so
that reading it for each pod costs the square of their number."""

_FS_IOC_GETFLAGS = 0x80086601
_FS_IOC_SETFLAGS = 0x40086602
_KEPT_FLAGS = 0x10 | 0x20
"""FS_IMMUTABLE_FL and FS_APPEND_FL: a container with CAP_LINUX_IMMUTABLE may set them (chattr(1), ``i`` and ``a``)."""

_AT_ONCE = 1000
"""Directories whose names are in memory: whoever made the tree may have made millions of them."""


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
        # Asked before anything is removed, so that a refusal leaves the whole tree as it is.
        mounted = _mounted(parent, path.name)
        if mounted is not None:
            raise _refused(mounted)
        remove_entry(parent, path.name)
    finally:
        os.close(parent)


def unmount_below(directory: Path) -> None:
    """Unmount everything at and below ``directory``; nothing is an answer too.

    What is mounted inside of another mount goes with that: the way there may lead through a volume, in which whoever
    writes to it can exchange a directory for a symbolic link.

    :raises FailedPrecondition: if there is a link on the way to a mount.
    :raises KernelCallError: if the kernel refuses.
    """
    found = mountinfo.outermost(mountinfo.under(directory))
    # A copy of a volume may be a peer of it: unmounting what is in the copy would unmount it in the volume as well.
    for mount_point in found:
        make_private(mount_point)
    for mount_point in found:
        unmount(mount_point)


def make_private(mount_point: str) -> None:
    """Take a mount, and those inside of it, out of their peer groups.

    :raises FailedPrecondition: if there is a link on the way.
    :raises KernelCallError: if the kernel refuses.
    """
    with openat.closing(openat.open_resolved(mount_point)) as fd:
        mounts.mount_setattr(fd, propagation=mounts.Propagation.PRIVATE, recursive=True)


def unmount(mount_point: str) -> None:
    """Unmount what is at a path that may lead through a volume, and what is inside of it; a missing one is no error.

    :raises FailedPrecondition: if there is a link on the way.
    :raises KernelCallError: if the kernel refuses.
    """
    try:
        fd = openat.open_resolved(mount_point)
    except KernelCallError as error:
        if error.errno in openat.NOT_THERE:
            return
        raise
    with openat.closing(fd):
        try:
            libc.umount2(b"/proc/self/fd/%d" % fd, mounts.UnmountFlag.DETACH)
        except KernelCallError as error:
            if error.errno != errno.EINVAL:  # nothing is mounted there any more
                raise


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
    # Whatever the look by entries cannot answer, mountinfo does; reading it is slow where there are many pods.
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
                # By the ID of the mount: st_dev is the same for a bind mount of the same file system.
                if libc.is_mount_root(directory, os.fsencode(entry.name)):
                    return entry.name
                if entry.is_dir(follow_symlinks=False):
                    below = _mounted_below(directory, entry.name, entries_left, depth_left - 1)
                    if below is not None:
                        return f"{entry.name}/{below}"
    finally:
        os.close(directory)
    return None


def remove_entry(parent: int, name: bytes | str, *, most: int | None = None) -> None:
    """Remove ``name`` in the directory behind descriptor ``parent``, whatever it is; a missing one is no error.

    For processes without ``/proc``: mounts are found only when it is their turn.

    :param most: how many entries to remove at most, because somebody may go on making more. None: no limit.
    :raises FailedPrecondition: naming the mount, if ``name`` is one or has one in it.
    :raises ResourceExhausted: if there are more than ``most``.
    :raises OSError: if the file system refuses.
    """
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            _insist(parent, name, partial(os.unlink, name, dir_fd=parent))
            return
        # Of the parent and not of the entry: what is mounted right at the entry has another ID, and is refused.
        mount = libc.mount_id(parent)
        top = _open(parent, name, mount)
    except FileNotFoundError:
        return
    try:
        _empty(top, mount, _counted(most))
    finally:
        os.close(top)
    _insist(parent, name, partial(os.rmdir, name, dir_fd=parent))


def _insist(directory: int, name: bytes | str, remove: Callable[[], None], *, into: int | None = None) -> None:
    """Remove an entry, or move it to another directory; if that is refused, again without the flags that forbid it."""
    try:
        remove()
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
        for parent in (directory, into):
            if parent is not None:
                _clear_flags(parent)
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        # The directory's own flags forbid to remove entries as well; EPERM does not say which of them it was.
        if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):  # nothing else can have them
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            try:
                _clear_flags(fd)
            finally:
                os.close(fd)
        remove()


def _clear_flags(fd: int) -> None:
    """Let a file or directory be changed again; what fails shows when it is."""
    flags = bytearray(8)
    with suppress(OSError):
        fcntl.ioctl(fd, _FS_IOC_GETFLAGS, flags)
        value = int.from_bytes(flags, sys.byteorder)
        if value & _KEPT_FLAGS:
            fcntl.ioctl(fd, _FS_IOC_SETFLAGS, (value & ~_KEPT_FLAGS).to_bytes(8, sys.byteorder))


def _counted(most: int | None) -> Iterator[None]:
    """Yield for each of ``most`` entries."""
    yield from repeat(None) if most is None else repeat(None, most)
    raise ResourceExhausted(f"there are more than {most} entries to remove, or somebody goes on making them")


def _empty(top: int, mount: int, allowed: Iterator[None]) -> None:
    fresh = count()
    while True:
        directories = _unlink_files(top, allowed)
        if not directories:
            return
        for name in directories:
            inner = _open(top, name, mount)
            try:
                found_all = False
                # A list that is full may have left directories out: only a shorter one shows that the directory is
                # empty.
                while not found_all:
                    lifted = _unlink_files(inner, allowed)
                    for nested in lifted:
                        _lift(inner, nested, top, _unused(top, fresh))
                    found_all = len(lifted) < _AT_ONCE
            finally:
                os.close(inner)
            _insist(top, name, partial(os.rmdir, name, dir_fd=top))


def _lift(directory: int, name: str, top: int, new: str) -> None:
    try:
        _insist(directory, name, partial(os.rename, name, new, src_dir_fd=directory, dst_dir_fd=top), into=top)
    except OSError as error:
        if error.errno == errno.EBUSY:  # the kernel renames no mount points
            raise _refused(f"{_path(directory, '')}/{name}") from error
        raise


def _unlink_files(directory: int, allowed: Iterator[None]) -> list[str]:
    """Remove what is not a directory; return the names of those that are, but not more than memory should hold.

    Only if there are none, nothing is left.
    """
    directories: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            next(allowed)
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
                if len(directories) == _AT_ONCE:
                    break
            else:
                _insist(directory, entry.name, partial(os.unlink, entry.name, dir_fd=directory))
    return directories


def _unused(top: int, fresh: count[int]) -> str:
    while True:
        # Whoever made the tree may have used such names, too, and rename(2) would replace an empty directory.
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
