"""Who watches a host's mount table, and what that costs: CPU time, and how many events there were.

:func:`poller` does what PID 1 and most agents do: it polls ``/proc/self/mountinfo`` for POLLPRI (proc_pid_mounts(5)),
and reads and parses the whole table whenever the kernel says that it has changed. :func:`findmnt` is a real one, in C:
``findmnt --poll`` of libmount, which systemd uses, too.
"""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bench.hosts import command_in, module

_TABLE = "/proc/self/mountinfo"
_QUIET_S = 0.1
"""A watcher that used no CPU for so long has seen everything."""
_TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What a watcher did: CPU time in milliseconds, and for how many events it looked at the table."""

    cpu_ms: float
    events: int

    def since(self, earlier: Watched) -> Watched:
        return Watched(cpu_ms=self.cpu_ms - earlier.cpu_ms, events=self.events - earlier.events)


def cpu_ms(pid: int) -> float:
    """CPU time of every thread of a process, in milliseconds: the first field of schedstat, finer than stat's ticks."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def process_ms(pid: int) -> float:
    """CPU time of a process, in milliseconds, threads that have ended included; as fine as stat's ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split(" ")
    return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")


class Watcher(AbstractContextManager["Watcher"]):
    """A program in the mount namespace of process ``pid`` that prints a line for each event it has dealt with.

    :param greets: it prints one more when it begins to watch.
    """

    def __init__(self, pid: int, command: Sequence[str], *, greets: bool = False) -> None:
        self._command = command_in(pid, command)
        self._greets = greets
        self._process: subprocess.Popen[bytes] | None = None
        self._events = 0
        self._condition = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Watcher:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if self._greets:
            self._process.stdout.readline()
        self._reader.start()
        settle(self._process.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        self._reader.join()

    @property
    def events(self) -> int:
        """That it has dealt with so far."""
        with self._condition:
            return self._events

    def wait_for(self, events: int) -> None:
        """Wait until it has dealt with so many.

        :raises TimeoutError: if it does not.
        """
        with self._condition:
            if not self._condition.wait_for(lambda: self._events >= events, _TIMEOUT_S):
                raise TimeoutError(f"{self._command[3:]} saw {self._events} of {events} events")

    def seen(self) -> Watched:
        """What it did, when it has nothing left to do."""
        assert self._process is not None
        cpu = settle(self._process.pid)
        return Watched(cpu_ms=cpu, events=self.events)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for _ in self._process.stdout:
            with self._condition:
                self._events += 1
                self._condition.notify_all()


def poller(pid: int) -> Watcher:
    """This module as a program: poll, read, parse. An event is a time that the kernel woke it up."""
    return Watcher(pid, module("bench.mountwatch"), greets=True)


def findmnt(pid: int) -> Watcher:
    """``findmnt --poll``. An event is a difference that it found between two tables."""
    return Watcher(pid, ["findmnt", "--poll", "--noheadings", "--raw", "--output", "ACTION,TARGET"])


@dataclass(frozen=True, kw_only=True)
class Bystander:
    """A process that is there anyway and may react to mounts, such as PID 1; what its events are, it does not tell."""

    pid: int

    def seen(self) -> Watched:
        """What it did, when it has nothing left to do; systemd may put events off for a second."""
        return Watched(cpu_ms=settle(self.pid, 1.5), events=0)


def settle(pid: int, quiet_s: float = _QUIET_S) -> float:
    """Wait until process ``pid`` has used no CPU for a moment, and return what it has used, in milliseconds.

    :raises TimeoutError: if it never rests.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    before, now = -1.0, cpu_ms(pid)
    while now != before:
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} is still busy after {_TIMEOUT_S:g} s")
        time.sleep(quiet_s)
        before, now = now, cpu_ms(pid)
    return now


def parse(table: bytes) -> dict[int, tuple[str, str, str]]:
    """What a watcher needs of each line: mount ID to mount point, file system type and source."""
    found = {}
    for line in table.splitlines():
        fields = line.decode(errors="surrogateescape").split(" ")
        end = fields.index("-", 6)
        found[int(fields[0])] = (fields[4], fields[end + 1], fields[end + 2])
    return found


def main() -> None:
    """Watch until killed; print the number of mounts, and again after each event."""
    table = os.open(_TABLE, os.O_RDONLY | os.O_CLOEXEC)
    poll = select.poll()
    poll.register(table, select.POLLPRI)
    while True:
        os.lseek(table, 0, os.SEEK_SET)
        content = b"".join(iter(lambda: os.read(table, 1 << 16), b""))
        print(len(parse(content)), flush=True)
        poll.poll()


if __name__ == "__main__":
    main()
