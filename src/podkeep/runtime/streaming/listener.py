"""Listening sockets whose clients are many and hostile: a task for each connection, and a limit that strangers share.

Owns: accepting, TLS's handshake, the number of strangers, the kernel's buffers for connections, and their end. Does not
own: what is spoken, or how many are admitted. Whoever can reach the socket may connect, and must not keep out those who
are entitled: for a connection above the limit the oldest one is closed that has not been admitted yet.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from podkeep.base.tasks import Tasks

log = logging.getLogger(__name__)

BACKLOG = 128
SOCKET_BUFFER_BYTES = 128 * 1024
"""What the kernel holds of a connection in each direction (socket(7): it doubles this). Without it the kernel lets a
buffer grow to megabytes, which are the daemon's as well."""
STREAM_BUFFER_BYTES = 32 * 1024
"""What is read ahead of who reads a connection (asyncio stops at twice that)."""
RETRY_S = 1.0
"""How long nothing is accepted after the machine had no descriptor or memory for it."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(eq=False, kw_only=True)
class Connection:
    """A client's connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    admit: Callable[[], None] = field(repr=False)
    """Called when the client has shown what it wants: it is not closed any more to make room."""


Serve = Callable[[Connection], Awaitable[None]]


class Listener:
    """Serves the connections of some sockets.

    :param limit: connections at a time that are not admitted.
    :param handshake_timeout: seconds that a TLS handshake may take.
    """

    def __init__(
        self, serve: Serve, *, limit: int, tls: ssl.SSLContext | None = None, handshake_timeout: float = 10.0
    ) -> None:
        self._serve, self._limit = serve, limit
        self._tls, self._handshake_timeout = tls, handshake_timeout
        self._accepting = Tasks("accepting connections")
        self._connections = Tasks("a connection")
        self._strangers: dict[asyncio.Task[None], None] = {}
        """Those that are not admitted, the oldest first."""
        self._sockets: Sequence[socket.socket] = ()

    def __len__(self) -> int:
        """Return how many connections there are."""
        return len(self._connections)

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """Listen on ``sockets``, which are bound; they are closed with the listener."""
        self._sockets = sockets
        for sock in sockets:
            sock.setblocking(False)
            # Connections have these from the socket that accepts them.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
            sock.listen(BACKLOG)
            self._accepting.start(self._accept(sock))

    async def close(self) -> None:
        """Stop listening, end every connection and wait for that."""
        await self._accepting.close()
        for sock in self._sockets:
            sock.close()
        await self._connections.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    log.warning("no connection is accepted for %g s: %s", RETRY_S, error)
                    await asyncio.sleep(RETRY_S)
                continue
            self._take(sock)
            # A flood must not keep out what else there is to do, as the end of those that made room.
            await asyncio.sleep(0)

    def _take(self, sock: socket.socket) -> None:
        if len(self._strangers) >= self._limit:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        task = self._connections.start(self._run(sock))
        self._strangers[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)

    async def _run(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=STREAM_BUFFER_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_timeout if self._tls else None,
            )
        except OSError as error:
            log.debug("a connection is not taken: %s", error)
            return
        task = asyncio.current_task()
        assert task is not None
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._serve(Connection(reader=reader, writer=writer, admit=partial(self._forget, task)))
        finally:
            # Not close(): it would wait for ever for a client that does not take what was written.
            transport.abort()
