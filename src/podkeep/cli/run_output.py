"""What ``podkeep run`` prints: the output of containers as it comes, and warnings.

Owns: following log files of containers that start and end, and naming the container in front of each line when there
are several. Does not own: reading the log format (``crilog``).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from podkeep.agent.events import Event
from podkeep.cli.crilog import LogReader, Record
from podkeep.cli.output import echo_line

_PAUSE_S = 0.05
"""Pause between looks at the logs: output appears at once for a person, and an idle pod costs nothing to speak of."""


@dataclass(frozen=True, kw_only=True)
class _Followed:
    """One attempt of one container whose log is read."""

    name: str
    reader: LogReader


class RunOutput:
    """Where the output of all containers of a run comes together.

    :param prefixed: write whole lines with the container's name in front; otherwise every byte at once, as it is.
    """

    def __init__(self, *, stdout: IO[bytes], stderr: IO[bytes], prefixed: bool) -> None:
        self._outputs = {b"stdout": stdout, b"stderr": stderr}
        self._prefixed = prefixed
        self._logs: list[_Followed] = []
        self._lines: dict[tuple[str, bytes], bytes] = {}
        self.ended = asyncio.Event()
        """Set when no container will write any more."""

    def listener(self, pod: str) -> Listener:
        """Return the listener of one pod; ``pod`` is part of the prefix if it is not empty."""
        return Listener(self, pod)

    def add(self, name: str, log: Path) -> None:
        """Follow one more log."""
        self._logs.append(_Followed(name=name, reader=LogReader(log)))

    async def follow(self) -> None:
        """Print what containers write until :attr:`ended` is set and everything is printed.

        :raises OSError: if nobody reads our output any more, or a log cannot be read.
        """
        try:
            while not self.ended.is_set():
                self._print_new()
                try:
                    await asyncio.wait_for(self.ended.wait(), _PAUSE_S)
                except TimeoutError:
                    continue
            self._print_new()
            self._print_unfinished()
        finally:
            for followed in self._logs:
                followed.reader.close()

    def _print_new(self) -> None:
        # What was written between two looks is shown in the order in which it was written.
        new = (_named(followed) for followed in self._logs)
        for name, record in heapq.merge(*new, key=lambda item: item[1].time):
            self._write(name, record)
        for output in self._outputs.values():
            output.flush()

    def _write(self, name: str, record: Record) -> None:
        if not self._prefixed:
            self._outputs[record.stream].write(record.text)
            return
        key = (name, record.stream)
        line = self._lines.pop(key, b"") + record.text
        if record.partial:
            self._lines[key] = line
        else:
            self._outputs[record.stream].write(f"[{name}] ".encode() + line)

    def _print_unfinished(self) -> None:
        for (name, stream), line in self._lines.items():
            self._outputs[stream].write(f"[{name}] ".encode() + line + b"\n")
        self._lines.clear()
        for output in self._outputs.values():
            output.flush()


def _named(followed: _Followed) -> Iterator[tuple[str, Record]]:
    return ((followed.name, record) for record in followed.reader.read())


class Listener:
    """Hears what happens to one pod (``agent.events.PodListener``)."""

    def __init__(self, output: RunOutput, pod: str) -> None:
        self._output = output
        self._pod = pod
        self._said: set[str] = set()

    def event(self, event: Event) -> None:
        """Print a warning that nothing else will tell: neither an error nor a container that waits."""
        if event.reason == "FailedToRetrieveImagePullSecret":
            echo_line(f"podkeep: {_joined(self._pod, event.message)}", err=True)

    def waiting(self, container: str, reason: str, message: str) -> None:
        """Say that a container waits to be tried again, and why; the same only once."""
        said = _joined(self._name(container) if container else self._pod, reason, message)
        if said not in self._said:
            self._said.add(said)
            echo_line(f"podkeep: {said}", err=True)

    def started(self, container: str, attempt: int, log: Path) -> None:
        """Follow the log of a container that was started."""
        self._output.add(self._name(container), log)

    def _name(self, container: str) -> str:
        return f"{self._pod}/{container}" if self._pod else container


def _joined(*parts: str) -> str:
    return ": ".join(part for part in parts if part)
