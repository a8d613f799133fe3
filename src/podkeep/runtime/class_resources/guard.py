"""Locks of the class resources: many work at a time, a reload alone.

Owns: a readers-writer lock that lets a waiting writer go first, and a lock for each object of a kind.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class Guard:
    """Either any number of threads together, or one alone. Not reentrant."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = 0
        self._alone = False
        self._waiting = 0

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits to be alone."""
        return self._waiting > 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hold it with others; waits for the one who is, or wants to be, alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and not self._waiting)
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold it with nobody else."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._alone and not self._working)
                self._alone = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


class TargetLocks:
    """A lock for each container and pod, which is there while somebody has it or waits for it."""

    def __init__(self) -> None:
        self._here = threading.Lock()
        self._locks: dict[Hashable, tuple[threading.Lock, int]] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._locks)

    @contextmanager
    def of(self, key: Hashable) -> Iterator[None]:
        """Hold the lock of ``key``."""
        with self._here:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._here:
                _, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = (lock, users - 1)
