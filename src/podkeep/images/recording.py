"""What of a tar is not in the tree made of it: headers and padding, recorded so that the tar can be put together again.

A record is a compressed sequence of steps: bytes as they are, then a part of a file. An empty record says that it
cannot be done: a later entry replaced a file, and its content is gone. ``Recorder`` runs in the confined unpack process
on a descriptor opened before, ``replay`` where layers are read.

The same serves a layer that is one file; its record has one step.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import zstandard

from podkeep.base.errors import DataLoss, FailedPrecondition, KernelCallError
from podkeep.kernel.openat import Resolve, openat2

SUFFIX = ".headers"
"""Of the record's name, beside the staged tree's."""
_STEP = struct.Struct("<IHQQ")
"""Bytes as they are that come first, length of the path, offset and length of the part of that file."""
_MAX_LITERAL = 1 << 20
_PIECE = 1 << 20
_BENEATH = Resolve.BENEATH | Resolve.NO_SYMLINKS


class Recorder:
    """Writes a record to ``fd``, an empty file, while the tar passes by."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._compressor = zstandard.ZstdCompressor(level=1).compressobj()
        self._pieces: deque[memoryview] = deque()
        self._first = 0
        """Position in the tar of the first piece that is kept."""
        self._skip_to = 0
        self._possible = True

    def passing(self, pull: Callable[[], bytes]) -> Callable[[], bytes]:
        """Return a function that returns what ``pull`` returns, and looks at it.

        Whoever asks for more has made use of all that came before: what was not announced by then is no content.
        """

        def pull_passing() -> bytes:
            if self._possible:
                self._literal(self._first + sum(map(len, self._pieces)))
            piece = pull()
            if piece and self._possible:
                self._pieces.append(memoryview(piece))
                self._drop()
            return piece

        return pull_passing

    def announce(self, position: int, length: int) -> None:
        """Say, before they are asked for, that so many bytes from ``position`` on are content; it is not kept."""
        if self._possible:
            self._literal(position)
            self._skip_to = position + length
            self._drop()

    def content(self, path: bytes, parts: Sequence[tuple[int, int]]) -> None:
        """Record that what was announced is now parts (offset, length) of the file at ``path``."""
        if self._possible:
            for offset, length in parts:
                self._write(_STEP.pack(0, len(path), offset, length) + path)

    def give_up(self) -> None:
        """Record that the tar cannot be put together again."""
        self._possible = False
        self._pieces.clear()

    def finish(self) -> int:
        """Write what is left; return the record's size."""
        if self._possible:
            self._literal(self._first + sum(map(len, self._pieces)))
            self._write_out(self._compressor.flush())
        else:
            os.ftruncate(self._fd, 0)
        return os.fstat(self._fd).st_size

    def _literal(self, end: int) -> None:
        while self._first < end:
            piece = self._pieces[0][: min(end - self._first, _MAX_LITERAL)]
            self._write(_STEP.pack(len(piece), 0, 0, 0))
            self._write(piece)
            self._skip_to = self._first + len(piece)
            self._drop()
        self._skip_to = max(self._skip_to, end)

    def _drop(self) -> None:
        """Forget what comes before ``_skip_to``."""
        while self._pieces and self._first < self._skip_to:
            gone = min(self._skip_to - self._first, len(self._pieces[0]))
            self._first += gone
            if gone == len(self._pieces[0]):
                self._pieces.popleft()
            else:
                self._pieces[0] = self._pieces[0][gone:]

    def _write(self, data: bytes | memoryview) -> None:
        self._write_out(self._compressor.compress(data))

    def _write_out(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]


def record_file(fd: int, name: bytes, size: int) -> int:
    """Write to ``fd``, an empty file, the record of a layer that is the file ``name``; return the record's size."""
    recorder = Recorder(fd)
    recorder.content(name, [(0, size)])
    return recorder.finish()


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
