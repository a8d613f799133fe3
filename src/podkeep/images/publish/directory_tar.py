"""A directory as a tar that is the same whenever its content is, and that holds nothing from anywhere else.

Owns: which entries there are and what is kept of them (docs/artifacts.md), and noticing that something changes while it
is read. Does not own: compression, digests and annotations (``packing.py``).
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.images.formats.media_types import WHITEOUT
from podkeep.images.layers.rules import MAX_PATH
from podkeep.kernel.files.openat import Resolve, openat2

Count = Callable[[int], None]
"""Is told how many more bytes were read."""
PIECE = 1 << 18
_BLOCK = tarfile.BLOCKSIZE
_SWAPPED = (errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.EXDEV)
"""Why something that was there a moment ago cannot be opened: it is gone, or something else took its place."""


def tar_of(root: Path, *, top: str, mtime: int, count: Count) -> Iterator[bytes]:
    """Yield a tar of a directory: entries sorted by name, owned by root, permissions as they are without setuid,
    setgid and sticky bits; symbolic links stay links, and files with several names are several files.

    Nothing outside of the directory is read, whatever becomes of what is in it meanwhile.

    :param top: what the directory itself is called in it; empty: it has no entry, its content is at the root.
    :raises InvalidArgument: if something in it is no file, directory or symbolic link, or has a name that no artifact
        can hold.
    :raises FailedPrecondition: if something changes while it is read.
    """
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if top:
            yield _header(top, os.fstat(at), mtime, tarfile.DIRTYPE)
        prefix = f"{top}/" if top else ""
        # Not recursive: trees may well be deeper than Python's stack.
        waiting = _listed(at, root, "")
        while waiting:
            found = waiting.pop()
            name, mode = prefix + found.path, found.status.st_mode
            if len(name.encode()) > MAX_PATH:
                raise InvalidArgument(f"{root / found.path}: the path is longer than the {MAX_PATH} bytes of Linux")
            if stat.S_ISDIR(mode):
                yield _header(name, found.status, mtime, tarfile.DIRTYPE)
                waiting += _listed(at, root, found.path)
            elif stat.S_ISLNK(mode):
                yield _header(name, found.status, mtime, tarfile.SYMTYPE, link=found.link)
            elif stat.S_ISREG(mode):
                yield from _file(_opened(at, root, found.path), str(root / found.path), name, mtime, count)
            else:
                raise InvalidArgument(
                    f"{root / found.path} is a {_kind(mode)}, which an artifact cannot hold",
                    hint="remove it, or push the files one by one",
                )
    finally:
        os.close(at)
    yield bytes(2 * _BLOCK)


class _Found(FrozenStruct, kw_only=True):
    """What is in a directory; ``path`` is relative to the one that is packed, ``link`` a symbolic link's target."""

    path: str
    status: os.stat_result
    link: str = ""


def _listed(at: int, root: Path, directory: str) -> list[_Found]:
    """Return the entries of a directory, the first one last."""
    fd = _opened(at, root, directory or ".", os.O_DIRECTORY)
    try:
        names = sorted(os.listdir(fd), key=os.fsencode, reverse=True)
        return [_found(fd, root, f"{directory}/{name}" if directory else name, name) for name in names]
    finally:
        os.close(fd)


def _found(fd: int, root: Path, path: str, name: str) -> _Found:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{os.fsencode(root / path)!r}: the name is not UTF-8") from error
    if name.startswith(WHITEOUT):
        raise InvalidArgument(
            f"{root / path}: a name that starts with {WHITEOUT} means in an archive that a file is gone",
            hint="rename it",
        )
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        link = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(status.st_mode) else ""
    except OSError as error:
        raise changed(str(root / path)) from error
    return _Found(path=path, status=status, link=link)


def _opened(at: int, root: Path, path: str, flags: int = 0) -> int:
    """Open what is below ``at`` at a path without symbolic links, which somebody may just have put there."""
    how = Resolve.BENEATH | Resolve.NO_SYMLINKS
    try:
        # O_NONBLOCK: a FIFO in the place of a file would wait for its writer.
        return openat2(at, os.fsencode(path), os.O_RDONLY | os.O_NONBLOCK | flags, how)
    except KernelCallError as error:
        if error.errno in _SWAPPED:
            raise changed(str(root / path)) from error
        raise PodkeepError(f"{root / path}: {os.strerror(error.errno)}") from error


def _kind(mode: int) -> str:
    if stat.S_ISSOCK(mode):
        return "socket"
    return "named pipe" if stat.S_ISFIFO(mode) else "device"


def _file(fd: int, shown: str, name: str, mtime: int, count: Count) -> Iterator[bytes]:
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise changed(shown)
        yield _header(name, before, mtime, tarfile.REGTYPE, size=before.st_size)
        left = before.st_size
        while left:
            piece = os.read(fd, min(PIECE, left))
            if not piece:
                raise changed(shown)
            left -= len(piece)
            count(len(piece))
            yield piece
        # The header was sent before the content: only afterwards it is known whether the two belong together.
        if not same(before, os.fstat(fd)):
            raise changed(shown)
    finally:
        os.close(fd)
    yield bytes(-before.st_size % _BLOCK)


def _header(name: str, status: os.stat_result, mtime: int, kind: bytes, *, link: str = "", size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mtime = kind, link, size, mtime
    # Owner and group stay those of a new TarInfo, so that the archive depends on the content only.
    info.mode = status.st_mode & 0o777
    try:
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name}: it links to something whose name is not UTF-8") from error


def changed(shown: str) -> FailedPrecondition:
    """Return the error for a file that did not stay as it was."""
    return FailedPrecondition(f"{shown} changed while it was being pushed", hint="push it when nobody writes to it")


def same(one: os.stat_result, other: os.stat_result) -> bool:
    """Return whether a file seems to be as it was."""
    return (one.st_size, one.st_mtime_ns) == (other.st_size, other.st_mtime_ns)
