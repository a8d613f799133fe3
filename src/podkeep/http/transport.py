"""An upgraded connection as a stream of bytes, with back-pressure, an idle clock and a look whether the peer is there.

The peer's end is noticed by reading. While nothing is read because a session is slow, the kernel is asked: whether the
end has arrived (EPOLLRDHUP, epoll_ctl(2)), and, as it may be stuck behind bytes for which there is no room, whether a
peer on this machine has closed its socket.
"""

from __future__ import annotations

import asyncio
import select
import socket
from asyncio import sslproto
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from podkeep.base.concurrency.tasks import Tasks
from podkeep.http.budget import Account, ClientGone
from podkeep.kernel.network import tcp

_Error = TypeVar("_Error", bound=Exception)

READ_BYTES = 64 * 1024
LOOK_S = 3.0
"""How often the peer of a connection that is not read is looked at."""
_CLOSINGS = tcp.Closings(LOOK_S / 3)
"""Asked of connections that are older than that."""
LINGER_S = 5.0
"""How long a client may take to close its side of a connection after us."""


def abort(transport: asyncio.WriteTransport) -> None:
    """Break a connection at once, whatever was not sent; one that is gone stays as it is.

    asyncio's own call fails on a socket that was closed with bytes unsent and has sent them since.
    """
    # TLS says goodbye after the last byte; there the call is safe at any time, and others are not.
    tls = isinstance(transport, sslproto._SSLProtocolTransport)
    if tls or not transport.is_closing() or transport.get_write_buffer_size():
        transport.abort()


def let_go(reader: asyncio.StreamReader) -> None:
    """Have what was read, and whoever was reading when the connection broke, go with the connection.

    asyncio keeps the error that broke it with the reader. The error's traceback has the frames of who waited, with the
    bytes that they were passing on, and these refer to the reader: all of it would stay until Python looks for cycles.
    """
    error = reader.exception()
    if error is not None:
        error.__traceback__ = None


def without_frames(error: _Error) -> _Error:
    """Return an error with which a connection could not be made, for who handles it or raises another one of it.

    asyncio's frame that waited for TLS refers to a future that has the error: what TLS takes, 120 KB, would stay until
    Python looks for cycles, of each connection that is broken off in its handshake.
    """
    return error.with_traceback(None)


def is_closing(transport: asyncio.WriteTransport) -> bool:
    """Return whether what is written would be dropped.

    Of TLS asyncio's own call does not tell that the socket has broken in this turn of the event loop, or that the peer
    has ended its side while nothing was read.
    """
    if transport.is_closing() or not isinstance(transport, sslproto._SSLProtocolTransport):
        return transport.is_closing()
    tls = transport._ssl_protocol
    if tls is None or tls._transport is None:
        return True
    state = tls._state  # type: ignore[attr-defined]  # typeshed does not have it
    return state is not sslproto.SSLProtocolState.WRAPPED or tls._transport.is_closing()


