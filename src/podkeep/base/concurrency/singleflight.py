"""One running operation per key: a second caller joins the first and gets the same answer or error."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class SingleFlight(Generic[Result]):
    """Runs at most one operation per key at a time.

    A caller that is cancelled leaves the operation running for the others and for its own retry
    (the kubelet repeats a request whose deadline passed).

    :param unwanted_s: seconds after which an operation that has no caller any more is cancelled; None: never.
    """

    def __init__(self, *, unwanted_s: float | None = None) -> None:
        self._unwanted_s = unwanted_s
        self._running: dict[Hashable, asyncio.Task[Result]] = {}
        self._callers: Counter[Hashable] = Counter()
        self._timers: dict[Hashable, asyncio.TimerHandle] = {}
        self._given_up: set[asyncio.Task[Result]] = set()

    async def do(self, key: Hashable, operation: Callable[[], Awaitable[Result]]) -> Result:
        """Run ``operation`` under ``key``, or join the one that already runs, and return its result."""
        self._forget_timer(key)
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(self._run(operation))
            self._running[key] = task
            task.add_done_callback(lambda ended: self._end(key, ended))
        self._callers[key] += 1
        try:
            # Shielded: the end of one caller must not cancel the operation of the others.
            return await asyncio.shield(task)
        finally:
            self._callers[key] -= 1
            if not self._callers[key]:
                del self._callers[key]
                if self._unwanted_s is not None and self._running.get(key) is task:
                    loop = asyncio.get_running_loop()
                    self._timers[key] = loop.call_later(self._unwanted_s, self._give_up, key)

    def _forget_timer(self, key: Hashable) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    def _give_up(self, key: Hashable) -> None:
        self._forget_timer(key)  # the end of the task does not find its key any more
        # Who asks again while it ends gets another one.
        task = self._running.pop(key)
        self._given_up.add(task)
        task.add_done_callback(self._given_up.discard)
        task.cancel()

    @staticmethod
    async def _run(operation: Callable[[], Awaitable[Result]]) -> Result:
        return await operation()

    def _end(self, key: Hashable, ended: asyncio.Task[Result]) -> None:
        if self._running.get(key) is ended:
            del self._running[key]
            self._forget_timer(key)
        if not ended.cancelled():
            ended.exception()  # seen, also when every caller left before: asyncio would report it as lost

    async def close(self) -> None:
        """Cancel what runs and wait for its end."""
        while tasks := {task for task in (*self._running.values(), *self._given_up) if not task.done()}:
            for task in tasks - self._given_up:
                task.cancel()
            await asyncio.wait(tasks)

    def is_wanted(self, key: Hashable) -> bool:
        """Return whether a caller waits for the operation of ``key``."""
        return key in self._callers

    def keys(self) -> frozenset[Hashable]:
        """Return the keys of the operations that are running now."""
        return frozenset(self._running)
