"""What a session sees of its client, whatever the transport: bytes that come, bytes that go, and whether it is there.

Owns: the interfaces, and the queue between a connection's reader and a session. Every queue is bounded, and so are all
of a connection together (``budget.py``): one whose queue is full is not read on, and that is how a slow command slows
its client down.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from podkeep.runtime.streaming.budget import PART_BYTES, Account, ClientGone

QUEUE_BYTES = 256 * 1024
"""What may wait in one direction of one stream."""
MAX_RESIZE_BYTES = 4096
"""Longest line that says a terminal's size."""
MAX_RESIZE_LINES = 64
"""Sizes looked at of one portion; of more the last ones count."""
MAX_SIDE = 65535
"""The kernel keeps a terminal's sides as 16 bits (ioctl_tty(2), TIOCSWINSZ)."""


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
        self._broken = self._broken or not self._ended
        self._ended = True
        _wake(self._taker)

    def reset(self) -> None:
        """Nothing more comes, and what is here is not wanted any more."""
        self._drop()
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


@dataclass(frozen=True)
class Size:
    """A terminal's size in characters."""

    width: int
    height: int


@dataclass(kw_only=True)
class CommandStreams:
    """A client of a command. What it did not ask for is None; ``status`` takes the text or JSON of the end.

    ``gone`` is set when the client has left.
    """

    status: Sink
    gone: asyncio.Event
    stdin: Source | None = None
    stdout: Sink | None = None
    stderr: Sink | None = None
    resize: Source | None = None
    json_status: bool = True
    """Whether the protocol's version has a status as JSON (v4 and newer), or a plain text in case of an error."""


@dataclass
class ResizeDecoder:
    """Finds sizes in a stream of JSON objects, ``{"Width": 80, "Height": 24}``, one per line."""

    _rest: bytes = field(default=b"", init=False)

    def feed(self, data: bytes) -> list[Size]:
        """Return the sizes complete with ``data``; a line that is none is passed over."""
        *lines, self._rest = (self._rest + data).rsplit(b"\n", MAX_RESIZE_LINES)
        if len(self._rest) > MAX_RESIZE_BYTES:
            self._rest = b""
        # Not every client ends the last object with a new line.
        if (size := parse_size(self._rest)) is not None:
            lines, self._rest = [*lines, self._rest], b""
            return [*filter(None, map(parse_size, lines[:-1])), size]
        return list(filter(None, map(parse_size, lines)))


def parse_size(line: bytes) -> Size | None:
    """Return the size a JSON object says, or None if it says none."""
    if len(line) > MAX_RESIZE_BYTES:
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    width, height = message.get("Width"), message.get("Height")
    if type(width) is not int or type(height) is not int:
        return None
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        return None
    return Size(width=width, height=height)
