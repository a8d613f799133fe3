"""What ``podkeep run`` prints: the output of containers as it comes, and warnings.

Owns: following log files of containers that start and end, and naming the container in front of each line when there
are several. Does not own: reading the log format (``crilog``).

Output is followed by a thread of its own, a bounded piece of each log at a time: neither a container that writes faster
than we print nor a pipe that nobody reads keeps the event loop from signals. The thread holds no lock of Python's while
it waits for a reader, so the process can end meanwhile.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import select
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from podkeep.agent.events import Event
from podkeep.api.status import PodStatus
from podkeep.base.printable import printable
from podkeep.cli.crilog import LogReader, Record
from podkeep.cli.output import echo_line

_PAUSE_S = 0.05
"""Pause between looks at the logs: output appears at once for a person, and an idle pod costs nothing to speak of."""
_MAX_MESSAGE = 1024
"""How much of a termination message is shown; `-o json` has all of it."""
_MAX_LINE = 64 * 1024
"""How much of a line is collected to be written with its container's name; a longer one is written in several."""


@dataclass(frozen=True, kw_only=True)
class _Followed:
    """One attempt of one container whose log is read."""

    name: str
    reader: LogReader


class RunOutput:
    """Where the output of all containers of a run comes together.

    :param stdout: descriptor for what containers write to their standard output; ``None``: it goes nowhere.
    :param prefixed: write whole lines with the container's name in front; otherwise every byte at once, as it is.
    """

    def __init__(self, *, stdout: int | None, stderr: int | None, prefixed: bool) -> None:
        self._outputs = {b"stdout": stdout, b"stderr": stderr}
        self._prefixed = prefixed
        self._logs: list[_Followed] = []
        self._lines: dict[tuple[str, bytes], bytes] = {}
        self._ended = threading.Event()
        self._given_up = False

    def listener(self, pod: str) -> Listener:
        """Return the listener of one pod; ``pod`` is part of the prefix if it is not empty."""
        return Listener(self, pod)

    def add(self, name: str, log: Path) -> None:
        """Follow one more log, from its start."""
        self._logs.append(_Followed(name=name, reader=LogReader(log, rotated=True)))

    def finish(self) -> None:
        """Say that no container will write any more: what is there is printed, and then :meth:`follow` returns."""
        self._ended.set()

    def give_up(self) -> None:
        """Have :meth:`follow` print no more than it is at."""
        self._given_up = True
        self._ended.set()

    async def follow(self) -> None:
        """Print what containers write until :meth:`finish` was called and everything is printed.

        :raises OSError: if nobody reads our output any more, or a log cannot be read.
        """
        shown: Future[None] = Future()
        shown.set_running_or_notify_cancel()  # who gives it up cannot cancel it

        def work() -> None:
            try:
                self._show()
            except BaseException as error:  # noqa: BLE001 - handed to who waits
                shown.set_exception(error)
            else:
                shown.set_result(None)

        # A daemon: who ends this process does not wait for a pipe that nobody reads.
        threading.Thread(target=work, name="output", daemon=True).start()
        await asyncio.wrap_future(shown)

    def _show(self) -> None:
        try:
            while True:
                ended = self._ended.is_set()  # asked before reading: what was written until then is read
                behind = self._show_new()
                if self._given_up or (ended and not behind):
                    break
                if not behind:
                    self._ended.wait(_PAUSE_S)
            self._show_unfinished()
        finally:
            for followed in self._logs:
                followed.reader.close()

    def _show_new(self) -> bool:
        """Print a bounded piece of each log; return whether there is more."""
        logs = list(self._logs)
        # What was written between two looks is shown in the order in which it was written.
        new = ([(followed.name, record) for record in followed.reader.read()] for followed in logs)
        records = heapq.merge(*new, key=lambda item: item[1].time)
        self._write(piece for name, record in records for piece in self._pieces(name, record))
        for followed in logs:
            if followed.reader.gap:
                followed.reader.gap = False
                text = f"podkeep: {followed.name}: output is left out: it was removed from the log before it was shown"
                self._write([(b"stderr", printable(text).encode() + b"\n")])
        return any(followed.reader.behind for followed in logs)

    def _pieces(self, name: str, record: Record) -> Iterable[tuple[bytes, bytes]]:
        """Return what is to be written because of a record, and to which stream."""
        if not self._prefixed:
            return [(record.stream, record.text)]
        key = (name, record.stream)
        line = self._lines.pop(key, b"") + record.text
        if record.partial and len(line) < _MAX_LINE:
            self._lines[key] = line
            return []
        return [(record.stream, _prefixed(name, line + b"\n" if record.partial else line))]

    def _show_unfinished(self) -> None:
        self._write((stream, _prefixed(name, line + b"\n")) for (name, stream), line in self._lines.items())
        self._lines.clear()

    def _write(self, pieces: Iterable[tuple[bytes, bytes]]) -> None:
        """Write pieces in their order, as few times as possible."""
        last, joined = b"", bytearray()
        for stream, text in pieces:
            if stream != last:
                self._write_all(last, joined)
                last, joined = stream, bytearray()
            joined += text
        self._write_all(last, joined)

    def _write_all(self, stream: bytes, data: bytearray) -> None:
        target = self._outputs.get(stream)
        left = memoryview(data)
        while left and target is not None:
            try:
                left = left[os.write(target, left) :]
            except BlockingIOError:  # somebody who shares it has made it so
                select.select([], [target], [])


def last_words(status: PodStatus, pod: str) -> list[str]:
    """Return what is to be said of a pod that failed, and of its containers, where an exit status says too little.

    That a single container failed without a word is no more than its exit status.

    :param pod: its name, if there are several.
    """
    said = [_joined(pod, status.reason, status.message)] if status.reason else []
    several = len(status.container_statuses) + len(status.init_container_statuses) > 1
    kinds = (("init container", status.init_container_statuses), ("container", status.container_statuses))
    for kind, containers in kinds:
        for container in containers:
            ended = container.state.terminated
            if ended is None or ended.exit_code == 0:
                continue
            reason = "" if ended.reason == "Error" else ended.reason
            message = ended.message.strip()[:_MAX_MESSAGE]
            if several or reason or message:
                what = f"{kind} {container.name} ended with exit status {ended.exit_code}"
                said.append(_joined(pod, what, reason, message))
    return said


def _prefixed(name: str, line: bytes) -> bytes:
    return f"[{name}] ".encode() + line


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
