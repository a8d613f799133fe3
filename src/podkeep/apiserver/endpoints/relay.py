"""Passing a request on to another HTTP server, and its answer back; an upgraded connection is passed on as bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

import h11

from podkeep.apiserver.meta.status import internal
from podkeep.http.budget import ClientGone
from podkeep.http.messages import Headers, Request, Response, Upgrade
from podkeep.http.transport import Transport

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0
"""Until the head of an answer has come."""
IDLE_TIMEOUT_S = 4 * 3600.0
"""Without a byte in either direction a stream ends (kubelet: ``streamingConnectionIdleTimeout``)."""
PIECE_BYTES = 64 << 10
_OF_ONE_CONNECTION = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
    }
)
"""Headers that are not passed on (RFC 9110, section 7.6.1)."""
_PRIVATE = frozenset({"authorization", "proxy-authorization", "host", "expect", "accept-encoding"})
"""Who asks is nobody's business but the API's."""
_UPGRADE = ("upgrade", "connection", "sec-websocket-key", "sec-websocket-version", "sec-websocket-protocol")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a request goes: an address and port, TLS or none, and path with query."""

    host: str
    port: int
    target: str
    tls: ssl.SSLContext | None = None

    @property
    def netloc(self) -> str:
        """Host and port as a URL has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def relay(request: Request, place: Place) -> Response | Upgrade:
    """Pass a request on.

    :raises StatusError: 500, if the other server does not answer, or not in HTTP.
    """
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=64 << 10)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(place.host, place.port, ssl=place.tls)
    except (OSError, TimeoutError) as error:
        raise internal(f"error dialing backend: {place.netloc}: {error or 'timeout'}") from error
    # The writer itself: a transport is closed with the last reference to its writer.
    request.at_end.callback(_abort, writer)
    try:
        await _send(http, writer, request, place)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answer = await _head(http, reader)
    except (OSError, TimeoutError, h11.RemoteProtocolError, h11.LocalProtocolError) as error:
        raise internal(f"error from backend: {place.netloc}: {error or 'timeout'}") from error
    if isinstance(answer, h11.InformationalResponse):
        if not request.upgrade:
            raise internal(f"error from backend: {place.netloc}: it changes the protocol, unasked")
        first = http.trailing_data[0]
        session = _Session(reader, writer, first)
        return Upgrade(headers=_headers(answer.headers, ()), session=session, idle_timeout=IDLE_TIMEOUT_S)
    status = answer.status_code
    if status not in {item.value for item in HTTPStatus}:
        status = HTTPStatus.BAD_GATEWAY
    return Response(
        status=status, headers=_headers(answer.headers, _OF_ONE_CONNECTION | {"date"}), body=_body(http, reader)
    )


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _send(http: h11.Connection, writer: asyncio.StreamWriter, request: Request, place: Place) -> None:
    headers = [("host", place.netloc), *_passed_on(request.headers)]
    if request.upgrade:
        headers += [(name, ", ".join(request.headers[name])) for name in _UPGRADE if name in request.headers]
        if request.method == "POST":
            headers.append(("content-length", "0"))
    elif not request.body.is_empty:
        headers.append(("transfer-encoding", "chunked"))
    writer.write(http.send(h11.Request(method=request.method, target=place.target, headers=headers)) or b"")
    if not request.upgrade:
        async for piece in request.body:
            writer.write(http.send(h11.Data(data=piece)) or b"")
            await writer.drain()
    writer.write(http.send(h11.EndOfMessage()) or b"")
    await writer.drain()


def _passed_on(headers: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    left_out = {*_OF_ONE_CONNECTION, *_PRIVATE, *_UPGRADE}
    return [
        (name, text)
        for name, texts in headers.items()
        if name not in left_out and not name.startswith("impersonate-")
        for text in texts
    ]


async def _head(http: h11.Connection, reader: asyncio.StreamReader) -> h11.Response | h11.InformationalResponse:
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(PIECE_BYTES))
        elif isinstance(event, h11.Response):
            return event
        elif isinstance(event, h11.InformationalResponse):
            if event.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                return event
        else:
            raise h11.RemoteProtocolError("the connection was closed")


def _headers(headers: Iterable[tuple[bytes, bytes]], left_out: frozenset[str] | tuple[str, ...]) -> Headers:
    pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
    return [(name, value) for name, value in pairs if name not in left_out]


async def _body(http: h11.Connection, reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    """Yield what comes; if it breaks off, so does the answer."""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(PIECE_BYTES))
        elif isinstance(event, h11.Data):
            yield bytes(event.data)
        else:
            return


class _Session:
    """Bytes between a client and another server, both ways, until one of them has no more to say."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes) -> None:
        self._reader, self._writer, self._first = reader, writer, first

    async def __call__(self, transport: Transport) -> None:
        """Pass on bytes."""
        try:
            if self._first:
                await transport.send(self._first)
            async with asyncio.TaskGroup() as group:
                up = group.create_task(self._up(transport))
                await self._down(transport)
                up.cancel()
        except* (OSError, ClientGone):
            pass
        finally:
            self._writer.transport.abort()
        with suppress(ClientGone):
            await transport.close()

    async def _up(self, transport: Transport) -> None:
        while data := await transport.receive():
            self._writer.write(data)
            await self._writer.drain()
        if self._writer.can_write_eof():
            self._writer.write_eof()
        else:
            self._writer.close()

    async def _down(self, transport: Transport) -> None:
        while data := await self._reader.read(PIECE_BYTES):
            await transport.send(data)
