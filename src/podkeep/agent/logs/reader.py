"""The log files of containers: reading, and following across rotation.

The form is the CRI logging format (kubelet: ``<time> <stdout|stderr> <tags> <text>``, a line each, tag ``P`` for a
record that the next one continues). Does not own: where a log is (``ContainerStatus.log_path``), the way to it
(``files.py``), or rotating it (``rotation.py``). Called by the verbs that show logs, and by the kubelet's endpoint for
them.

What a container wrote is read in bounded pieces, whatever it wrote: many lines, or one without an end.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import structs

from podkeep.agent.logs import files as log_files
from podkeep.agent.logs.rotation import RotatedLog
from podkeep.agent.logs.rotation import rotated as rotated_logs
from podkeep.agent.logs.unpacked import UnpackedFile
from podkeep.base.errors import DataLoss, NotFound
from podkeep.base.frozen import FrozenStruct

_BLOCK = 64 * 1024
READ_BYTES = 256 * 1024
"""How much of a log is read before others get their turn."""
_DAMAGED = (EOFError, zlib.error)
"""What is raised where a compressed file is cut or not what it was."""
MAX_RECORD = 1 << 20
"""The longest record that is held in memory; runtimes write 16 KiB at most, unless they are told otherwise."""


class Record(FrozenStruct, kw_only=True):
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


def tail_offset(file: io.BufferedIOBase, lines: int, *, block: int = _BLOCK) -> int:
    """Return where the last ``lines`` lines start; a line that was written as several records counts once, and so does
    one that has no end yet.

    :param block: how many bytes to read at a time.
    """
    end = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return end
    position, tail, seen, is_last = end, b"", 0, True
    while position > 0:
        step = min(block, position)
        position -= step
        file.seek(position)
        tail = file.read(step) + tail
        # Or a record without an end, which a container can write, would have the whole log in memory.
        if len(tail) > MAX_RECORD + block:
            raise DataLoss("a record of the log has no end", hint="leave out --tail")
        # The first piece may be the rest of a line that starts in an earlier block.
        first, *complete = _lines(tail) if position else (b"", *_lines(tail))
        offset = end
        for line in reversed(complete):
            offset -= len(line)
            record = _record(line)
            if record is None:
                continue
            if is_last or not record.partial:
                seen += 1
                if seen > lines:
                    return offset + len(line)
            is_last = False
        tail, end = first, position + len(first)
    return 0


def _record(line: bytes) -> Record | None:
    """Return a record that is there whole; None for what is no record, which is not shown."""
    try:
        return parse(line) if line.endswith(b"\n") else None
    except DataLoss:
        return None


def _lines(data: bytes) -> list[bytes]:
    """Return the lines of ``data`` with their newlines; only a newline ends a line of a log."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop().removesuffix(b"\n")
    return [*lines, last] if last else lines


