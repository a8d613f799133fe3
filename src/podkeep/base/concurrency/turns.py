"""Turns of what is large: work of which each piece keeps the event loop busy for a while, by users who ask for it.

Whoever can ask for such work in a few bytes does it again and again, on many connections. Without turns the loop does
all of it before anybody else goes on, and without a rest after each, whatever takes several steps of the loop (a new
connection, a small write) waits for one of them with each step.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

REST_PART = 4
"""After a piece that kept the loop busy nobody begins one for this part of its time."""
LEAST_REST_S = 0.001
"""The shortest rest, that of pieces of 4 ms; the loop's clock has no shorter ones."""


class Turns:
    """Whose work is next: one piece of each user who waits, then the next one of each, with a rest in between.

    :param least: the size from which on work takes a turn.
    :param at_a_time: how many have their turn at a time.
    """

    def __init__(self, least: int, at_a_time: int) -> None:
        self._least = least
        self._free = at_a_time
        self._rests = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def taken(self, user: str, size: int) -> AsyncIterator[None]:
        """Wait for a turn, and have it meanwhile and until the loop has looked at others; what is small needs none."""
        if size < self._least:
            yield
            return
        await self._take(user)
        try:
            yield
        finally:
            # Not at once: what follows in the same step of the loop is work as well.
            asyncio.get_running_loop().call_soon(self._give_back)

    async def wait(self, user: str, size: int) -> None:
        """Wait for a turn; what the caller does next, until it waits for something else, is done in it."""
        if size >= self._least:
            await self._take(user)
            asyncio.get_running_loop().call_soon(self._give_back)

    async def _take(self, user: str) -> None:
        loop = asyncio.get_running_loop()
        if self._free and not self._rests:
            self._free -= 1
            self._rests = True
        else:
            turn = loop.create_future()
            self._waiting.setdefault(user, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # its turn came in the same moment
                    self._free += 1
                    self._end_rest()
                raise
        # Once the caller waits for something: until then it keeps the loop busy.
        loop.call_soon(self._begin_rest, loop.time())

    def _begin_rest(self, begun: float) -> None:
        loop = asyncio.get_running_loop()
        rest = (loop.time() - begun) / REST_PART
        if rest < LEAST_REST_S:
            self._end_rest()
        else:
            loop.call_later(rest, self._end_rest)

    def _end_rest(self) -> None:
        self._rests = False
        self._begin_next()

    def _give_back(self) -> None:
        self._free += 1
        self._begin_next()

    def _begin_next(self) -> None:
        while self._free and not self._rests and self._waiting:
            user, turns = next(iter(self._waiting.items()))
            del self._waiting[user]
            turn = turns.popleft()
            if turns:
                self._waiting[user] = turns  # behind all others
            if not turn.done():  # its client has not left
                self._free -= 1
                self._rests = True
                turn.set_result(None)
