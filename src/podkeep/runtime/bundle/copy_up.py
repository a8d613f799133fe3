"""Copying a directory of an image into a volume, as it is: owners, modes, times, extended attributes, links, holes.

Owns: the copy. Does not own: which directory, and where to (``anonymous_volumes.py``). Both trees are reached by
descriptors and resolved by the kernel below them, so that no symbolic link of the image leads out. Sockets are left
out: nobody listens on them. A label of SELinux is the volume's own and is not copied.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from podkeep.base import failpoints
from podkeep.base.errors import KernelCallError
from podkeep.kernel import openat
from podkeep.kernel.openat import Resolve

_CONFINED = Resolve.BENEATH | Resolve.NO_SYMLINKS
_NOT_COPIED = ("security.selinux", "security.ima", "security.evm", "trusted.overlay.")
"""Extended attributes that belong to the file system a file is on, not to its content."""
_NO_RANGE_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
_CHUNK = 1 << 30


def copy_directory(source: int, target: int) -> None:
    """Copy what is in the directory behind descriptor ``source``, and its own attributes, into the empty ``target``.

    The owners are copied by their numbers on the machine. Nobody else may change the trees meanwhile.

    :raises OSError: if the file system refuses; what was copied until then is left.
    :raises KernelCallError: if a path in the tree is longer than the kernel takes (4095 bytes).
    """
    _Copy(source, target).run()


class _Copy:
    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._linked: dict[tuple[int, int], bytes] = {}
        """Device and inode of a file with several names to its first name in the target."""

    def run(self) -> None:
        waiting, done = [b"."], []
        while waiting:
            path = waiting.pop()
            done.append(path)
            with self._directories(path) as (source, target):
                waiting += self._copy_entries(path, source, target)
            failpoints.reach("volume.directory")
        # Only now, because every entry made in a directory changes its time; and it may be read-only for us as well.
        for path in reversed(done):
            with self._directories(path) as (source, target):
                _copy_attributes(source, target)

    @contextmanager
    def _directories(self, path: bytes) -> Iterator[tuple[int, int]]:
        with (
            openat.closing(openat.openat2(self._source, path, os.O_RDONLY | os.O_DIRECTORY, _CONFINED)) as source,
            openat.closing(openat.openat2(self._target, path, os.O_RDONLY | os.O_DIRECTORY, _CONFINED)) as target,
        ):
            yield source, target

    def _copy_entries(self, path: bytes, source: int, target: int) -> list[bytes]:
        """Copy everything but directories, which are only made; return the paths of those."""
        directories = []
        for name in sorted(os.listdir(source)):
            found = os.stat(name, dir_fd=source, follow_symlinks=False)
            inner = os.path.normpath(os.path.join(path, os.fsencode(name)))
            if stat.S_ISDIR(found.st_mode):
                os.mkdir(name, 0o700, dir_fd=target)
                directories.append(inner)
            elif found.st_nlink > 1 and (first := self._linked.get((found.st_dev, found.st_ino))) is not None:
                os.link(first, name, src_dir_fd=self._target, dst_dir_fd=target, follow_symlinks=False)
            elif not stat.S_ISSOCK(found.st_mode):
                if found.st_nlink > 1:
                    self._linked[found.st_dev, found.st_ino] = inner
                _copy_file(source, target, name, found)
        return directories


def _copy_file(source: int, target: int, name: str, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode):
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with (
            openat.closing(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)) as old,
            openat.closing(os.open(name, flags, 0o600, dir_fd=target)) as new,
        ):
            if found.st_blocks * 512 >= found.st_size:
                _copy_range(old, new, 0, found.st_size)
            else:
                _copy_data(old, new, found.st_size)
            _copy_attributes(old, new)
        return
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
    else:
        os.mknod(name, stat.S_IFMT(found.st_mode) | 0o600, found.st_rdev, dir_fd=target)
    os.chown(name, found.st_uid, found.st_gid, dir_fd=target, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=target)
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=target, follow_symlinks=False)


def _copy_attributes(source: int, target: int) -> None:
    found = os.fstat(source)
    # In this order: a change of the owner clears set-user-ID bits and file capabilities.
    os.fchown(target, found.st_uid, found.st_gid)
    os.fchmod(target, stat.S_IMODE(found.st_mode))
    for name in os.listxattr(source):
        if not name.startswith(_NOT_COPIED):
            os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _copy_data(source: int, target: int, size: int) -> None:
    """Copy a file's data, leaving its holes."""
    os.ftruncate(target, size)
    offset = 0
    with suppress(_NoMoreData):
        while offset < size:
            start = _seek_data(source, offset)
            offset = os.lseek(source, start, os.SEEK_HOLE)
            _copy_range(source, target, start, offset - start)


class _NoMoreData(Exception):
    """Only a hole is left."""


def _seek_data(source: int, offset: int) -> int:
    try:
        return os.lseek(source, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _NoMoreData from error
        raise


def _copy_range(source: int, target: int, start: int, length: int) -> None:
    end, share = start + length, True
    while start < end:
        count = 0
        if share:
            try:
                count = os.copy_file_range(source, target, min(end - start, _CHUNK), start, start)
            except OSError as error:
                if error.errno not in _NO_RANGE_COPY:
                    raise
                share = False
        if count == 0:
            share = False
            os.lseek(target, start, os.SEEK_SET)
            count = os.sendfile(target, source, start, min(end - start, _CHUNK))
        if count == 0:
            raise KernelCallError(f"copy of {length} bytes", errno.EIO, hint="the file became shorter meanwhile")
        start += count
