"""One request to another server whose answer is passed on as it comes: its head, then its body or what it upgraded to.

Nothing is followed, repeated, cached or kept for another request. Memory is bounded: a head by the parser, a body by
pieces that are read when the one before was taken.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

import h11

from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.errors import PodkeepError, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import netloc
from podkeep.http.budget import HANGUP_TIMEOUT_S, ClientGone
from podkeep.http.messages import Headers, encoded
from podkeep.http.parser import Parser
from podkeep.http.transport import Transport, abort, let_go, without_frames, write

CONNECT_TIMEOUT_S = 10.0
"""For the connection, and for TLS's handshake."""
CLOSE_TIMEOUT_S = 1.0
"""In which a server may take what was written before its connection is cut."""
PIECE_BYTES = 64 * 1024
RELAYED_BYTES = 4 * PIECE_BYTES
"""What a spliced connection may have in memory, at both of its ends."""
_HEAD_BYTES = 64 * 1024
_WAITING_BYTES = 16 * 1024
"""Twice that waits to be passed on before nothing more is read (:class:`asyncio.StreamReader`)."""


class Address(FrozenStruct, kw_only=True):
    """Where a server is: ``host`` is a name or an IP address; ``name`` is what its certificate must have."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    name: str = ""

    def __str__(self) -> str:
        return netloc.join(self.host, self.port)


class Backend:
    """A connection with one request on it."""

    def __init__(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._address, self._reader, self._writer = address, reader, writer
        self._h11 = Parser(h11.CLIENT, _HEAD_BYTES)
        self._tasks = Tasks("passing on a request's body")
        self._sending: asyncio.Task[None] | None = None
        self.status = 0
        self.headers: Headers = ()

    @classmethod
    async def connect(cls, address: Address) -> Backend:
        """Connect to a server.

        :raises Unavailable: in the words of Go's ``net``, which clients know from kube-apiserver.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(
                    address.host,
                    address.port,
                    ssl=address.tls,
                    server_hostname=(address.name or address.host) if address.tls else None,
                    limit=_WAITING_BYTES,
                )
            # asyncio reads 256 KiB at once, whatever its limit is, and keeps them for a client that takes nothing.
            if address.tls is None:
                writer.transport.max_size = PIECE_BYTES  # type: ignore[attr-defined]  # typeshed does not have it
            # A server whose machine is gone says nothing; the kernel asks it. One that closed has no socket any more.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except (OSError, TimeoutError, UnicodeError) as error:
            raise Unavailable(_words(address, error)) from without_frames(error)
        return cls(address, reader, writer)

    async def ask(self, method: str, target: str, headers: Headers, body: AsyncIterator[bytes] | None = None) -> None:
        """Send a request, and wait for the head of its answer: ``status`` and ``headers``.

        :param headers: with those that frame the body.
        :param body: is sent while the answer is waited for, and after that while it is read.
        :raises Unavailable: if the connection broke, or what came is no answer.
        """
        try:
            await self._write(h11.Request(method=method, target=target, headers=encoded(headers)))
            if body is None:
                await self._write(h11.EndOfMessage())
            else:
                self._sending = self._tasks.start(self._send(body))
            while not isinstance(event := await self._h11.event_of(self._reader), h11.Response):
                if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
                    break
                if not isinstance(event, h11.InformationalResponse):
                    raise Unavailable("EOF")
        except (OSError, h11.ProtocolError) as error:
            raise Unavailable(_words(self._address, error)) from error
        self.status = event.status_code
        self.headers = [(name.decode(), value.decode("latin-1")) for name, value in event.headers]

    async def _send(self, body: AsyncIterator[bytes]) -> None:
        try:
            async for piece in body:
                await self._write(h11.Data(data=piece))
            await self._write(h11.EndOfMessage())
        except (OSError, h11.ProtocolError, PodkeepError):
            # Whoever waits for the answer learns it.
            abort(self._writer.transport)

    async def _write(self, event: h11.Event) -> None:
        await write(self._writer, self._h11.send(event) or b"")

    async def body(self) -> AsyncGenerator[bytes, None]:
        """Yield the body of the answer in pieces.

        :raises Unavailable: if the connection broke before its end.
        """
        try:
            while isinstance(event := await self._h11.event_of(self._reader), h11.Data):
                for start in range(0, len(event.data), PIECE_BYTES):
                    yield bytes(event.data[start : start + PIECE_BYTES])
        except (OSError, h11.ProtocolError) as error:
            raise Unavailable(_words(self._address, error)) from error

    async def start_of_body(self, limit: int) -> bytes:
        """Return no more than ``limit`` bytes of the body, as far as the server sends it."""
        found = bytearray()
        with suppress(Unavailable):
            async for piece in self.body():
                found += piece
                if len(found) >= limit:
                    break
        return bytes(found[:limit])

    async def splice(self, client: Transport) -> None:
        """Pass on the bytes of an upgraded connection in both directions until one side ends it."""
        work = self._to_server(client), self._to_client(client), _has_left(client)
        pool = client.account.pool
        pool.hold(RELAYED_BYTES)
        try:
            await asyncio.wait([self._tasks.start(item) for item in work], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self.close()
            pool.hold(-RELAYED_BYTES)
        await client.close()

    async def _to_server(self, client: Transport) -> None:
        with suppress(OSError, ClientGone):
            while data := await client.receive():
                await write(self._writer, data)

    async def _to_client(self, client: Transport) -> None:
        with suppress(OSError, ClientGone):
            # A server may send first bytes of the new protocol right behind the head of its 101; h11 has read those
            # already.
            data = bytes(self._h11.trailing_data[0]) or await self._reader.read(PIECE_BYTES)
            while data:
                await client.send(data)
                data = await self._reader.read(PIECE_BYTES)

    async def close(self) -> None:
        """End the connection; what was written is sent, if the server takes it."""
        await self._tasks.close()
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._writer.wait_closed()
        self.abort()

    def abort(self) -> None:
        """Cut the connection, and read no more of the request's body."""
        if self._sending is not None:
            self._sending.cancel()
        abort(self._writer.transport)
        let_go(self._reader)


async def _has_left(client: Transport) -> None:
    """Return some time after a client has left: what it sent before is passed on if the server takes it."""
    await client.account.hangup.wait()
    await asyncio.sleep(HANGUP_TIMEOUT_S)


def _words(address: Address, error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"tls: failed to verify certificate: x509: {error.verify_message}"
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"dial tcp: lookup {address.host}: no such host"
    if isinstance(error, TimeoutError):
        return f"dial tcp {address}: i/o timeout"
    if isinstance(error, ConnectionRefusedError):
        return f"dial tcp {address}: connect: connection refused"
    if isinstance(error, h11.ProtocolError):
        return "net/http: HTTP/1.x transport connection broken: malformed HTTP response"
    if isinstance(error, ssl.SSLError):
        return f"tls: {error.reason or error}"
    text = (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).lower()
    return f"dial tcp {address}: {text}"
