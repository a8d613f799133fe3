"""What ``podkeep run`` prints: the output of containers as it comes, and warnings.

Owns: following log files of containers that start and end, and naming the container in front of each line when there
are several. Does not own: reading the log format (``agent.logs.reader``).

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
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from podkeep.agent.events import Event
from podkeep.agent.logs.reader import LogReader, Record
from podkeep.api.status import PodStatus
from podkeep.base.errors import PodkeepError
from podkeep.base.text.printable import printable
from podkeep.cli.core.output import echo_line

_PAUSE_S = 0.05
"""Pause between looks at the logs: output appears at once for a person, and an idle pod costs nothing to speak of."""
_MAX_MESSAGE = 1024
"""How much of a termination message is shown; `-o json` has all of it."""
REMEMBERED = 64
"""How many warnings of a pod are known not to be said again, the last ones: a probe may write another one each time."""
_MAX_LINE = 64 * 1024
"""How much of a line is collected to be written with its container's name; a longer one is written in several."""


@dataclass(kw_only=True)
class _Followed:
    """One attempt of one container whose log is read; not any more if reading it ``failed``."""

    name: str
    reader: LogReader
    failed: bool = False


class RunOutput:
    """Where the output of all containers of a run comes together: of each pod, until it has ended and all is shown.

    :param stdout: descriptor for what containers write to their standard output; ``None``: it goes nowhere.
    :param prefixed: write whole lines with the container's name in front; otherwise every byte at once, as it is.
    """

    def __init__(self, *, stdout: int | None, stderr: int | None, prefixed: bool) -> None:
        self._outputs = {b"stdout": stdout, b"stderr": stderr}
        self._prefixed = prefixed
        self._lines: dict[tuple[str, bytes], bytes] = {}
        self._pods: list[PodOutput] = []
        self._news = threading.Event()

    def pod(self, name: str) -> PodOutput:
        """Return the output of one more pod; ``name`` is part of the prefix if it is not empty."""
        pod = PodOutput(name, self._news)
        self._pods.append(pod)
        return pod

    async def follow(self) -> None:
        """Print what containers write until all pods have ended and everything is printed.

        A log that cannot be read is told of and given up; the others are no worse for it.

        :raises OSError: if nobody reads our output any more.
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
        following = list(self._pods)
        try:
            while following:
                # Before looking: what is told during the look is for the next one.
                self._news.clear()
                ended = [pod for pod in following if pod.has_ended]  # asked before reading: all is there then
                self._show_new([pod for pod in following if not pod.given_up])
                for pod in ended:
                    if pod.given_up or not pod.is_behind:
                        self._show_unfinished(pod)
                        pod.close()
                following = [pod for pod in following if not pod.is_shown]
                if not any(pod.is_behind for pod in following):
                    self._news.wait(_PAUSE_S)
        finally:
            for pod in following:
                if not pod.is_shown:
                    pod.close()

    def _show_new(self, pods: Iterable[PodOutput]) -> None:
        logs = [followed for pod in pods for followed in pod.logs if not followed.failed]
        # What was written between two looks is shown in the order in which it was written.
        records = heapq.merge(*map(self._new_records, logs), key=lambda item: item[1].time)
        self._write(piece for name, record in records for piece in self._pieces(name, record))
        for followed in logs:
            for text in followed.reader.left_out():
                self._tell(followed.name, text)

    def _new_records(self, followed: _Followed) -> list[tuple[str, Record]]:
        try:
            return [(followed.name, record) for record in followed.reader.read()]
        except (OSError, PodkeepError) as error:
            followed.failed = True
            self._tell(followed.name, _unreadable(error))
            return []

    def _tell(self, name: str, text: str) -> None:
        self._write([(b"stderr", printable(f"podkeep: {name}: {text}").encode() + b"\n")])

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

    def _show_unfinished(self, pod: PodOutput) -> None:
        names = {followed.name for followed in pod.logs}
        keys = [key for key in self._lines if key[0] in names]
        self._write((stream, _prefixed(name, self._lines.pop((name, stream)) + b"\n")) for name, stream in keys)

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


def last_words(status: PodStatus, pod: str, sidecars: Collection[str] = ()) -> list[str]:
    """Return what is to be said of a pod that failed, and of its containers, where an exit status says too little.

    That the only container failed without a word is no more than its exit status.

    :param pod: its name, if there are several pods.
    :param sidecars: init containers whose end says nothing: they are ended when the others have.
    """
    said = [_joined(pod, status.reason, status.message)] if status.reason else []
    several = bool(pod) or len(status.container_statuses) + len(status.init_container_statuses) > 1
    kinds = (("init container", status.init_container_statuses), ("container", status.container_statuses))
    for kind, containers in kinds:
        for container in containers:
            ended = container.state.terminated
            if ended is None or ended.exit_code == 0 or container.name in sidecars:
                continue
            reason = "" if ended.reason == "Error" else ended.reason
            message = ended.message.strip()[:_MAX_MESSAGE]
            if several or reason or message:
                what = f"{kind} {container.name} ended with exit status {ended.exit_code}"
                said.append(_joined(pod, what, reason, message))
    return said


def _prefixed(name: str, line: bytes) -> bytes:
    return f"[{name}] ".encode() + line


class PodOutput:
    """The output of one pod, and what else is said of it (``agent.events.PodListener``).

    :param news: set when there may be something to do for who prints.
    """

    def __init__(self, pod: str, news: threading.Event) -> None:
        self._pod = pod
        self._news = news
        self._said: dict[str, None] = {}
        self._shown: Future[None] = Future()
        self._shown.set_running_or_notify_cancel()
        self.has_ended = False
        """Whether no container of it will write any more."""
        self.given_up = False
        self.logs: tuple[_Followed, ...] = ()

    @property
    def is_behind(self) -> bool:
        """Whether there is more to print at once."""
        return not self.given_up and any(followed.reader.behind for followed in self.logs)

    @property
    def is_shown(self) -> bool:
        """Whether everything was printed that will be."""
        return self._shown.done()

    def finish(self) -> None:
        """Say that no container will write any more: what is there is printed, and then :meth:`shown` returns."""
        self.has_ended = True
        self._news.set()

    def give_up(self) -> None:
        """Have no more printed of it, for which nobody waits any more."""
        self.given_up = True
        self.finish()

    async def shown(self) -> None:
        """Return when everything is printed, or nothing will be any more."""
        await asyncio.shield(asyncio.wrap_future(self._shown))

    def close(self) -> None:
        """Let go of its logs; called by who prints."""
        for followed in self.logs:
            followed.reader.close()
        self._shown.set_result(None)

    def add(self, name: str, log: Path) -> None:
        """Follow one more log, from its start."""
        try:
            reader = LogReader(log, rotated=True)
        except (OSError, PodkeepError) as error:
            echo_line(f"podkeep: {name}: {_unreadable(error)}", err=True)
        else:
            self.logs = (*self.logs, _Followed(name=name, reader=reader))

    def event(self, event: Event) -> None:
        """Print a warning that nothing else will tell: neither an error nor a container that waits."""
        if event.reason == "FailedToRetrieveImagePullSecret":
            echo_line(f"podkeep: {_joined(self._pod, event.message)}", err=True)
        elif event.reason in _OF_PROBES_AND_HOOKS:
            # What a probe's command wrote is a part of it, often with the end of a line.
            said = event.message.rstrip()
            self._say_once(_joined(self._name(event.container) if event.container else self._pod, said))

    def waiting(self, container: str, reason: str, message: str) -> None:
        """Say that a container waits to be tried again, and why; the same only once."""
        self._say_once(_joined(self._name(container) if container else self._pod, reason, message))

    def _say_once(self, said: str) -> None:
        is_news = said not in self._said
        self._said.pop(said, None)
        self._said[said] = None  # the last of them
        if len(self._said) > REMEMBERED:
            del self._said[next(iter(self._said))]
        if is_news:
            echo_line(f"podkeep: {said}", err=True)

    def started(self, container: str, attempt: int, log: Path) -> None:
        self.add(self._name(container), log)

    def _name(self, container: str) -> str:
        return f"{self._pod}/{container}" if self._pod else container


_OF_PROBES_AND_HOOKS = frozenset({"Unhealthy", "ProbeWarning", "FailedPreStopHook", "LifecycleHTTPFallback"})


def _unreadable(error: Exception) -> str:
    return f"its output is not shown: {error}"


def _joined(*parts: str) -> str:
    return ": ".join(part for part in parts if part)
