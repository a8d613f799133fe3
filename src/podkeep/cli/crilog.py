"""The log files of containers: reading, following across rotation, and printing.

The form is the CRI logging format (kubelet: ``<time> <stdout|stderr> <tags> <text>``, a line each, tag ``P`` for a
record that the next one continues). Does not own: where a log is (``ContainerStatus.log_path``). Called by the verbs
that show logs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from podkeep.base.errors import DataLoss, NotFound

_BLOCK = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record of a log. ``text`` is what the container wrote, without a line's end if ``partial``."""

    time: bytes
    stream: bytes
    partial: bool
    text: bytes


def parse(line: bytes) -> Record:
    """Return the record that ``line``, ending in a newline or not, stands for.

    :raises DataLoss: if it is not in the CRI logging format.
    """
    time, _, rest = line.partition(b" ")
    stream, _, rest = rest.partition(b" ")
    tags, separator, text = rest.partition(b" ")
    if stream not in {b"stdout", b"stderr"} or not separator:
        raise DataLoss(f"not a line in the CRI logging format: {line[:120]!r}")
    partial = b"P" in tags.split(b":")
    text = text.removesuffix(b"\n")
    return Record(time=time, stream=stream, partial=partial, text=text if partial else text + b"\n")


def tail_offset(file: IO[bytes], lines: int, *, block: int = _BLOCK) -> int:
    """Return where the last ``lines`` lines start; a line that was written as several records counts once.

    :param block: how many bytes to read at a time.
    """
    end = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return end
    position, tail, seen = end, b"", 0
    while position > 0:
        step = min(block, position)
        position -= step
        file.seek(position)
        tail = file.read(step) + tail
        # The first piece may be the rest of a line that starts in an earlier block.
        first, *complete = _lines(tail) if position else (b"", *_lines(tail))
        offset = end
        for line in reversed(complete):
            offset -= len(line)
            if line.endswith(b"\n") and not parse(line).partial:
                seen += 1
                if seen > lines:
                    return offset + len(line)
        tail, end = first, position + len(first)
    return 0


def _lines(data: bytes) -> list[bytes]:
    """Return the lines of ``data`` with their newlines; only a newline ends a line of a log."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop().removesuffix(b"\n")
    return [*lines, last] if last else lines


class LogReader:
    """Reads a log from its start or its last lines on, and goes on in the new file when the log was rotated.

    A log is rotated by renaming it and having the runtime open a new one under the old name (CRI: ReopenContainerLog).

    :param tail: how many lines of what is there now; ``None``: all.
    :raises NotFound: if there is no such file.
    """

    def __init__(self, path: Path, *, tail: int | None = None) -> None:
        self._path = path
        self._file = _open(path)
        self._rest = b""
        if tail is not None:
            self._file.seek(tail_offset(self._file, tail))

    def read(self) -> Iterator[Record]:
        """Yield every complete record that is there now and was not yielded before."""
        while True:
            yield from self._read_file()
            if not self._rotated():
                return
            # What was written between the last read and the rename is still in the old file.
            yield from self._read_file()
            replacement = _open(self._path)
            self._file.close()
            self._file, self._rest = replacement, b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_file(self) -> Iterator[Record]:
        while block := self._file.read(_BLOCK):
            *lines, self._rest = (self._rest + block).split(b"\n")
            for line in lines:
                yield parse(line)

    def _rotated(self) -> bool:
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return False
        own = os.fstat(self._file.fileno())
        return (now.st_dev, now.st_ino) != (own.st_dev, own.st_ino)


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise NotFound(f"no log at {path}", hint="the container has not started, or its log was removed") from error


class Printer:
    """Writes records to the stream they came from, with their times in front if asked."""

    def __init__(self, stdout: IO[bytes], stderr: IO[bytes], *, timestamps: bool = False) -> None:
        self._outputs = {b"stdout": stdout, b"stderr": stderr}
        self._timestamps = timestamps
        self._within_line: set[bytes] = set()

    def write(self, record: Record) -> None:
        """Write one record."""
        output = self._outputs[record.stream]
        if self._timestamps and record.stream not in self._within_line:
            output.write(record.time + b" ")
        output.write(record.text)
        if record.partial:
            self._within_line.add(record.stream)
        else:
            self._within_line.discard(record.stream)

    def flush(self) -> None:
        """Hand everything written so far to whoever reads it."""
        for output in self._outputs.values():
            output.flush()
