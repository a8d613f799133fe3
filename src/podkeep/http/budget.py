"""What a server keeps of its clients' bytes: counted for each connection, and for all of them together.

Owns: the counting, who waits for room, whose turn it is. Does not own: queues that are counted (``streams.py``).

A connection that is full is not read on, and that slows its client down. Each may keep :data:`OWN_BYTES` whatever the
others do, so that no client keeps another out; what is above that comes out of one pool for the whole server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet, WeakValueDictionary

from podkeep.base.errors import Cancelled

OWN_BYTES = 64 * 1024
"""What a connection may keep in any case."""
CONNECTION_BYTES = 1024 * 1024
"""What a connection may keep at most."""
SERVER_BYTES = 64 * 1024 * 1024
"""What all connections together may keep above what is their own."""
MUCH_BYTES = 8 * 1024 * 1024
"""Kept or held at some time, it is worth giving memory back when it is not any more."""
HELD_BYTES = 64 * 1024
"""What a connection may have in memory beside what is kept: buffers of asyncio and TLS, and output on its way."""
OUTPUTS_AT_A_TIME = 4
"""Portions of output that one connection has read and not sent yet."""
PART_BYTES = 64
"""What a portion of data takes beside its bytes: one of two bytes would take 30 times what is counted."""
PIECES_AT_A_TIME = 64
"""Frames or messages of one connection that are taken in one turn."""
SMALL_BYTES = 128 * PIECES_AT_A_TIME
"""Of those of one turn together: a connection with less costs much work for little. It waits for ``SMALL_PAUSE_S``."""
SMALL_PAUSE_S = 0.004
"""In which nobody else's small frames are taken: what all of them together cost is less than half a processor."""
HANGUP_TIMEOUT_S = 2.0
"""How long what a client sent before it left may wait for a session that takes nothing."""


class ClientGone(Cancelled):
    """The client closed the connection, or was idle for too long, or broke the protocol."""


class Pool:
    """The bytes that connections keep above their own (``used``), and all they keep (``kept``).

    What is ``held`` beside them bounds nobody: it counts for giving memory back when connections have ended.
    """

    def __init__(self, limit: int = SERVER_BYTES, on_shrunk: Callable[[], None] = lambda: None) -> None:
        """Make it; ``on_shrunk`` is called when little is kept of what was much."""
        self.used = self.kept = self.held = 0
        self._turns, self._small_turns = asyncio.Lock(), asyncio.Lock()
        # Weak: an owner's lock goes with the last of its accounts, which refer to it.
        self._turns_of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._limit, self._on_shrunk = limit, on_shrunk
        self._most = 0
        self._waiting: set[Account] = set()

    @property
    def is_full(self) -> bool:
        """Whether more is kept than there should be."""
        return self.used > self._limit

    def change(self, kept: int, used: int) -> None:
        """Count more bytes, or fewer."""
        was_full = self.is_full
        self.kept += kept
        self.used += used
        self._look()
        if was_full and not self.is_full:
            for account in list(self._waiting):
                account.wake()

    def hold(self, count: int) -> None:
        """Count what a connection has in memory from now on, or (negative) has not any more."""
        self.held += count
        self._look()

    def _look(self) -> None:
        now = self.kept + self.held
        self._most = max(self._most, now)
        # The maximum begins anew here, so that on_shrunk is called once for each time that much was kept.
        if self._most >= MUCH_BYTES and now < self._most // 4:
            self._most = now
            self._on_shrunk()

    def turns_of(self, owner: str) -> asyncio.Lock:
        """Return what an owner's connections wait for first: owners take turns, however many connections each has."""
        return self._turns_of.setdefault(owner, asyncio.Lock())

    async def turn(self, of_owner: asyncio.Lock, *, small: bool) -> None:
        """Wait for one's turn. Each turn of the event loop has one of them, whatever the number of connections.

        :param of_owner: see :meth:`turns_of`.
        :param small: what was taken in the turn before was hardly any data (``SMALL_BYTES``).
        """
        async with of_owner, self._small_turns if small else self._turns:
            await asyncio.sleep(SMALL_PAUSE_S if small else 0)

    def wait(self, account: Account) -> None:
        """Wake ``account`` when there is room."""
        self._waiting.add(account)

    def forget(self, account: Account) -> None:
        """Undo :meth:`wait`."""
        self._waiting.discard(account)


class Queue(Protocol):
    """Something that keeps bytes."""

    def discard(self) -> None:
        """Drop what is kept and all that comes."""


class Account:
    """What one connection keeps; one task, its reader, may wait for room.

    :param owner: whose connection it is, for turns.
    """

    def __init__(self, pool: Pool | None = None, owner: str = "") -> None:
        self.kept = 0
        self.hangup = asyncio.Event()
        """Set when the client has left; see :meth:`hang_up`."""
        self.outputs = asyncio.Semaphore(OUTPUTS_AT_A_TIME)
        """Held by who has read a portion of output that is not sent yet."""
        self.pool = pool or Pool()
        self._turns = self.pool.turns_of(owner)
        self._shared = 0
        self._pieces = self._taken = 0
        # Weak references: a queue may be freed before the connection ends; close() returns its bytes to the budget.
        self._queues: WeakSet[Queue] = WeakSet()
        self._until = 0.0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read."""
        return self.kept > CONNECTION_BYTES or self.is_above_share

    @property
    def is_above_share(self) -> bool:
        """Whether it keeps more than its own while all together keep more than they should."""
        return self._shared > 0 and self.pool.is_full

    def keep(self, count: int) -> None:
        """Count bytes that are kept from now on, or (negative) are not any more."""
        self.kept += count
        shared = max(self.kept - OWN_BYTES, 0)
        difference, self._shared = shared - self._shared, shared
        self.pool.change(count, difference)
        if count < 0:
            self.wake()

    async def took(self, count: int) -> None:
        """Count a frame or message that was taken, with ``count`` bytes of data; after some others have their turn."""
        self._pieces += 1
        self._taken += count
        if self._pieces == PIECES_AT_A_TIME:
            small = self._taken < SMALL_BYTES
            self._pieces = self._taken = 0
            await self.pool.turn(self._turns, small=small)

    def count(self, queue: Queue) -> None:
        """Have a queue emptied when the connection ends, also if something still refers to it."""
        self._queues.add(queue)

    def close(self) -> None:
        """The connection has ended, and nobody wants what is kept."""
        for queue in list(self._queues):
            queue.discard()
        # What queues had that are gone.
        self.keep(-self.kept)

    def hang_up(self) -> None:
        """Note that the client has left."""
        self.hangup.set()
        self.wake()

    def wake(self) -> None:
        """Have the waiting task look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def change(self) -> None:
        """Wait until something may have become free, but not for ever for a client that has left.

        :raises ClientGone: if nothing did, and the client has left.
        """
        self._waiter = asyncio.get_running_loop().create_future()
        self.pool.wait(self)
        try:
            if not self.hangup.is_set():
                await self._waiter
                return
            # All waits after its client has left are one: others wake it, too.
            self._until = self._until or asyncio.get_running_loop().time() + HANGUP_TIMEOUT_S
            async with asyncio.timeout_at(self._until):
                await self._waiter
        except TimeoutError as error:
            raise ClientGone("the client left, and nobody takes what it sent") from error
        finally:
            self._waiter = None
            self.pool.forget(self)
