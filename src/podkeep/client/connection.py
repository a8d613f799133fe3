"""One HTTP/1.1 connection of a client, with one request on it at a time.

Memory is bounded: a head by h11, a body by what the caller says or by pieces that are read one after the other. A
server whose machine is gone is found by the kernel's probes, so that an idle watch costs nothing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import suppress
from urllib.parse import urlsplit

import h11

from podkeep.base.errors import InvalidArgument, ResourceExhausted, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.http.parser import Parser
from podkeep.http.transport import abort

CONNECT_TIMEOUT_S = 10.0
PIECE_BYTES = 64 * 1024
_HEAD_BYTES = 64 * 1024
_CLOSE_TIMEOUT_S = 1.0
_PROBES = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Seconds of silence before the first probe, between probes, and how many are left unanswered."""
_UNSENT_MS = 30_000
"""For which what is sent may be unacknowledged."""

_WARNING = re.compile(rb'\b299 [^\s"]+ "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")

Headers = list[tuple[str, str]]


class ServerAddress(FrozenStruct, kw_only=True):
    """Where a server is: ``path`` is a unix socket's; ``prefix`` goes before each request's path."""

    host: str = ""
    port: int = 0
    path: str = ""
    prefix: str = ""
    authority: str = "localhost"
    """``Host`` of requests."""

    def __str__(self) -> str:
        return self.path or self.authority


def server_address(server: str) -> ServerAddress:
    """Return where a server's URL leads.

    :raises InvalidArgument: if it is not one.
    """
    hint = "write it like https://HOST:PORT or unix:///PATH"
    try:
        parts = urlsplit(server)
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"server {server!r}: {error}", hint=hint) from error
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return ServerAddress(path=parts.path)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument(f"server {server!r} is no URL of an API", hint=hint)
    default = 443 if parts.scheme == "https" else 80
    return ServerAddress(
        host=parts.hostname,
        port=port or default,
        prefix=parts.path.rstrip("/"),
        authority=parts.netloc.rpartition("@")[2],
    )


def warning_texts(value: bytes) -> list[str]:
    """Return the texts of a header ``Warning`` (RFC 7234, section 5.5) of the code 299; others are of proxies."""
    texts = (found[1].decode(errors="replace") for found in _WARNING.finditer(value))
    return [_ESCAPED.sub(r"\1", text) for text in texts]


class ConnectionEnded(Unavailable):
    """The connection ended before anything of an answer came."""


class Connection:
    """A connection; ``status``, ``headers`` and ``warnings`` are those of the last answer."""

    def __init__(self, where: ServerAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._where, self._reader, self._writer = where, reader, writer
        self._h11 = Parser(h11.CLIENT, _HEAD_BYTES)
        self.used = False
        """It has carried a request."""
        self.aborted = False
        """It was cut from this side."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.warnings: list[str] = []
        """What the server has to say beside its answer (``Warning``), as text."""

    @classmethod
    async def open(cls, where: ServerAddress, tls: ssl.SSLContext | None, server_name: str = "") -> Connection:
        """Connect to a server.

        :raises Unavailable: if that is not possible.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if where.path:
                    reader, writer = await asyncio.open_unix_connection(where.path, limit=PIECE_BYTES)
                else:
                    reader, writer = await asyncio.open_connection(
                        where.host,
                        where.port,
                        ssl=tls,
                        server_hostname=(server_name or where.host) if tls else None,
                        limit=PIECE_BYTES,
                    )
        except (OSError, TimeoutError, UnicodeError) as error:
            raise Unavailable(f"the API at {where} cannot be reached: {_words(error)}") from error
        if not where.path:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _PROBES:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNSENT_MS)
        return cls(where, reader, writer)

    @property
    def usable(self) -> bool:
        """Another request can be sent."""
        return (
            self._h11.our_state is h11.IDLE
            and self._h11.their_state is h11.IDLE
            and not self._reader.at_eof()
            and not self._writer.is_closing()
        )

    async def ask(self, method: str, path: str, headers: Headers, body: bytes = b"") -> None:
        """Send a request, and wait for the head of its answer.

        :raises ConnectionEnded: if the connection ended before.
        :raises Unavailable: if what came is no answer.
        """
        sent = [("host", self._where.authority), *headers]
        if body or method in ("POST", "PUT", "PATCH"):
            sent.append(("content-length", str(len(body))))
        self.used = True
        try:
            head = self._h11.send(h11.Request(method=method, target=self._where.prefix + path, headers=sent)) or b""
            if body:
                head += self._h11.send(h11.Data(data=body)) or b""
            head += self._h11.send(h11.EndOfMessage()) or b""
            self._writer.write(head)
            await self._writer.drain()
            while not isinstance(event := await self._h11.event_of(self._reader), h11.Response):
                if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
                    break
                if not isinstance(event, h11.InformationalResponse):
                    raise ConnectionEnded(f"the API at {self._where} closed the connection")
        except h11.LocalProtocolError as error:
            raise InvalidArgument(f"no request can be made of {method} {path!r}: {error}") from error
        except (OSError, h11.RemoteProtocolError) as error:
            # Bytes of an answer have come, so the request reached the server; ConnectionEnded says that nothing came.
            kind = Unavailable if self._h11.trailing_data[0] else ConnectionEnded
            raise kind(f"the API at {self._where} gave no answer: {_words(error)}") from error
        self.status = event.status_code
        self.headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
        self.warnings = [text for name, value in event.headers if name == b"warning" for text in warning_texts(value)]

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body of the answer as it comes; after its end the connection is ready for another request.

        :raises Unavailable: if the connection broke before the end.
        """
        try:
            while isinstance(event := await self._h11.event_of(self._reader), h11.Data):
                yield bytes(event.data)
        except (OSError, h11.RemoteProtocolError) as error:
            words = "it closed the connection" if self._reader.at_eof() else _words(error)
            raise Unavailable(f"the API at {self._where} broke off its answer: {words}") from error
        # After `Connection: close` there is no next cycle; usable tells that.
        with suppress(h11.LocalProtocolError):
            self._h11.start_next_cycle()

    async def body(self, limit: int) -> bytes:
        """Return the whole body of the answer.

        :raises ResourceExhausted: if it has more than ``limit`` bytes.
        :raises Unavailable: if the connection broke.
        """
        found = []
        size = 0
        async for piece in self.pieces():
            size += len(piece)
            if size > limit:
                raise ResourceExhausted(f"the API at {self._where} answered with more than {limit} bytes")
            found.append(piece)
        return found[0] if len(found) == 1 else b"".join(found)

    def upgraded(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
        """Return the streams of a connection that changed its protocol, and what came with the answer."""
        return self._reader, self._writer, bytes(self._h11.trailing_data[0])

    def abort(self) -> None:
        self.aborted = True
        abort(self._writer.transport)

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._writer.wait_closed()
        self.abort()


def _words(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, TimeoutError) and not error.args:
        return "it does not answer"
    if isinstance(error, OSError) and error.strerror:
        # asyncio has "Connect call failed" and an address instead. Numbers of TLS and of the resolver are others.
        is_systems = error.errno in errno.errorcode and not isinstance(error, ssl.SSLError)
        return os.strerror(error.errno or 0) if is_systems else error.strerror
    return str(error)