class LogReader:
    """Reads a log from its start or its last lines on, and goes on in the new file when the log was rotated.

    A log is rotated by renaming it to ``<name>.<time>`` and having the runtime open a new one under the old name (CRI:
    ReopenContainerLog); later the renamed one may be compressed to ``<name>.<time>.gz``. Files that were rotated
    between two reads are read in their order. What was removed before it was read sets :attr:`gap`, and so does a log
    that was cut, which is read from its start again.

    Lines that are none of a log, as a full disk leaves them, are left out, and so is what a damaged file does not
    yield: neither keeps a container from being shown.

    :param tail: how many lines of the current file; ``None``: all, and so for one that is compressed, which the current
        one is only if somebody else has a hand in it.
    :param rotated: begin with the oldest file that is there, not with the current one.
    :raises NotFound: if there is no such file.
    :raises FailedPrecondition: if there is a link on the way to its directory.
    """

    def __init__(self, path: Path, *, tail: int | None = None, rotated: bool = False) -> None:
        self._path = path
        self._file = _open_oldest(path) if rotated else _open_newest(path)
        self._rest = b""
        self.gap = False
        """Whether records were removed before they were read, which was not told yet."""
        self._damaged = False
        self._told_damage = False
        self.behind = False
        """Whether the last read ended because of its limit."""
        # One that is compressed would be unpacked from its start again for each block that is looked at from its end:
        # hours for 16 KB that unpack to 16 MB.
        if tail is not None and not isinstance(self._file, UnpackedFile):
            self._file.seek(tail_offset(self._file, tail))

    def left_out(self) -> list[str]:
        """Return what is to be said of output that is not shown: of removed files each time, of damage once."""
        messages = ["output is left out: it was removed from the log before it was shown"] if self.gap else []
        if self._damaged and not self._told_damage:
            messages.append(f"output is left out: the log {self._path} is damaged")
        self.gap, self._told_damage = False, self._damaged
        return messages

    def to_read(self) -> int:
        """Return how many bytes of the file that is being read were not read yet."""
        return max(0, os.fstat(self._file.fileno()).st_size - self._file.tell())

    def read(self, limit: int = READ_BYTES) -> Iterator[Record]:
        """Yield complete records that were not yielded before: all that are there, or those in about ``limit`` bytes.

        One that is longer than a record should ever be comes in pieces, all but the last as partial.

        :raises FailedPrecondition: if a link was put on the way to its directory.
        :raises OSError: if the log cannot be read.
        """
        self.behind = False
        while True:
            rotated = self._is_rotated()  # asked first: what is written before the rename is in the file then
            self._follow_cut()
            while taken := self._block(min(_BLOCK, limit)):
                block, packed = taken
                # Unpacking costs what it takes as well as what it gives: it may give nothing.
                limit -= max(len(block), packed)
                yield from self._records(block)
                if limit <= 0:
                    self.behind = True
                    return
            if not rotated or not self._advance():
                return

    def close(self) -> None:
        self._file.close()

    def _block(self, size: int) -> tuple[bytes, int] | None:
        """Return what comes next, at most ``size`` bytes, and how many were read for it.

        None at the end, or where a damaged file ends for us.
        """
        if not isinstance(self._file, UnpackedFile):
            block = self._file.read1(size)
            return (block, len(block)) if block else None
        try:
            block, packed = self._file.read(size)
        except _DAMAGED:
            self._damaged = True
            return None
        return (block, packed) if block or packed else None

    def _records(self, block: bytes) -> Iterator[Record]:
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            yield from self._parsed(line)
        if len(self._rest) > MAX_RECORD:
            pieces = self._parsed(self._rest)
            # The head of the record is kept, so that what comes next of it is a record of its own with the same time
            # and stream.
            self._rest = b" ".join((*self._rest.split(b" ", 3)[:3], b"")) if pieces else b""
            for piece in pieces:
                yield structs.replace(piece, partial=True, text=piece.text if piece.partial else piece.text[:-1])

    def _parsed(self, line: bytes) -> list[Record]:
        """Return the record that a line stands for; none if it is damaged."""
        try:
            return [parse(line)]
        except DataLoss:
            self._damaged = True
            return []

    def _follow_cut(self) -> None:
        """Begin anew in a file that somebody has cut (logrotate: ``copytruncate``); its writer goes on at its end."""
        if isinstance(self._file, UnpackedFile) or os.fstat(self._file.fileno()).st_size >= self._file.tell():
            return
        self._file.seek(0)
        # What was written since the last read was cut off as well.
        self._rest, self.gap = b"", True

    def _is_rotated(self) -> bool:
        now = log_files.status(self._path)
        return now is not None and not os.path.samestat(now, os.fstat(self._file.fileno()))

    def _advance(self) -> bool:
        """Go on in the file that follows the one that was read to its end; return whether there is one."""
        own = os.fstat(self._file.fileno())
        passed: set[str] = set()
        while True:
            files = rotated_logs(self._path)
            place = next((index for index, file in enumerate(files) if file.is_of(own)), None)
            # If it is gone, so may be others.
            later = [file for file in files if file.mtime_ns > own.st_mtime_ns] if place is None else files[place + 1 :]
            following = next((file for file in later if file.name not in passed), None)
            try:
                replacement = _open(self._path) if following is None else _open_rotated(following, self._path)
            except NotFound:
                if following is None:
                    return False  # between its rename and the new one
                # Compressed or removed since it was listed; or still there, and cannot be opened: then it is left out.
                passed.add(following.name)
                continue
            if following is None and rotated_logs(self._path)[-1:] != files[-1:]:
                replacement.close()  # rotated since it was listed: another one comes first
                continue
            break
        self.gap = self.gap or place is None or any(file.name in passed for file in later)
        self._file.close()
        self._file, self._rest = replacement, b""
        return True


def _open_oldest(path: Path) -> io.BufferedReader | UnpackedFile:
    """Open the first of the files that a log was written to, of those that are there and can be opened."""
    for file in rotated_logs(path):
        with suppress(NotFound):
            return _open_rotated(file, path)
    return _open_newest(path)


def _open_newest(path: Path) -> io.BufferedReader | UnpackedFile:
    """Open the log, or between its rename and the new one what was renamed."""
    try:
        return _open(path)
    except NotFound:
        if not (rotated := rotated_logs(path)):
            raise
        return _open_rotated(rotated[-1], path)


def _open(path: Path, *, compressed: bool = False) -> io.BufferedReader | UnpackedFile:
    fd = log_files.open_log(path)
    if fd is None:
        raise NotFound(f"no log at {path}", hint="the container has not started, or its log was removed")
    return UnpackedFile(fd) if compressed else os.fdopen(fd, "rb")


def _open_rotated(file: RotatedLog, path: Path) -> io.BufferedReader | UnpackedFile:
    return _open(path.with_name(file.name), compressed=file.compressed)
