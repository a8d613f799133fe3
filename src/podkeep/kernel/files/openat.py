"""Opening, reading and walking what is below a directory that somebody else fills: openat2(2), and syncfs(2).

Owns: every way to a file in a place that a container, an image or another user of a volume can write to. All there is
hostile: names, links, kinds, modes, sizes, the number of entries and the depth, and each of them can change while it is
looked at. Therefore:

- the kernel resolves every component under the rules of ``Resolve``, so no symbolic link leads out, whenever it is put
  there;
- a file is looked at by a descriptor that opens nothing (``O_PATH``) before it is opened: a pipe would make us wait,
  and a device would do something;
- an attribute is changed on what was opened, not on what has its name now;
- walks and reads have an end, and nobody is waited for who has a lease on a file;
- what is mounted there is recognised without asking it for anything: the server of a FUSE need not answer.

And the ways to a file of the machine that a request names: its links are followed, but by the kernel, and it is looked
at before it is opened.

Does not own: removal (``removal``). Called by whoever works on volumes, writable layers and trees of images.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from enum import IntFlag
from pathlib import Path

import msgspec

from podkeep.base.errors import FailedPrecondition, KernelCallError, ResourceExhausted
from podkeep.kernel import libc

_NR_OPENAT2 = 437  # the same on every architecture (include/uapi/asm-generic/unistd.h)


class Resolve(IntFlag):
    """``RESOLVE_*`` of openat2(2)."""

    NO_XDEV = 0x01
    NO_MAGICLINKS = 0x02
    NO_SYMLINKS = 0x04
    BENEATH = 0x08
    IN_ROOT = 0x10


CONFINED = Resolve.BENEATH | Resolve.NO_SYMLINKS | Resolve.NO_MAGICLINKS
"""No link is followed at all."""
INSIDE = Resolve.IN_ROOT | Resolve.NO_MAGICLINKS
"""Links are followed as in a chroot: absolute ones start at the descriptor."""
NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})
"""What the kernel says if a file is missing, or something else is in its place, or in that of a directory above."""

MAX_ENTRIES = 5_000_000
MAX_DEPTH = 10_000
_MAX_PATH = 128 * 1024
"""In characters of up to four bytes; a walk has one descriptor open for every ``_FAR`` bytes."""
_MAX_WAITING = 64 * 1024 * 1024
"""Bytes of the names of directories that a walk has still to look into."""
_NAME_BYTES = 64
"""What a name takes beside its own length."""
_FAR = 2000
"""Bytes of a path after which what is below is looked for from there, because paths end at 4096."""
_LIST = os.O_RDONLY | os.O_DIRECTORY


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_LIBC = ctypes.CDLL(None, use_errno=True)
_openat2 = _LIBC["syscall"]
_openat2.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_OpenHow), ctypes.c_size_t)
_openat2.restype = ctypes.c_long
_syncfs = _LIBC["syncfs"]
_syncfs.argtypes = (ctypes.c_int,)
_syncfs.restype = ctypes.c_int
_SIZE = ctypes.sizeof(_OpenHow)


def openat2(dirfd: int, path: bytes, flags: int, resolve: Resolve, *, mode: int = 0) -> int:
    """Open ``path`` relative to ``dirfd`` and return the descriptor, close-on-exec always.

    :raises KernelCallError: if the kernel refuses; EXDEV means that the path would leave ``dirfd``.
    """
    # ctypes would end the path there, and another file would be opened.
    if b"\0" in path:
        raise ValueError("embedded null byte")
    how = _OpenHow(flags=flags | os.O_CLOEXEC, mode=mode, resolve=int(resolve))
    fd: int = _openat2(_NR_OPENAT2, dirfd, path, ctypes.byref(how), _SIZE)
    if fd == -1:
        shown = os.fsdecode(path)
        raise KernelCallError(f"openat2({shown!r}, flags={flags:#x}, {resolve!r})", ctypes.get_errno())
    return fd


def syncfs(fd: int) -> None:
    """Write everything of the file system that ``fd`` is on to its disk.

    :raises KernelCallError: if writing failed.
    """
    if _syncfs(fd) == -1:
        raise KernelCallError(f"syncfs({fd})", ctypes.get_errno())


@contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of ``data`` to a descriptor, however little it takes at once.

    :raises OSError: if it takes no more.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def open_directory(path: Path | str) -> int:
    """Open a directory of our own by its path, to work below it. Its last component is no link; the caller closes it.

    :raises OSError: if it is missing, or not a directory.
    """
    return os.open(path, _LIST | os.O_NOFOLLOW | os.O_CLOEXEC)


def open_named(path: Path | str) -> int:
    """Open (``O_PATH``) what a path of the machine leads to that somebody names; the caller closes it.

    The kernel follows the links, 40 at most (path_resolution(7)). Python's ``realpath`` follows any number of them,
    calls itself for each, and a pod that may write there has it fail or run for as long as it likes.

    :raises OSError: if the kernel refuses.
    """
    # A slash at its end makes no difference, as in Go's filepath.Clean, and so in other runtimes.
    return os.open(str(path).rstrip("/") or "/", os.O_PATH | os.O_CLOEXEC)


def path_of(fd: int) -> str:
    """Return the absolute path, without links, of what a descriptor is of.

    :raises FileNotFoundError: if it has none here: it was removed, or is elsewhere, as what /proc/PID/root leads to.
    :raises OSError: if it is longer than paths can be.
    """
    # Of a removed file the link ends in " (deleted)", and a file of that name may exist: only samestat tells.
    path = os.readlink(f"/proc/self/fd/{fd}")
    with suppress(OSError):
        if path.startswith("/") and os.path.samestat(os.lstat(path), os.fstat(fd)):
            return path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def resolved(path: Path | str) -> str:
    """Return the absolute path, without links, of what a path of the machine leads to that somebody names.

    :raises OSError: as :func:`open_named` and :func:`path_of`.
    """
    with closing(open_named(path)) as fd:
        return path_of(fd)


def open_resolved(path: Path | str) -> int:
    """Open (``O_PATH``) a path in which there was no link when it was resolved; the caller closes it.

    It may be longer than paths can be: a container mounts something as deep as it likes, and the table of mounts says
    where.

    :raises FailedPrecondition: if there is a link in it now.
    :raises KernelCallError: if it cannot be opened.
    """
    rules, rest, above = Resolve.NO_SYMLINKS | Resolve.NO_MAGICLINKS, os.fsencode(path), libc.AT_FDCWD
    try:
        while len(rest) > _FAR:
            # A name has 255 bytes at most, so there is a slash.
            end = rest.rindex(b"/", 0, _FAR)
            below = openat2(above, rest[:end], os.O_PATH, rules)
            rest = rest[end + 1 :]
            if above != libc.AT_FDCWD:
                os.close(above)
            above = below
        return openat2(above, rest, os.O_PATH, rules)
    except KernelCallError as error:
        if error.errno == errno.ELOOP:
            raise FailedPrecondition(f"{path}: a symbolic link has been put there meanwhile") from error
        raise
    finally:
        if above != libc.AT_FDCWD:
            os.close(above)


def make_directories(path: Path, *, mode: int) -> None:
    """Make a directory of the machine that somebody names, and those above it that are missing.

    Links in what is there are followed, as by :func:`open_named`: /var/run is one. From the first directory on that is
    made, none is.

    :raises FailedPrecondition: naming what is in the way: a link to nothing, or something that was put there meanwhile.
    :raises OSError: if the kernel refuses.
    """
    missing: list[str] = []
    place = path
    while True:
        try:
            fd = open_named(place)
            break
        except FileNotFoundError:
            missing.append(place.name)
            place = place.parent
    try:
        for name in reversed(missing):
            # Somebody may have made it meanwhile, also as a link: openat2 below looks at what is there.
            with suppress(FileExistsError):
                os.mkdir(name, mode, dir_fd=fd)
            place /= name
            try:
                below = openat2(fd, os.fsencode(name), os.O_PATH | os.O_DIRECTORY, CONFINED)
            except KernelCallError as error:
                raise FailedPrecondition(f"{place} is in the way: it is no directory, or a symbolic link") from error
            os.close(fd)
            fd = below
    finally:
        os.close(fd)


def open_below(above: Path, names: Iterable[str], *, flags: int = os.O_PATH, make: bool = False) -> int:
    """Open a directory by the names that lead to it from ``above`` on; the caller closes it.

    Links in ``above`` are followed, which is the machine's, and none from there on: whoever writes there may exchange a
    directory for one at any time.

    :param make: make what is missing, but for ``above``.
    :raises FailedPrecondition: naming what is in the way: a link, or something else than a directory.
    :raises OSError: if one is missing, or the kernel refuses.
    """
    target, fd = above, os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names:
        target /= name
        with closing(fd):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=fd)
            try:
                fd = openat2(fd, os.fsencode(name), flags | os.O_DIRECTORY, CONFINED)
            except KernelCallError as error:
                if error.errno not in NOT_THERE or error.errno == errno.ENOENT:
                    raise OSError(error.errno, os.strerror(error.errno), str(target)) from error
                raise FailedPrecondition(
                    f"{target} cannot be entered: {os.strerror(error.errno)}",
                    hint="a directory has to be there, and no link",
                ) from error
    return fd


def reopen(fd: int, flags: int) -> int:
    """Open what a descriptor of ``O_PATH`` is of: this very file, whatever has its name now. The caller closes it.

    The caller has seen what it is: that of a pipe waits, that of a device does something. That of a file on which a
    process has a lease does not wait: the process may keep it for ``/proc/sys/fs/lease-break-time``, 45 s.

    :raises BlockingIOError: if a process has a lease on it.
    :raises OSError: if the kernel refuses.
    """
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_CLOEXEC)


def open_regular(dirfd: int, path: str | bytes, *, rules: Resolve = CONFINED) -> int | None:
    """Open a regular file for reading. None: there is none at ``path``, but nothing or something else.

    :raises KernelCallError: if the way there cannot be read.
    :raises BlockingIOError: if a process has a lease on the file.
    :raises OSError: if the file cannot be read.
    """
    try:
        fd = openat2(dirfd, os.fsencode(path), os.O_PATH, rules)
    except KernelCallError as error:
        if error.errno in NOT_THERE:
            return None
        raise
    with closing(fd):
        # O_PATH opened nothing yet: opening a FIFO would wait for its writer, and opening a device may do something.
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        try:
            return reopen(fd, os.O_RDONLY)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, "a process has a lease on it (fcntl(2), F_SETLEASE)", path) from error


def open_named_regular(path: Path | str) -> int | None:
    """Open a regular file of the machine that somebody names for reading, links followed as by :func:`open_named`.

    None: something else is there, which is not opened: that of a device does something. The caller closes it.

    :raises OSError: if there is nothing, or it cannot be read.
    """
    with closing(open_named(path)) as fd:
        return reopen(fd, os.O_RDONLY) if stat.S_ISREG(os.fstat(fd).st_mode) else None


def open_beside(path: Path | str) -> int | None:
    """Open a regular file by a path whose directories are the machine's; only its last component may be hostile.

    None: there is none at ``path``, but nothing or something else, or a process has a lease on it. The caller closes
    it.

    :raises OSError: if it cannot be read, or the way there.
    """
    try:
        above = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with closing(above):
        return open_in(above, os.path.basename(path))


def open_in(dirfd: int, name: str) -> int | None:
    """Open a regular file of a directory for reading; the caller closes it. None: as :func:`open_beside`.

    :raises OSError: if it cannot be read.
    """
    with suppress(BlockingIOError):
        return open_regular(dirfd, name)
    return None


def status(dirfd: int, name: str) -> os.stat_result:
    """Return what has a name in a directory, a link itself.

    The kernel alone is asked: the server of a file system that a pod has mounted there need not answer.

    :raises OSError: if it cannot be asked, FileNotFoundError if nothing has the name.
    """
    try:
        return libc.look(dirfd, os.fsencode(name)).status
    except KernelCallError as error:
        raise OSError(error.errno, os.strerror(error.errno), name) from error


def read_bytes(fd: int, limit: int) -> bytes:
    """Return what comes next of a file, at most ``limit`` bytes.

    :raises OSError: if it cannot be read.
    """
    pieces = []
    while limit > 0 and (piece := os.read(fd, min(limit, 1 << 20))):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)


def read_regular(dirfd: int, path: str | bytes, limit: int, *, rules: Resolve = CONFINED) -> bytes | None:
    """Return the first ``limit`` bytes of a regular file. None: there is none, or a process has a lease on it.

    :raises KernelCallError: if the way there cannot be read.
    :raises OSError: if the file cannot be read.
    """
    try:
        fd = open_regular(dirfd, path, rules=rules)
    except BlockingIOError:
        return None
    if fd is None:
        return None
    with closing(fd):
        return read_bytes(fd, limit)


def change(fd: int, *, uid: int = -1, gid: int = -1, mode: int | None = None) -> None:
    """Change owner and permission bits of what a descriptor is of, also one of ``O_PATH``, but not one of a link.

    :raises OSError: if the kernel refuses.
    """
    own = f"/proc/self/fd/{fd}"
    if (uid, gid) != (-1, -1):
        os.chown(own, uid, gid)
    # In this order: a change of the owner clears set-user-ID and set-group-ID bits.
    if mode is not None:
        os.chmod(own, mode)


class Found(msgspec.Struct):
    """Something in a tree, as it was when it was looked at. It holds until the next one is asked for.

    ``directory`` is a descriptor of the directory that it is in, ``status`` that of a link, not of its target.
    """

    directory: int
    name: str
    status: os.stat_result
    _above: Sequence[str]

    @property
    def path(self) -> str:
        """Its path from the top of the tree on."""
        return "/".join((*self._above, self.name))

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


class _Level(msgspec.Struct):
    """A directory on the way from the top, and which of those in it are still to be walked."""

    base: int
    path: bytes
    """From ``base`` on; empty if it is ``base``."""
    names: list[str]
    weight: int
    is_own: bool
    """Whether ``base`` was opened for it."""


class _Walk(msgspec.Struct):
    root: int
    rules: Resolve
    max_entries: int
    tolerant: bool
    passed: Collection[str]
    too_deep: Callable[[], None] | None = None
    above: list[str] = []
    levels: list[_Level] = []
    entries: int = 0
    waiting: int = 0
    length: int = 0
    """Of the path of the current directory, in characters."""

    def run(self) -> Iterator[Found]:
        try:
            yield from self._directory(self.root, b".")
            while self.levels:
                level = self.levels[-1]
                if not level.names:
                    self._leave()
                    continue
                name = level.names.pop()
                self.above.append(name)
                self.length += len(name) + 1
                before = len(self.levels)
                yield from self._directory(level.base, os.path.join(level.path, os.fsencode(name)))
                # There was nothing in it to go into, so that no level takes its name away later.
                if len(self.levels) == before:
                    self.length -= len(self.above.pop()) + 1
        finally:
            while self.levels:
                self._leave()

    def _leave(self) -> None:
        level = self.levels.pop()
        self.waiting -= level.weight
        if self.above:
            self.length -= len(self.above.pop()) + 1
        if level.is_own:
            os.close(level.base)

    def _directory(self, base: int, path: bytes) -> Iterator[Found]:
        """Yield what is in one directory, and note which directories there are."""
        try:
            fd = openat2(base, path, _LIST, self.rules)
        except KernelCallError as error:
            if self.tolerant or error.errno in NOT_THERE:
                return
            raise
        # Most directories are reached from the last far one by their path, so that depth costs few descriptors.
        far = len(path) > _FAR
        kept = False
        try:
            level = _Level(base=fd if far else base, path=b"" if far else path, names=[], weight=0, is_own=far)
            yield from self._entries(fd, level)
            if level.names:
                self.levels.append(level)
                # Below a far directory paths begin at its descriptor, which the level closes when it is left.
                kept = far
        finally:
            if not kept:
                os.close(fd)

    def _entries(self, fd: int, level: _Level) -> Iterator[Found]:
        with suppress(OSError) if self.tolerant else nullcontext(), os.scandir(fd) as entries:
            for entry in entries:
                status = self._status(fd, os.fsencode(entry.name))
                if status is None:
                    continue
                self.entries += 1
                if self.entries > self.max_entries:
                    raise ResourceExhausted(f"there are more than {self.max_entries} files and directories")
                yield Found(fd, entry.name, status, self.above)
                if stat.S_ISDIR(status.st_mode) and entry.name not in self.passed:
                    self._note(level, entry.name)

    def _status(self, fd: int, name: bytes) -> os.stat_result | None:
        """Return what an entry is; None: it is gone, or something else is mounted there, which is left out."""
        one_mount = Resolve.NO_XDEV in self.rules
        try:
            found = libc.look(fd, name)
        except KernelCallError as error:
            if self.tolerant or error.errno in NOT_THERE:
                return None
            # A FUSE that a user namespace has mounted tells even root nothing.
            if one_mount and error.errno == errno.EACCES and libc.is_mount_root(fd, name):
                return None
            raise
        return None if one_mount and found.mounted else found.status

    def _note(self, level: _Level, name: str) -> None:
        weight = len(name) + _NAME_BYTES
        self.waiting += weight
        level.weight += weight
        # Whoever fills a volume may make millions of directories beside each other.
        if self.waiting > _MAX_WAITING:
            raise ResourceExhausted("there are too many directories beside each other")
        if len(self.above) < MAX_DEPTH and self.length + len(name) <= _MAX_PATH:
            level.names.append(name)
        elif self.too_deep is None:
            raise ResourceExhausted("there are too many directories inside each other")
        else:
            self.too_deep()


def walk(
    root: int,
    *,
    max_entries: int = MAX_ENTRIES,
    one_mount: bool = True,
    tolerant: bool = False,
    passed: Collection[str] = (),
    too_deep: Callable[[], None] | None = None,
) -> Iterator[Found]:
    """Yield everything below the directory behind ``root``, and not ``root``; a directory before what is in it.

    What vanishes meanwhile is left out, and so are what a link leads to and, with ``one_mount``, what is mounted below.
    Memory and open descriptors are bounded.

    :param tolerant: also pass over what cannot be read.
    :param passed: names of directories, wherever they are, that are not looked into.
    :param too_deep: called for each directory that is inside of more others than a walk takes, and is not looked into.
    :raises ResourceExhausted: after what was yielded, if there are more entries, or directories in each other or beside
        each other, than a walk takes.
    :raises KernelCallError: if a directory cannot be opened.
    :raises OSError: if it cannot be read.
    """
    rules = CONFINED | (Resolve.NO_XDEV if one_mount else Resolve(0))
    return _Walk(
        root=root, rules=rules, max_entries=max_entries, tolerant=tolerant, passed=passed, too_deep=too_deep
    ).run()
