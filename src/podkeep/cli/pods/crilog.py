"""Printing what containers wrote. Does not own: reading it (``agent.logs.reader``)."""

from __future__ import annotations

from typing import IO

from podkeep.agent.logs.reader import Record


class Printer:
    """Writes records to the stream they came from, with their times in front if asked.

    :param prefix: what stands in front of each line.
    """

    def __init__(self, stdout: IO[bytes], stderr: IO[bytes], *, timestamps: bool = False, prefix: bytes = b"") -> None:
        self._prefix = prefix
        self._outputs = {b"stdout": stdout, b"stderr": stderr}
        self._timestamps = timestamps
        self._within_line: set[bytes] = set()

    def write(self, record: Record) -> None:
        output = self._outputs[record.stream]
        if record.stream not in self._within_line:
            output.write(self._prefix)
            if self._timestamps:
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
