"""A limit on how many may begin at a time, which those that hang do not use up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_HELD_S = 0.25
"""After that long a place is free again though its holder still runs: what was to be spread is the work of a start."""


class Places:
    """So many places; the next one waits for the first that is free."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Hold a place, for a quarter of a second at most."""
        await self._free.acquire()
        is_held = True

        def leave() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(_HELD_S, leave)
        try:
            yield
        finally:
            timer.cancel()
            leave()
