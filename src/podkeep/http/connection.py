"""HTTP/1.1 on one connection: reading a request, calling its handler, writing the response, and then the next one.

Owns: the order of these steps, their time limits, and the change from HTTP to another protocol. Does not own: syntax
and states of HTTP/1.1, which are h11's, or which connections there are (``listener.py``). Requests that a client sends
ahead are read one after the other. Nothing is read of a client that does not take what was written.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
import struct
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import ExitStack, aclosing, suppress
from email.utils import formatdate
from hashlib import sha256
from http import HTTPStatus
from typing import Any, NoReturn, TypeVar

import h11

from podkeep.base import log as request_log
from podkeep.base.concurrency.tasks import ungrouped
from podkeep.base.errors import PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.http.budget import Account, ClientGone, Pool
from podkeep.http.listener import Connection
from podkeep.http.messages import (
    Body,
    Chunk,
    Credentials,
    Handler,
    Peer,
    Refused,
    Request,
    Response,
    Upgrade,
    encoded,
    framed,
)
from podkeep.http.parser import Parser
from podkeep.http.transport import Hangup, SocketTransport, is_closing, write

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

PIECE_BYTES = 64 * 1024
"""What is read at a time, and written before the client has taken some."""
_EVENTS_PASSED_OVER = 64
"""Pieces of an unread body that are skipped to keep a connection; one with more is closed."""
_BOTH_DONE = {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}
_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
"""Of the statuses that have one; who passes on answers of others has more."""
_UCRED = struct.Struct("3i")
"""struct ucred (unix(7))."""


class Limits(FrozenStruct, kw_only=True):
    """What clients may have and take. Times are in seconds."""

    waiting: int = 1024
    """Connections at a time whose client has not been admitted, or waits between two requests: for one more the oldest
    of them is closed."""
    admitted: int | None = None
    """Connections at a time that are admitted; one more is refused, or ends one of who has more than its owner. None:
    the handler bounds them."""
    head_bytes: int = 16 * 1024
    """A request's head; also the head of one chunk, and the trailers."""
    head_timeout: float = 10.0
    """For TLS's handshake, and for a request's head."""
    body_timeout: float = 30.0
    """For each piece of a request's body, and for one that is read whole."""
    write_timeout: float = 10.0
    """For each 64 KiB that the client has to take."""
    idle_timeout: float = 0.0
    """How long a connection is kept for another request; 0: each connection has one."""


