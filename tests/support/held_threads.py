"""An event loop's threads that take a step when a test says so: what happens until one is done is in its hands."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any


class HeldThreads(ThreadPoolExecutor):
    """A default executor whose steps count as begun, so that nobody takes them back, and wait for :meth:`step`."""

    def __init__(self) -> None:
        super().__init__(1)
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._some = asyncio.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Keep a step."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self._waiting.append((future, partial(fn, *args, **kwargs)))
        self._some.set()
        return future

    async def submitted(self) -> None:
        """Return when a step waits."""
        async with asyncio.timeout(30):
            await self._some.wait()

    async def step(self) -> None:
        """Wait for the next step, and carry it out."""
        await self.submitted()
        future, work = self._waiting.popleft()
        if not self._waiting:
            self._some.clear()
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the step has it
            future.set_exception(error)
