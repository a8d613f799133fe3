"""The queue of a controller: each item once, by one worker at a time, failures later and later."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from collections.abc import Callable

from podkeep.apiserver.controllers.controller import Item

FIRST_DELAY = 0.01
"""Seconds until what failed once is tried again; each time twice as long."""
MAX_DELAY = 60.0
CHANGED_DELAY = 1.0
"""Seconds until what failed is tried at the latest when something changed."""


class WorkQueue:
    """Items by when they are due. ``clock`` tells seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[Item, float] = {}
        self._heap: list[tuple[float, int, Item]] = []
        self._count = 0
        self._failures: dict[Item, int] = {}
        self._taken: set[Item] = set()
        self._after: dict[Item, float] = {}
        """When an item that is worked on is due again."""
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Return how many items wait."""
        return len(self._due)

    def add(self, item: Item, after: float = 0.0) -> None:
        """Let an item be looked at, unless it will be sooner. What failed waits a little at least."""
        # A write that failed may itself cause changes: they must not undo the delay.
        if item in self._failures:
            after = max(after, CHANGED_DELAY)
        self._put(item, self._clock() + after)

    def _put(self, item: Item, due: float) -> None:
        if item in self._taken:
            self._after[item] = min(due, self._after.get(item, due))
            return
        if item in self._due and self._due[item] <= due:
            return
        self._due[item] = due
        self._count += 1
        heapq.heappush(self._heap, (due, self._count, item))
        self._wake.set()

    def take(self) -> Item | None:
        """Return the item that was due first; None if none is. It does not come again before it is finished."""
        self._drop_replaced()
        if not self._heap or self._heap[0][0] > self._clock():
            return None
        _, _, item = heapq.heappop(self._heap)
        del self._due[item]
        self._taken.add(item)
        return item

    def finish(self, item: Item) -> None:
        """Give an item back that was worked on."""
        self._taken.discard(item)
        if item in self._after:
            self._put(item, self._after.pop(item))

    # A heap cannot give up an entry in its middle: one that was replaced by a sooner one is passed over at its top.
    def _drop_replaced(self) -> None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)

    async def next(self) -> Item:
        """Return the next item, waiting until it is due."""
        while (item := self.take()) is None:
            # Nothing can be put between take() and here, since neither awaits.
            self._wake.clear()
            seconds = max(0.0, self._heap[0][0] - self._clock()) if self._heap else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        return item

    def succeeded(self, item: Item) -> None:
        self._failures.pop(item, None)

    def failed(self, item: Item) -> float:
        """Let an item be tried again; return the seconds until then."""
        times = self._failures.get(item, 0)
        self._failures[item] = times + 1
        delay = min(MAX_DELAY, FIRST_DELAY * (1 << min(times, 20)))
        self._put(item, self._clock() + delay)
        return delay