class HttpConnection:
    """Serves one connection. ``name`` says in the log whose server it is."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        handler: Handler,
        *,
        limits: Limits,
        pool: Pool,
        stopping: asyncio.Event,
    ) -> None:
        self._name, self._connection, self._handler = name, connection, handler
        self._limits, self._pool, self._stopping = limits, pool, stopping
        self._reader, self._writer = connection.reader, connection.writer
        self._transport = connection.writer.transport
        self._socket: socket.socket = connection.writer.get_extra_info("socket")
        self._h11 = Parser(h11.SERVER, limits.head_bytes)
        self._is_chunked = False
        self._sends_chunks = False
        self._peer = _peer(self._socket, connection.writer)
        self._proven_until = _not_after(self._peer)
        self._is_last = False
        self._account = Account(pool)
        """What is kept of the bodies of its requests."""
        self._body_reader: asyncio.Task[Any] | None = None
        """Who waits for a piece of a body: whoever passes it on does so in a task of its own."""
        self._method = ""
        self.is_idle = True
        """Whether no request is being answered: nothing is lost if it ends."""

    @property
    def settings(self) -> ssl.SSLContext | None:
        """The TLS settings that the client's certificate was verified with; None: it showed none."""
        return None if self._peer.certificate is None else self._connection.writer.get_extra_info("sslcontext")

    def end_soon(self) -> None:
        """Answer the request that is being answered, and have no other."""
        self._is_last = True

    async def serve(self) -> None:
        """Answer requests until the connection is to be closed."""
        try:
            head = await self._read_head(first=True)
            while head is not None:
                self.is_idle = False
                request_log.begin_request()
                if not await self._answer(head):
                    return
                self._h11.start_next_cycle()
                self._connection.release()
                self.is_idle = True
                # Requests that came at once are not answered at once: others have their turn.
                await asyncio.sleep(0)
                head = await self._read_head(first=False)
        except Refused as refusal:
            # Clients may be refused, or fail, as often as they like: they are told why, and the log is not filled.
            log.debug("a %s request is refused with %d: %s", self._name, refusal.status, refusal.message)
            with suppress(OSError, TimeoutError):
                await self._write_error(refusal)
                await self._close()
        except (ClientGone, OSError, TimeoutError) as error:
            log.debug("a %s session ended: %s", self._name, error)
        except PodkeepError as error:
            log.debug("a %s session failed: %s", self._name, error)

    async def _answer(self, head: h11.Request) -> bool:
        """Answer one request; return whether there may be another."""
        with ExitStack() as at_end:
            at_end.callback(self._account.close)
            request = self._request(head, at_end)
            self._method = request.method
            answer = await self._ask_handler(request)
            if isinstance(answer, Upgrade):
                await self._upgrade(answer, request)
                return False
            await self._write_response(answer)
        if self._input_is_whole() and self._h11.states == _BOTH_DONE and not self._ends:
            return True
        with suppress(OSError, TimeoutError):
            await self._close()
        return False

    @property
    def _ends(self) -> bool:
        return self._is_last or self._stopping.is_set()

    def _request(self, head: h11.Request, at_end: ExitStack) -> Request:
        # TLS looks once, when the connection begins, and not at all if the client goes on with a session it had before.
        if time.time() > self._proven_until:
            raise Refused(401, "the client's certificate has expired")
        headers: dict[str, list[str]] = {}
        for name, value in head.headers:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        self._is_chunked = "transfer-encoding" in headers
        if self._is_chunked and "content-length" in headers:
            # Whoever passes requests on might take the other one for the end of this (RFC 9112, section 6.3).
            raise Refused(400, "not an HTTP/1.1 request: it has two lengths")
        # h11 lets only one number through.
        length = None if self._is_chunked else int(headers.get("content-length", ["0"])[0])
        return Request(
            method=head.method.decode(),
            target=head.target.decode("latin-1"),
            headers=headers,
            body=Body(self._receive_body, length, self._account, self._limits.body_timeout),
            peer=self._peer,
            stopping=self._stopping,
            at_end=at_end,
            admit=self._admit,
            write_now=self._write_now,
            while_there=self._while_there,
        )

    def _admit(self, owner: str = "") -> None:
        if not self._connection.admit(owner):
            raise Refused(503, "too many requests at a time", [("Retry-After", "1")])

    async def _ask_handler(self, request: Request) -> Response | Upgrade:
        try:
            return await self._handler(request)
        except (Refused, ClientGone):
            raise
        except Exception:  # the boundary: whatever happened must become an answer
            # The target is not logged: it may be a secret.
            log.exception("the handler of a %s request (%s) failed unexpectedly", self._name, request.method)
            return _error(Refused(500, f"internal error; the log says more under [{request_log.request_id()}]"))

    # reading

    async def _read_head(self, *, first: bool) -> h11.Request | None:
        """Return the next request, or None if the connection ended before there was one.

        :raises Refused: if what came is no request.
        :raises TimeoutError: if it did not come in time.
        """
        # A request that was sent ahead has begun: its head is under the limit for heads, not the one for idle
        # connections.
        begun = first or self._h11.trailing_data[0] != b""
        async with asyncio.timeout(self._limits.head_timeout if begun else self._limits.idle_timeout) as deadline:
            while (event := self._next_event()) is h11.NEED_DATA:
                self._h11.receive_data(await self._reader.read(PIECE_BYTES))
                if not begun:
                    begun = True
                    deadline.reschedule(asyncio.get_running_loop().time() + self._limits.head_timeout)
        if isinstance(event, h11.Request):
            return event
        if isinstance(event, h11.ConnectionClosed):
            return None
        raise Refused(400, "not an HTTP/1.1 request: its head is empty")

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._h11.next_event()
        except h11.RemoteProtocolError as error:
            # What came is not repeated, neither to the client nor in the log: the target may be a secret.
            words = f"not an HTTP/1.1 request: {str(error).partition(':')[0]}"
            raise Refused(error.error_status_hint, words) from error

    async def _receive_body(self) -> bytes:
        """Return the next piece of the body; nothing at its end."""
        while True:
            event = self._next_event()
            if event is h11.NEED_DATA:
                try:
                    # Sent only when the handler reads: a client whose request is refused before then sends no body.
                    if self._h11.they_are_waiting_for_100_continue:
                        await self._write(self._h11.send(h11.InformationalResponse(status_code=100, headers=[])))
                    self._body_reader = asyncio.current_task()
                    data = await self._reader.read(PIECE_BYTES)
                except OSError as error:
                    raise ClientGone(f"the connection broke: {error}") from error
                finally:
                    self._body_reader = None
                self._h11.receive_data(data)
            elif isinstance(event, h11.Data):
                await self._account.took(len(event.data))
                if event.data:
                    return bytes(event.data)
            else:
                return b""

    def _input_is_whole(self) -> bool:
        """Pass over what has come of a body that the handler did not read; return whether that was all.

        Chunks are not: what their lines may cost h11 is for who asked for the body.
        """
        if self._is_chunked and self._h11.their_state is h11.SEND_BODY:
            return False
        with suppress(Refused):
            for _ in range(_EVENTS_PASSED_OVER):
                if self._h11.their_state is not h11.SEND_BODY or self._next_event() is h11.NEED_DATA:
                    break
        return self._h11.their_state not in {h11.SEND_BODY, h11.ERROR}

    # writing

    async def _write(self, data: bytes | None) -> None:
        if not data:
            return
        if self._is_taken():
            self._writer.write(data)
            if self._is_taken():
                return  # drain() would not wait: a clock for that costs more than to write an event of a watch
            data = b""
        async with asyncio.timeout(self._limits.write_timeout):
            await write(self._writer, data)

    def _is_taken(self) -> bool:
        return not self._transport.get_write_buffer_size() and not is_closing(self._transport)

    def _write_now(self, chunk: Chunk) -> bool:
        if not self._sends_chunks or not self._is_taken():
            return False
        self._transport.write(chunk)
        return True

    async def _write_response(self, response: Response, *, closes: bool = False) -> None:
        is_empty = self._method == "HEAD" or response.status in _WITHOUT_BODY
        if isinstance(response.body, bytes):
            head = self._head(response, length=len(response.body), closes=closes or not self._input_is_whole())
            await self._write_whole(head, b"" if is_empty else response.body)
        else:
            async with aclosing(response.body) as chunks:
                await self._write(self._head(response, length=None, closes=False))
                if not is_empty:
                    await self._write_chunks(chunks)
        await self._write(self._h11.send(h11.EndOfMessage()))

    def _head(self, response: Response, *, length: int | None, closes: bool) -> bytes:
        headers = list(response.headers)
        if length is not None and response.status not in _WITHOUT_BODY:
            headers.append(("Content-Length", str(length)))
        headers.append(("Date", formatdate(usegmt=True)))
        if closes or not self._limits.idle_timeout or self._ends:
            headers.append(("Connection", "close"))
        reason = _PHRASES.get(response.status, b"")
        return self._h11.send(h11.Response(status_code=response.status, headers=encoded(headers), reason=reason)) or b""

    async def _write_whole(self, head: bytes, body: bytes) -> None:
        # A short body goes out with its head.
        for start in range(0, len(body), PIECE_BYTES):
            piece = self._h11.send(h11.Data(data=body[start : start + PIECE_BYTES]))
            await self._write(head + (piece or b""))
            head = b""
        await self._write(head)

    async def _write_chunks(self, chunks: AsyncGenerator[bytes, None]) -> None:
        """Send what a generator makes, and end it when the client leaves: it may have nothing to send for long.

        :raises ClientGone: if it left.
        :raises TimeoutError: if it takes nothing.
        """

        # h11 sends the same, but looks at each; it has no state between two. Others than 1.1 get a body that ends with
        # the connection.
        self._sends_chunks = self._h11.their_http_version == b"1.1"

        async def write() -> None:
            async for data in chunks:
                # Of what is large, only a piece is copied for a client that takes its time. What others make in pieces
                # of that size is a little longer, and stays whole.
                size = PIECE_BYTES if len(data) > 2 * PIECE_BYTES else len(data)
                for start in range(0, len(data), size or 1):
                    await self._write_data(data[start : start + size])

        try:
            await self._while_there(write())
        finally:
            self._sends_chunks = False

    async def _write_data(self, data: bytes) -> None:
        await self._write(framed(data) if self._sends_chunks else self._h11.send(h11.Data(data=data)))

    async def _while_there(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        gone = asyncio.Event()
        results: list[_Result] = []
        try:
            hangup = Hangup(self._socket, gone.set)
        except BaseException:
            work.close()  # it was not begun
            raise

        async def done_while_there() -> None:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(_fail_when(gone))
                results.append(await work)
                watching.cancel()

        try:
            # Callers know the exception itself and no groups; what fails first cancels the other task.
            await ungrouped(done_while_there())
        except ClientGone:
            # Left in the very turn in which the work was done: what it made may have to be given back, by the caller.
            if not results:
                raise
        finally:
            hangup.close()
        return results[0]

    async def _write_error(self, refusal: Refused) -> None:
        # Not within another response: that is broken off.
        if self._h11.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            await self._write_response(_error(refusal), closes=True)

    async def _close(self) -> None:
        """Close the connection when the client has what was written.

        With input unread the kernel would reset the connection, and the client might lose what it has not read.
        """
        async with asyncio.timeout(self._limits.write_timeout):
            await self._end_reading()
            if not self._input_is_whole():
                if self._writer.can_write_eof():
                    self._writer.write_eof()
                while await self._reader.read(PIECE_BYTES):
                    pass
            self._writer.close()
            await self._writer.wait_closed()

    async def _end_reading(self) -> None:
        """Have nobody wait for the body any more: a server that it is passed on to may answer before its end."""
        reader = self._body_reader
        if reader is not None:
            reader.cancel()
            await asyncio.wait({reader})

    async def _upgrade(self, upgrade: Upgrade, request: Request) -> None:
        # Refuses a body: its bytes would be taken for those of the new protocol.
        await request.body.read(0)
        switching = h11.InformationalResponse(
            status_code=101, headers=encoded(upgrade.headers), reason=b"Switching Protocols"
        )
        await self._write(self._h11.send(switching))
        transport = SocketTransport(
            self._reader,
            self._writer,
            self._h11.trailing_data[0],
            idle_timeout=upgrade.idle_timeout,
            account=Account(self._pool, upgrade.owner),
        )
        try:
            await upgrade.session(transport)
        finally:
            await transport.dispose()


def _error(refusal: Refused) -> Response:
    headers = [*refusal.headers, ("Content-Type", "text/plain; charset=utf-8")]
    return Response(status=refusal.status, headers=headers, body=f"{refusal.message}\n".encode())


async def _fail_when(gone: asyncio.Event) -> NoReturn:
    await gone.wait()
    raise ClientGone("the client left")


def _peer(sock: socket.socket, writer: asyncio.StreamWriter) -> Peer:
    if sock.family == socket.AF_UNIX:
        pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return Peer(credentials=Credentials(pid=pid, uid=uid, gid=gid))
    address = writer.get_extra_info("peername")
    return Peer(
        address=address[0] if address else "",
        certificate=writer.get_extra_info("peercert") or None,
        fingerprint=_fingerprint(writer.get_extra_info("ssl_object")),
    )


def _not_after(peer: Peer) -> float:
    """Return until when a client's certificate is valid, in seconds since the epoch."""
    return math.inf if peer.certificate is None else ssl.cert_time_to_seconds(peer.certificate["notAfter"])


def _fingerprint(tls: ssl.SSLObject | None) -> str:
    certificate = None if tls is None else tls.getpeercert(binary_form=True)
    return sha256(certificate).hexdigest() if certificate else ""
