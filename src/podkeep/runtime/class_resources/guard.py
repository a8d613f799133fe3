"""The lock of the class resources: one thread at a time for each container and pod, and a reload alone."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class Guard:
    """Held for keys, by one thread each, or alone; who waits to be alone goes first. Not reentrant."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: set[Hashable] = set()
        self._alone = False
        self._waiting = 0

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits to be alone."""
        return self._waiting > 0

    @contextmanager
    def of(self, key: Hashable) -> Iterator[None]:
        """Hold it for ``key``; waits for the one who is, or wants to be, alone."""
        with self._changed:
            # Nobody comes in while a reload waits: with one request after the other it would never find the guard free.
            self._changed.wait_for(lambda: not self._alone and not self._waiting and key not in self._held)
            self._held.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(key)
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold it with nobody else."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._alone and not self._held)
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