async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write bytes, waiting while the peer takes none.

    Of a TLS connection that is gone asyncio would drop them, writing a line to the log for each piece, and not wait.

    :raises OSError: if the connection is gone.
    """
    if is_closing(writer.transport):
        raise ConnectionResetError("the connection is closed")
    writer.write(data)
    await writer.drain()


class Transport(Protocol):
    """Bytes to and from one client."""

    @property
    def account(self) -> Account:
        """What is kept of the client's bytes; its ``hangup`` is set when the peer has closed, also while nothing is
        read.
        """

    async def receive(self) -> bytes:
        """Return the next bytes; nothing at the end.

        :raises ClientGone: if the connection broke.
        """

    async def send(self, data: bytes) -> None:
        """Send all bytes, waiting while the client does not take them.

        :raises ClientGone: if the connection broke.
        """

    async def close(self) -> None:
        """Say that the connection ends, wait a little for the client to see all that was sent, and close it."""


class Hangup:
    """Calls ``on_hangup`` once when the peer of a socket has closed its end, also while nothing is read.

    :raises ClientGone: if the connection has broken, and asyncio has closed the socket.
    """

    def __init__(self, sock: socket.socket, on_hangup: Callable[[], None]) -> None:
        if sock.fileno() < 0:
            raise ClientGone("the connection broke")
        self._loop, self._on_hangup = asyncio.get_running_loop(), on_hangup
        # A descriptor is in asyncio's own epoll only with the events that asyncio asks for, and EPOLLRDHUP is none of
        # them.
        self._poll = select.epoll()
        self._poll.register(sock.fileno(), select.EPOLLRDHUP | select.EPOLLONESHOT)
        self._loop.add_reader(self._poll.fileno(), self._hung_up)

    def _hung_up(self) -> None:
        self._loop.remove_reader(self._poll.fileno())
        self._on_hangup()

    def close(self) -> None:
        """Look no more."""
        self._loop.remove_reader(self._poll.fileno())
        self._poll.close()


class SocketTransport:
    """A TCP, TLS or unix connection. ``first``: bytes that were read with the request's head."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        first: bytes,
        *,
        idle_timeout: float,
        account: Account,
    ) -> None:
        """Take over a connection.

        :raises OSError: if the connection has broken.
        :raises ClientGone: likewise, if asyncio has closed the socket.
        """
        self._reader, self._writer, self._first = reader, writer, first
        self.account = account
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        sock: socket.socket = writer.get_extra_info("socket")
        # What can fail comes before what has to be given back.
        self._ends = None
        if sock.family != socket.AF_UNIX:
            self._ends = (sock.getsockname()[:2], sock.getpeername()[:2])
            # A client whose machine is gone says nothing; the kernel asks it.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        self._hangup = Hangup(sock, account.hang_up)
        self._idle_timeout = idle_timeout
        self._active = self._loop.time()
        # One clock that looks when the last byte came, not a new one with each of them.
        self._clock = self._loop.call_later(idle_timeout, self._look_at_clock)
        self._tasks = Tasks("looking at a streaming client")
        if self._ends is not None:
            self._tasks.start(self._look_at_peer(*self._ends))

    async def _look_at_peer(self, own: tuple[str, int], peer: tuple[str, int]) -> None:
        while not self.account.hangup.is_set():
            await asyncio.sleep(LOOK_S)
            # A transport whose buffer is full has stopped reading.
            if not self._reading() and await asyncio.to_thread(_CLOSINGS.has, own, peer):
                self.account.hang_up()

    def _reading(self) -> bool:
        transport = self._writer.transport
        return transport.is_reading() if isinstance(transport, asyncio.ReadTransport) else True

    def _look_at_clock(self) -> None:
        left = self._active + self._idle_timeout - self._loop.time()
        if left > 0:
            self._clock = self._loop.call_later(left, self._look_at_clock)
        else:
            self.abort()

    def abort(self) -> None:
        """Break the connection at once; who reads or writes it gets an error."""
        abort(self._writer.transport)
        self.account.hang_up()

    async def receive(self) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        try:
            data = await self._reader.read(READ_BYTES)
        except OSError as error:
            raise ClientGone(f"the connection broke: {error}") from error
        self._active = self._loop.time()
        return data

    async def send(self, data: bytes) -> None:
        async with self._sending:
            try:
                await write(self._writer, data)
            except OSError as error:
                raise ClientGone(f"the connection broke: {error}") from error
            self._active = self._loop.time()

    async def close(self) -> None:
        """See :class:`Transport`. Closing with bytes unread would make the kernel drop what the client has not read."""
        with suppress(OSError, ClientGone, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                if self._writer.can_write_eof():
                    self._writer.write_eof()
                while await self.receive():
                    pass

    async def dispose(self) -> None:
        """Give back what is held; the last call."""
        self.account.close()
        self._clock.cancel()
        self._hangup.close()
        abort(self._writer.transport)
        await self._tasks.close()
        let_go(self._reader)
