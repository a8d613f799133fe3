"""A limit on how many may begin at a time, which those that hang do not use up, nor those of one pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

_HELD_S = 0.25
"""After that long a place is free again though its holder still runs: what was to be spread is the work of a start."""


class Places:
    """So many places; the next one waits for the first that is free.

    :param share: how many of them one pod may hold. The others of its many wait apart, so that who comes for another
        pod waits for no more than the shares of pods, however many containers these have.
    """

    def __init__(self, count: int, *, share: int) -> None:
        self._free, self._share = asyncio.Semaphore(count), share
        # Weakly held: a semaphore lives as long as somebody waits for it or holds a place of it.
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def one(self, pod: str) -> AsyncIterator[None]:
        """Hold a place, for a quarter of a second at most."""
        mine = self._shares.setdefault(pod, asyncio.Semaphore(self._share))
        await mine.acquire()
        try:
            await self._free.acquire()
        except BaseException:
            mine.release()
            raise
        is_held = True

        def leave() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._free.release()
                mine.release()

        timer = asyncio.get_running_loop().call_later(_HELD_S, leave)
        try:
            yield
        finally:
            timer.cancel()
            leave()
