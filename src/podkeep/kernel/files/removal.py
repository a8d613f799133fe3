"""Removing trees of any depth that somebody hostile may have made, and nothing that is mounted in them.

Neither Python's recursion limit nor the number of open files bounds the depth here, as they do for ``shutil.rmtree``:
one directory is open at a time, and the way back up is by ``..``, believed only where it leads to the directory that we
came from. Nothing is renamed: the kernel refuses that between subvolumes (btrfs), into directories that hand a project
on (XFS, ext4), and where a key is missing (fscrypt), all of which a container may have made. Symbolic links are
removed, never followed. A mount, also one of the same file system (a bind mount), is recognised by the kernel and never
entered, nor asked for anything: what is behind it belongs to somebody else. Called by whoever removes a directory.
:func:`unmount_below` unmounts what is in one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import repeat
from pathlib import Path

import msgspec

from podkeep.base.errors import Cancelled, FailedPrecondition, KernelCallError, ResourceExhausted
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

_BTRFS_IOC_SUBVOL_SETFLAGS = 0x4008941A
_SUBVOLUME_INODE = 256
"""Of the directory at the top of every subvolume (btrfs, BTRFS_FIRST_FREE_OBJECTID)."""

_AT_ONCE = 1000
"""Directories whose names are in memory: whoever made the tree may have made millions of them."""
_REMEMBERED = 50_000
"""Levels whose parents are remembered; a deeper tree is removed in several passes from the top."""


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


def remove_entry(
    parent: int, name: bytes | str, *, most: int | None = None, stop: Callable[[], bool] = lambda: False
) -> None:
    """Remove ``name`` in the directory behind descriptor ``parent``, whatever it is; a missing one is no error.

    For processes without ``/proc``: mounts are found only when it is their turn. Without it, an entry's own flags
    (chattr(1)) stay, and forbid its removal; only a container sets them.

    :param most: how many entries to remove at most, because somebody may go on making more. None: no limit.
    :param stop: asked for each entry whether to leave the rest.
    :raises Cancelled: if ``stop`` said so.
    :raises FailedPrecondition: naming the mount, if ``name`` is one or has one in it.
    :raises ResourceExhausted: if there are more than ``most``.
    :raises OSError: if the file system refuses.
    """
    try:
        found = libc.look(parent, os.fsencode(name))
        if found.mounted:
            raise _refused(_inside(parent, name))
        if not stat.S_ISDIR(found.status.st_mode):
            _insist(parent, name, partial(os.unlink, name, dir_fd=parent))
            return
        top = _open(parent, name)
    except FileNotFoundError:
        return
    except KernelCallError as error:
        if error.errno == errno.ENOENT:
            return
        # A user namespace has mounted a FUSE there, which refuses even root that question.
        if error.errno == errno.EACCES and libc.is_mount_root(parent, os.fsencode(name)):
            raise _refused(_inside(parent, name)) from error
        raise OSError(error.errno, os.strerror(error.errno), os.fsdecode(name)) from error
    try:
        _empty(top, _counted(most, stop))
    finally:
        os.close(top)
    _insist(parent, name, partial(os.rmdir, name, dir_fd=parent))


def _insist(directory: int, name: bytes | str, remove: Callable[[], None]) -> None:
    """Remove an entry; if that is refused, again without the flags that forbid it."""
    try:
        remove()
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
        # The directory's own flags forbid to remove entries as well; EPERM does not say which of them it was.
        _clear_flags(directory)
        _clear_flags_of(directory, name)
        remove()


def _clear_flags_of(directory: int, name: bytes | str) -> None:
    with suppress(OSError):
        seen = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        with openat.closing(seen):
            # Nothing else can have flags. What is opened is what was looked at: a device does something when it is.
            if stat.S_ISREG(mode := os.fstat(seen).st_mode) or stat.S_ISDIR(mode):
                with openat.closing(openat.reopen(seen, os.O_RDONLY)) as fd:
                    _clear_flags(fd)


def _clear_flags(fd: int) -> None:
    """Let a file or directory be changed again; what fails shows when it is."""
    flags = bytearray(8)
    with suppress(OSError):
        fcntl.ioctl(fd, _FS_IOC_GETFLAGS, flags)
        value = int.from_bytes(flags, sys.byteorder)
        if value & _KEPT_FLAGS:
            fcntl.ioctl(fd, _FS_IOC_SETFLAGS, (value & ~_KEPT_FLAGS).to_bytes(8, sys.byteorder))


def _counted(most: int | None, stop: Callable[[], bool]) -> Iterator[None]:
    """Yield for each of ``most`` entries."""
    for _ in repeat(None) if most is None else repeat(None, most):
        if stop():
            raise Cancelled("the removal was to stop")
        yield
    raise ResourceExhausted(f"there are more than {most} entries to remove, or somebody goes on making them")


class _Above(msgspec.Struct, gc=False):
    """A directory that we came down from: what it is, the name of the one below, and of those that are still to do."""

    device: int
    inode: int
    below: str
    names: list[str]


def _empty(top: int, allowed: Iterator[None]) -> None:
    while not _emptied(top, allowed):
        pass


def _emptied(top: int, allowed: Iterator[None]) -> bool:
    """Remove what is in a directory, the deepest first. False: it was too deep to remember the way up to the rest."""
    above: deque[_Above] = deque()
    current, names, waiting, whole = os.dup(top), list[str](), 0, True
    try:
        while True:
            names = names or _unlink_files(current, allowed)
            if names:
                below, status = names.pop(), os.fstat(current)
                inner = _open(current, below)
                os.close(current)
                current = inner
                above.append(_Above(status.st_dev, status.st_ino, below, names))
                waiting += len(names)
                if len(above) > _REMEMBERED:
                    waiting, whole = waiting - len(above.popleft().names), False
                # Of two lists: with one, a directory of many would be listed again for each that is in it.
                if waiting > 2 * _AT_ONCE:
                    # They are found again when it is their directory's turn.
                    for level in above:
                        level.names = []
                    waiting = 0
                names = []
            elif above:
                level = above.pop()
                outer = _back(current, level)
                os.close(current)
                current, names, waiting = outer, level.names, waiting - len(level.names)
                _insist(current, level.below, partial(os.rmdir, level.below, dir_fd=current))
            else:
                return whole
    finally:
        os.close(current)


def _back(directory: int, level: _Above) -> int:
    """Open the directory that we came down from; the caller closes it."""
    fd = _open(directory, "..")
    found = os.fstat(fd)
    if (found.st_dev, found.st_ino) != (level.device, level.inode):
        os.close(fd)
        raise FailedPrecondition(f"{_path(directory, level.below)} was moved while it was being removed")
    return fd


def _unlink_files(directory: int, allowed: Iterator[None]) -> list[str]:
    """Remove what is not a directory; return the names of those that are, but not more than memory should hold.

    Only if there are none, nothing is left.
    """
    directories: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            next(allowed)
            # Not asked what it is: where the listing does not say, that would ask what is mounted there.
            try:
                _insist(directory, entry.name, partial(os.unlink, entry.name, dir_fd=directory))
            except IsADirectoryError:
                directories.append(entry.name)
                if len(directories) == _AT_ONCE:
                    break
    return directories


def _open(parent: int, name: bytes | str) -> int:
    """Open a directory that is on the same mount as ``parent``; the caller closes it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        fd = openat.openat2(parent, os.fsencode(name), flags, openat.Resolve.NO_XDEV)
    except KernelCallError as error:
        if error.errno == errno.EXDEV:
            raise _refused(_inside(parent, name)) from error
        raise OSError(error.errno, os.strerror(error.errno), os.fsdecode(name)) from error
    try:
        if os.fstat(fd).st_ino == _SUBVOLUME_INODE:
            # Its owner may have made a subvolume read-only (btrfs property set DIRECTORY ro true).
            with suppress(OSError):
                fcntl.ioctl(fd, _BTRFS_IOC_SUBVOL_SETFLAGS, bytes(8))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _path(fd: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return name


def _inside(directory: int, name: bytes | str) -> str:
    return os.path.join(_path(directory, ""), os.fsdecode(name))


def _refused(mount_point: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"{mount_point} is a mount point: what is mounted there is not removed",
        hint=f"unmount it: umount {mount_point}",
    )
