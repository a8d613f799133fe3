"""What of a tar is not in the tree made of it: headers and padding, recorded so that the tar can be put together again.

A record is a compressed sequence of steps: bytes as they are, then a part of a file. An empty record says that it
cannot be done: a later entry replaced a file, and its content is gone. ``Recorder`` runs in the confined unpack process
on a descriptor opened before, ``replay`` where layers are read.

The same serves a layer that is one file; its record has one step.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

import zstandard

from podkeep.base.errors import DataLoss, FailedPrecondition, KernelCallError
from podkeep.kernel.files.openat import Resolve, openat2, write_all

_STEP = struct.Struct("<IHQQ")
"""Bytes as they are that come first, length of the path, offset and length of the part of that file."""
_PIECE = 1 << 20
_BENEATH = Resolve.BENEATH | Resolve.NO_SYMLINKS


class Recorder:
    """Writes a record to ``fd``, an empty file, while the tar passes by. Holds no more of it than the latest piece."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._compressor = zstandard.ZstdCompressor(level=1).compressobj()
        self._piece = memoryview(b"")
        self._start = 0
        """Position of the piece in the tar."""
        self._done = 0
        """Up to where the tar is recorded, or known to be in a file."""
        self._possible = True

    def passing(self, pull: Callable[[], bytes]) -> Callable[[], bytes]:
        """Return a function that returns what ``pull`` returns, and looks at it."""

        def pull_passing() -> bytes:
            # Who asks for more has read what was there, and what of that was content has been said.
            self._literal(self._start + len(self._piece))
            self._start += len(self._piece)
            piece = pull()
            self._piece = memoryview(piece)
            return piece

        return pull_passing

    def taken(self, position: int, length: int, content: Iterator[memoryview]) -> Iterator[memoryview]:
        """Yield ``content``, which is the tar's ``length`` bytes from ``position`` on; if it is asked for, it will be
        in a file."""
        self._literal(position)
        self._done = position + length
        yield from content

    def content(self, path: bytes, parts: Iterable[tuple[int, int]]) -> None:
        """Record that what was taken last are parts (offset, length) of the file at ``path``."""
        for offset, length in parts:
            if length:
                self._write(_STEP.pack(0, len(path), offset, length) + path)

    def give_up(self) -> None:
        """Record that the tar cannot be put together again."""
        self._possible = False

    def finish(self) -> None:
        self._literal(self._start + len(self._piece))
        if self._possible:
            write_all(self._fd, self._compressor.flush())
        else:
            # Empty says that the tar cannot be put together again; half of a record would say damage.
            os.ftruncate(self._fd, 0)

    def _literal(self, end: int) -> None:
        """Record the bytes up to ``end`` that are not yet, which the piece has."""
        if end <= self._done:
            return
        data = self._piece[self._done - self._start : end - self._start]
        self._write(_STEP.pack(len(data), 0, 0, 0))
        self._write(data)
        self._done = end

    def _write(self, data: bytes | memoryview) -> None:
        if self._possible:
            write_all(self._fd, self._compressor.compress(data))


def record_file(fd: int, name: bytes, size: int) -> None:
    """Write to ``fd``, an empty file, the record of a layer that is the file ``name``."""
    recorder = Recorder(fd)
    recorder.content(name, [(0, size)])
    recorder.finish()


def replay(record: Path, tree: Path) -> Iterator[bytes]:
    """Yield the tar that ``tree`` was made of.

    :raises FailedPrecondition: if it was not recorded, or cannot be put together again.
    :raises DataLoss: if a file is gone or too short, or the record is damaged.
    """
    try:
        compressed = record.open("rb")
    except FileNotFoundError:
        raise FailedPrecondition(
            f"{tree}: this layer is kept without the headers of its archive", hint="pull the image again"
        ) from None
    with compressed:
        if not os.fstat(compressed.fileno()).st_size:
            raise FailedPrecondition(
                f"{tree}: the archive of this layer cannot be put together again: it has a file twice, and the first"
                " one's content is not kept"
            )
        top = os.open(tree, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield from _steps(zstandard.ZstdDecompressor().stream_reader(compressed), top)
        except (zstandard.ZstdError, OSError, KernelCallError, struct.error) as error:
            raise DataLoss(f"{tree}: {error}", hint="remove the image and pull it again") from error
        finally:
            os.close(top)


def _steps(steps: IO[bytes], top: int) -> Iterator[bytes]:
    while head := _exactly(steps, _STEP.size):
        literal, path_bytes, offset, length = _STEP.unpack(head)
        if literal:
            yield _exactly(steps, literal)
        if path_bytes:
            # The record was written by a process that a layer may have taken over: its paths may be any.
            fd = openat2(top, _exactly(steps, path_bytes), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, _BENEATH)
            try:
                yield from _part(fd, offset, length)
            finally:
                os.close(fd)


def _part(fd: int, offset: int, length: int) -> Iterator[bytes]:
    while length:
        piece = os.pread(fd, min(length, _PIECE), offset)
        if not piece:
            raise OSError(f"a file ends {length} bytes too early")
        yield piece
        offset += len(piece)
        length -= len(piece)


def _exactly(steps: IO[bytes], count: int) -> bytes:
    """Return ``count`` bytes, or fewer at the end."""
    data = b""
    while len(data) < count and (piece := steps.read(count - len(data))):
        data += piece
    return data
