"""Copying a directory of an image, as it is: owners, modes, times, extended attributes, links, holes.

Owns: the copy, its bound and its end. Does not own: which directory, and where to: a volume (``anonymous_volumes.py``),
or a tree for pods with a user namespace, whose files are the pod's own (``changed_trees.py``). Both trees are reached
by descriptors and resolved by the kernel below them, so that no symbolic link of the image leads out.
Sockets are left out: nobody listens on them. A label of SELinux is the volume's own and is not copied.

Of a file only its data is copied, as SEEK_DATA finds it, whatever ``st_blocks`` says: EROFS counts holes there. An
image may have as much data as the disk has room for, but a copy leaves a part of the disk to everybody else. What is
remembered meanwhile is bounded: the names of directories that are still to be copied, and of files with several names.

A copy may also be one of metadata only, for an overlay to lie on the layers with the data (kernel, overlayfs.rst,
"Metadata only copy up"): regular files are empty, and marked with an attribute.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from podkeep.base import failpoints
from podkeep.base.errors import Cancelled, KernelCallError, ResourceExhausted
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.files import openat
from podkeep.kernel.files.openat import Resolve
from podkeep.runtime.bundle.owners import Owners

_METACOPY = "trusted.overlay.metacopy"
_CONFINED = Resolve.BENEATH | Resolve.NO_SYMLINKS
_NOT_COPIED = ("security.selinux", "security.ima", "security.evm", "trusted.overlay.")
"""Extended attributes that belong to the file system a file is on, not to its content."""
_NO_RANGE_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
_CHUNK = 16 << 20
"""Bytes that are copied between two looks at the space that is left, and at whether the copy is still wanted."""
_LOOK_ENTRIES = 32
"""Entries without data that are made between two looks at the space that is left."""
_ENTRY_BYTES = 4096
"""What an entry without data takes at most on common file systems: a directory, a long link, attributes."""
_MAX_REMEMBERED = 64 << 20
_NAME_BYTES = 64
_LINKED_BYTES = 256
"""What a copy may remember, and what a name and a file with several names take of that beside their text."""
_KEPT_SHARE = 20
_KEPT_BYTES = 1 << 30
"""What a copy leaves free: a twentieth of the file system, or a gibibyte if that is less."""


class Purpose(FrozenStruct, kw_only=True):
    """``what`` is copied, for messages; ``failpoint`` is reached with each directory."""

    what: str
    failpoint: str


VOLUME = Purpose(what="what the image has at its VOLUME", failpoint="volume.directory")


def copy_directory(
    source: int,
    target: int,
    given_up: threading.Event,
    *,
    owners: Owners | None = None,
    data: bool = True,
    purpose: Purpose = VOLUME,
) -> int:
    """Copy what is in the directory behind descriptor ``source``, and its own attributes, into the empty ``target``.

    Nobody else may change the trees meanwhile.

    :param given_up: set by another thread when the copy is not wanted any more.
    :param owners: of the copies; None: those of the originals, by their numbers on the machine.
    :param data: False: regular files get none, and are marked for overlayfs to look for it in a lower layer.
    :returns: how many entries there are, the directory included; a file with several names counts once for each.
    :raises OSError: if the file system refuses; what was copied until then is left, as with all errors.
    :raises KernelCallError: if a path in the tree is longer than the kernel takes (4095 bytes).
    :raises ResourceExhausted: if it would leave less than a twentieth of the file system's space or inodes, or if there
        are more directories beside each other, or files with several names, than a copy remembers.
    :raises Cancelled: if it was given up.
    """
    copy = _Copy(source, target, given_up, owners, data, purpose)
    copy.run()
    return copy.entries


@dataclass
class _Level:
    """A directory on the way from the top, and which of those in it are still to be copied."""

    path: bytes
    names: list[str] = field(default_factory=list)
    weight: int = 0


class _Copy:
    def __init__(
        self, source: int, target: int, given_up: threading.Event, owners: Owners | None, data: bool, purpose: Purpose
    ) -> None:
        self._source, self._target, self._given_up = source, target, given_up
        self._attributes, self._data, self._purpose = _Attributes(owners), data, purpose
        self.entries = 1
        self._levels: list[_Level] = []
        self._linked: dict[tuple[int, int], bytes] = {}
        """Device and inode of a file with several names to its first name in the target."""
        self._remembered = 0

    def run(self) -> None:
        self._enter(b".")
        while self._levels:
            level = self._levels[-1]
            if level.names:
                self._enter(_inner(level.path, level.names.pop()))
            else:
                self._leave()

    def _enter(self, path: bytes) -> None:
        self._require_wanted()
        level = _Level(path)
        self._levels.append(level)
        with self._directories(path) as (source, target):
            self._copy_entries(level, source, target)
        failpoints.reach(self._purpose.failpoint)

    def _leave(self) -> None:
        # Only now, because every entry made in a directory changes its time; and it may be read-only for us as well.
        level = self._levels.pop()
        self._remembered -= level.weight
        with self._directories(level.path) as (source, target):
            self._attributes.copy(source, target, os.fstat(source))

    def _remember(self, weight: int) -> None:
        self._remembered += weight
        if self._remembered > _MAX_REMEMBERED:
            raise ResourceExhausted(
                f"{self._purpose.what} has too many directories beside each other, or files with several names",
                hint="build the image with fewer; what a VOLUME has is not copied where another one is mounted",
            )

    @contextmanager
    def _directories(self, path: bytes) -> Iterator[tuple[int, int]]:
        with (
            openat.closing(openat.openat2(self._source, path, os.O_RDONLY | os.O_DIRECTORY, _CONFINED)) as source,
            openat.closing(openat.openat2(self._target, path, os.O_RDONLY | os.O_DIRECTORY, _CONFINED)) as target,
        ):
            yield source, target

    def _copy_entries(self, level: _Level, source: int, target: int) -> None:
        """Copy everything but directories, which are only made, and noted in ``level``."""
        with os.scandir(source) as entries:
            for entry in entries:
                self._require_wanted()
                if self.entries % _LOOK_ENTRIES == 0:
                    self._require_room(_LOOK_ENTRIES * _ENTRY_BYTES)
                elif self._data:
                    # Inodes alone, of which each entry takes one; the space for data is looked at in _copy_regular.
                    self._require_room(0)
                self.entries += 1
                self._copy_entry(level, source, target, entry.name)

    def _copy_entry(self, level: _Level, source: int, target: int, name: str) -> None:
        found = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            weight = len(name) + _NAME_BYTES
            self._remember(weight)
            level.weight += weight
            level.names.append(name)
            # Closed until _leave gives it its own mode.
            os.mkdir(name, 0o700, dir_fd=target)
        elif found.st_nlink > 1 and (first := self._linked.get((found.st_dev, found.st_ino))) is not None:
            os.link(first, name, src_dir_fd=self._target, dst_dir_fd=target, follow_symlinks=False)
        elif not stat.S_ISSOCK(found.st_mode):
            if found.st_nlink > 1:
                first = _inner(level.path, name)
                self._remember(len(first) + _LINKED_BYTES)
                self._linked[found.st_dev, found.st_ino] = first
            if not stat.S_ISREG(found.st_mode):
                self._copy_special(source, target, name, found)
            elif self._data:
                self._copy_regular(source, target, name, found.st_size)
            else:
                self._copy_metadata(source, target, name, found)

    def _require_wanted(self) -> None:
        if self._given_up.is_set():
            raise Cancelled(f"the copy of {self._purpose.what} was given up")

    def _require_room(self, count: int) -> None:
        """Check that a file of ``count`` bytes leaves enough of the disk to others."""
        space = os.fstatvfs(self._target)
        kept = min(space.f_blocks * space.f_frsize // _KEPT_SHARE, _KEPT_BYTES)
        # Some file systems have no number of inodes; they say 0.
        if (count and space.f_bavail * space.f_frsize < kept + count) or space.f_favail < space.f_files // _KEPT_SHARE:
            raise ResourceExhausted(
                f"{self._purpose.what} does not fit on the disk: a twentieth of it, or 1 GiB, is left free",
                hint="free space where runtime.root is; what a VOLUME has is not copied where another one is mounted",
            )

    def _copy_regular(self, source: int, target: int, name: str, size: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with (
            openat.closing(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)) as old,
            openat.closing(os.open(name, flags, 0o600, dir_fd=target)) as new,
        ):
            # First the whole size, then the ranges with data: what is between them stays a hole.
            os.ftruncate(new, size)
            for start, end in _data(old, size):
                for at in range(start, end, _CHUNK):
                    count = min(_CHUNK, end - at)
                    self._require_wanted()
                    self._require_room(count)
                    _copy_range(old, new, at, count)
            self._attributes.copy(old, new, os.fstat(old))

    def _copy_metadata(self, source: int, target: int, name: str, found: os.stat_result) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        new = os.open(name, flags, 0o600, dir_fd=target)
        try:
            if found.st_size:
                os.ftruncate(new, found.st_size)  # what overlayfs says that the file has
            os.setxattr(new, _METACOPY, b"")
            # Not opened: of a file without data that would be half of the time.
            self._attributes.copy(f"/proc/self/fd/{source}/{name}", new, found)
        finally:
            os.close(new)

    def _copy_special(self, source: int, target: int, name: str, found: os.stat_result) -> None:
        """Copy what is neither a file nor a directory nor a socket."""
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        else:
            os.mknod(name, stat.S_IFMT(found.st_mode) | 0o600, found.st_rdev, dir_fd=target)
        uid, gid = self._attributes.owner(found)
        os.chown(name, uid, gid, dir_fd=target, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            # After chown(2), which clears set-user-ID bits; links have no mode of their own on Linux.
            os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=target)
        os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=target, follow_symlinks=False)


def _inner(path: bytes, name: str) -> bytes:
    return os.path.normpath(os.path.join(path, os.fsencode(name)))


class _Attributes:
    """What files have beside their data, for one mapping of owners."""

    def __init__(self, owners: Owners | None) -> None:
        self._owners = owners

    def owner(self, found: os.stat_result) -> tuple[int, int]:
        """Return user and group of a copy."""
        if self._owners is None:
            return found.st_uid, found.st_gid
        return self._owners.uid(found.st_uid), self._owners.gid(found.st_gid)

    def copy(self, source: int | str, target: int, found: os.stat_result) -> None:
        """Give the file or directory behind ``target`` what ``source`` has, a descriptor or a path, which is no link.

        :param found: of the source.
        """
        uid, gid = self.owner(found)
        # In this order: a change of the owner clears set-user-ID bits and file capabilities.
        os.fchown(target, uid, gid)
        os.fchmod(target, stat.S_IMODE(found.st_mode))
        follow = isinstance(source, int)
        for name in os.listxattr(source, follow_symlinks=follow):
            if name.startswith(_NOT_COPIED):
                continue
            value: bytes | None = os.getxattr(source, name, follow_symlinks=follow)
            if self._owners is not None:
                value = self._owners.attribute(name, value or b"")
            if value is not None:
                os.setxattr(target, name, value)
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _data(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where the data of a file of ``size`` bytes begins and ends; between is what it has no data for."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, end


def _copy_range(source: int, target: int, start: int, length: int) -> None:
    end, share = start + length, True
    while start < end:
        count = 0
        if share:
            try:
                count = os.copy_file_range(source, target, end - start, start, start)
            except OSError as error:
                if error.errno not in _NO_RANGE_COPY:
                    raise
                share = False
        if count == 0:
            share = False
            os.lseek(target, start, os.SEEK_SET)
            count = os.sendfile(target, source, start, end - start)
        if count == 0:
            raise KernelCallError(f"copy of {length} bytes", errno.EIO, hint="the file became shorter meanwhile")
        start += count
