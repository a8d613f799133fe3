"""Memory of processes: PSS (proportional set size) from /proc/<pid>/smaps_rollup, in KiB, summed by program.

PSS divides shared pages among those who share them, so sums over many processes are honest. Only reads /proc.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_PROC = Path("/proc")
_INTERPRETERS = ("python", "sh", "bash")


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process: its arguments and the name it goes by (a script's rather than its interpreter's)."""

    pid: int
    name: str
    arguments: tuple[str, ...]

    def matches(self, pattern: str) -> bool:
        """``pattern`` is a name, or ``~text`` for a text anywhere in the command line."""
        if pattern.startswith("~"):
            return pattern[1:] in " ".join(self.arguments)
        return self.name == pattern


def processes() -> list[Process]:
    """Every process with arguments (so no kernel threads and no zombies) that /proc shows."""
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if arguments != [""]:
            found.append(Process(pid=int(entry.name), name=_name(arguments), arguments=tuple(arguments)))
    return found


def _name(arguments: Sequence[str]) -> str:
    """The program's name; for an interpreter that of the script or module, with ``-c`` its own."""
    name = Path(arguments[0]).name
    if not name.startswith(_INTERPRETERS):
        return name
    rest = list(arguments[1:])
    while rest and rest[0].startswith("-") and rest[0] not in ("-c", "-m"):
        rest.pop(0)
    if not rest or rest[0] == "-c":
        return name
    return rest[1] if rest[0] == "-m" else Path(rest[0]).name


def by_pattern(patterns: Iterable[str]) -> list[Process]:
    """The processes that match one of ``patterns``, without this one."""
    wanted = tuple(patterns)
    return [
        process
        for process in processes()
        if process.pid != os.getpid() and any(process.matches(pattern) for pattern in wanted)
    ]


def beside(known: Collection[int], workload: Sequence[str]) -> list[Process]:
    """Every process that is neither in ``known`` nor the workload (its exact arguments): what a runtime costs."""
    return [
        process
        for process in processes()
        if process.pid not in known and process.arguments[-len(workload) :] != tuple(workload)
    ]


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    below: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                below.setdefault(int(parent), []).append(int(entry.name))
    found = [pid]
    for process in found:
        found += below.get(process, [])
    return found


class Peak(AbstractContextManager["Peak"]):
    """The most PSS that a process and all below it have at one time, ``kib``; looked at ten times a second."""

    def __init__(self, pid: int) -> None:
        self.kib = 0
        self._pid = pid
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.1):
            self.kib = max(self.kib, sum(_pss(pid) for pid in tree(self._pid)))


def _pss(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def pss_kib(of: Iterable[Process]) -> dict[str, int]:
    """PSS in KiB by program name; a process that ended meanwhile counts nothing."""
    sums: dict[str, int] = {}
    for process in of:
        sums[process.name] = sums.get(process.name, 0) + _pss(process.pid)
    return sums
