"""Byte streams of a connection, whatever the protocol: bytes that come, bytes that go, and the queue between.

Owns: the interfaces, and the queue between a connection's reader and whoever takes what it read. Every queue is
bounded, and so are all of a connection together (``budget.py``): a connection whose queue is full is not read on, and
that is how a slow consumer slows its client down.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from podkeep.http.budget import PART_BYTES, Account, ClientGone

QUEUE_BYTES = 256 * 1024
"""What may wait in one direction of one stream."""


class Source(Protocol):
    """Bytes from the client."""

    async def receive(self) -> bytes:
        """Return the next bytes; nothing at the end.

        :raises ClientGone: if the client left before it ended this direction.
        """

    def discard(self) -> None:
        """Drop what is waiting and all that comes: nobody will take it."""


class Sink(Protocol):
    """Bytes to the client."""

    async def send(self, data: bytes) -> None:
        """Send bytes, waiting while the client does not take them.

        :raises ClientGone: if it is not there any more.
        """

    async def end(self) -> None:
        """Say that no more comes in this direction; does nothing if the client is gone."""


class Inbox:
    """A :class:`Source` that a connection's reader fills. One task may put and one may receive at a time."""

    def __init__(self, account: Account) -> None:
        self._account = account
        account.count(self)
        self._parts: deque[bytes] = deque()
        self._waiting = 0
        self._taker: asyncio.Future[None] | None = None
        """Who waits for bytes."""
        self._ended = self._broken = self._discarding = False

    async def put(self, data: bytes) -> None:
        """Add bytes, waiting while too many are there.

        :raises ClientGone: if nobody takes them and the client has left meanwhile.
        """
        if self._discarding or self._ended or not data:
            return
        self._parts.append(data)
        self._count(PART_BYTES + len(data))
        _wake(self._taker)
        while self._waiting and (self._waiting > QUEUE_BYTES or self._account.is_full):
            await self._account.change()

    def _count(self, difference: int) -> None:
        self._waiting += difference
        self._account.keep(difference)

    def finish(self) -> None:
        """Nothing more comes: the client ended this direction."""
        self._ended = True
        _wake(self._taker)

    def fail(self) -> None:
        """Nothing more comes: the client is gone."""
        # What the client ended before it left is whole.
        self._broken = self._broken or not self._ended
        self._ended = True
        _wake(self._taker)

    def reset(self) -> None:
        """Nothing more comes, and what is here is not wanted any more."""
        self._drop()
        # So that fail() counts it as broken, also if the client had ended it.
        self._ended = False
        self.fail()

    def discard(self) -> None:
        self._discarding = True
        self._drop()

    def _drop(self) -> None:
        self._parts.clear()
        self._count(-self._waiting)

    async def receive(self) -> bytes:
        while not self._parts and not self._ended:
            self._taker = asyncio.get_running_loop().create_future()
            try:
                await self._taker
            finally:
                self._taker = None
        if self._parts:
            data = self._parts.popleft()
            self._count(-PART_BYTES - len(data))
            return data
        if self._broken:
            raise ClientGone("the client closed the connection")
        return b""


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
