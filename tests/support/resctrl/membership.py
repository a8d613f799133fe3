"""Which task is in which group, without the kernel's help.

The kernel keeps the group in the task itself, and a new task gets its creator's. Here it is found out: what exists
when something is moved or listed is seen then, and a task that is seen for the first time is where its creator is. The
one difference: a task whose creator ended before either was seen is where its new parent is.

/proc leaves out children and threads that live while others of theirs end (proc(5), ``children``), so a creator is also
looked for from below.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

Place = TypeVar("Place")


@dataclass
class _Known(Generic[Place]):
    started: int
    """Clock ticks after boot: another task with this ID has another."""
    place: Place


class Membership(Generic[Place]):
    """The places of all tasks; who was never moved, and no ancestor either, is in ``root``."""

    def __init__(self, root: Place) -> None:
        self._root = root
        self._known: dict[int, _Known[Place]] = {}

    def move(self, tid: int, to: Place) -> None:
        """Put one task, and nothing that belongs to it, into a place.

        :raises ProcessLookupError: if there is no such task.
        """
        started, _ = _stat(tid)
        self._see()
        if tid not in self._known:
            self._known[tid] = _Known(started, self._root)
            self._see()  # its children that exist now stay where it was
        self._known[tid] = _Known(started, to)

    def move_all(self, tids: Iterator[int] | list[int], to: Place) -> None:
        """Put tasks that were listed into another place."""
        for tid in tids:
            self._known[tid].place = to

    def place_of(self, tid: int) -> Place:
        """Return where a task is.

        :raises ProcessLookupError: if there is no such task.
        """
        _stat(tid)
        self._see()
        self._trace(tid)
        return self._known[tid].place if tid in self._known else self._root

    def in_place(self, *places: Place) -> list[int]:
        """Return the tasks in places other than the root, in order."""
        self._see()
        if any(known.place in places for known in self._known.values()):
            self._trace_all()
        return sorted(tid for tid, known in self._known.items() if known.place in places)

    def in_root(self, *others: Place) -> list[int]:
        """Return the tasks in the root, or in ``others``, in order."""
        self._see()
        return sorted(tid for tid in _all() if self._is_in(tid, (self._root, *others)))

    def _trace(self, tid: int) -> None:
        """Find a task that was overlooked: by its process if it is a thread, else by its parent."""
        line: list[tuple[int, int]] = []
        while tid and tid not in self._known:
            try:
                started, process = _stat(tid)
                line.append((tid, started))
                tid = process if tid != process else _parent(tid)
            except ProcessLookupError:
                return
        if tid:
            self._known |= {task: _Known(started, self._known[tid].place) for task, started in line}

    def _trace_all(self) -> None:
        """Find all that were overlooked."""
        made: dict[int, list[int]] = {}
        for process in _processes():
            with suppress(ProcessLookupError):
                made.setdefault(_parent(process), []).append(process)
        waiting = list(self._known)
        while waiting:
            process = waiting.pop()
            for task in (*made.get(process, ()), *_threads(process)):
                if task not in self._known:
                    self._trace(task)
                    waiting.append(task)

    def _is_in(self, tid: int, places: tuple[Place, ...]) -> bool:
        return tid not in self._known or self._known[tid].place in places

    def _see(self) -> None:
        """Forget the tasks that ended, and find those that the others made."""
        waiting = list(self._known)
        seen = set()
        while waiting:
            tid = waiting.pop()
            if tid in seen:
                continue
            seen.add(tid)
            known = self._known[tid]
            try:
                started, process = _stat(tid)
            except ProcessLookupError:
                del self._known[tid]
                continue
            if started != known.started:
                del self._known[tid]
                continue
            made = _children(process, tid)
            if tid == process:
                made += _threads(process)
            for task in made:
                if task not in self._known and (begun := _started(task)) is not None:
                    self._known[task] = _Known(begun, known.place)
                    waiting.append(task)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _all() -> Iterator[int]:
    for process in _processes():
        yield from _threads(process)


def _threads(process: int) -> list[int]:
    try:
        return [int(path.name) for path in Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return []


def _children(process: int, tid: int) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{process}/task/{tid}/children").read_text().split()]
    except OSError:
        return []


def _parent(pid: int) -> int:
    """Return the process that made another one.

    :raises ProcessLookupError: if there is no such process.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError as error:
        raise ProcessLookupError(f"No task {pid}") from error


def _started(tid: int) -> int | None:
    try:
        return _stat(tid)[0]
    except ProcessLookupError:
        return None


def _stat(tid: int) -> tuple[int, int]:
    """Return when a task started, and its process.

    :raises ProcessLookupError: if there is no such task.
    """
    try:
        fields = Path(f"/proc/{tid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{tid}/status").read_text()
    except OSError as error:
        raise ProcessLookupError(f"No task {tid}") from error
    process = next(line.split()[1] for line in status.splitlines() if line.startswith("Tgid:"))
    return int(fields[19]), int(process)
