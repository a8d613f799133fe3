"""A client's side of an upgrade: connecting to a URL, asking for another protocol, the connection that speaks it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from podkeep.base.errors import Unavailable
from podkeep.http.parser import Parser
from podkeep.http.transport import abort, write

CONNECT_TIMEOUT_S = 10.0
_READ_BYTES = 64 * 1024
_HEAD_BYTES = 16 * 1024
_WORDS_BYTES = 4096
"""Of a refusal's body that is shown."""


@dataclass
class Upgraded:
    """A connection that has changed its protocol; ``first``: bytes that came with the answer."""

    name: str
    """What the peer is called in errors."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    headers: Mapping[str, str]
    first: bytes = b""

    async def receive(self) -> bytes:
        """Return the next bytes; nothing at the end."""
        first, self.first = self.first, b""
        try:
            return first or await self.reader.read(_READ_BYTES)
        except OSError:
            return b""

    async def send(self, data: bytes) -> None:
        """Send bytes, waiting while the peer does not take them.

        :raises Unavailable: if the connection broke.
        """
        try:
            await write(self.writer, data)
        except OSError as error:
            raise Unavailable(f"the connection to {self.name} broke: {error}") from error

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self.writer.wait_closed()


async def upgrade(
    url: str, method: str, headers: Mapping[str, str], certificate: str = "", *, name: str = "the server"
) -> Upgraded:
    """Connect to a URL and change the protocol.

    :param headers: with ``upgrade``, and what the new protocol wants.
    :param certificate: PEM file with the one certificate that the server may have; empty: any the machine trusts.
    :raises Unavailable: if it is not possible; the server's words are in the message.
    """
    parts = urlsplit(url)
    tls = None
    if parts.scheme == "https":
        tls = ssl.create_default_context(cafile=certificate or None)
        tls.check_hostname = not certificate
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"{name} on {parts.netloc} does not answer: {error}") from error
    http = Parser(h11.CLIENT, _HEAD_BYTES)
    fields = [("host", parts.netloc), ("connection", "Upgrade"), *headers.items()]
    if method == "POST":
        fields.append(("content-length", "0"))
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    for event in (h11.Request(method=method, target=target, headers=fields), h11.EndOfMessage()):
        writer.write(http.send(event) or b"")
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await _answer(name, http, reader, writer)
    except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
        abort(writer.transport)
        raise Unavailable(f"{name} gave no answer: {error}") from error
    except Unavailable:
        abort(writer.transport)
        raise


async def _answer(name: str, http: Parser, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Upgraded:
    status, words = 0, b""
    while True:
        event = await http.event_of(reader)
        if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
            headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            return Upgraded(name, reader, writer, headers, http.trailing_data[0])
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            words = (words + bytes(event.data))[:_WORDS_BYTES]
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            text = words.decode(errors="replace").strip()
            raise Unavailable(f"{name} refused: HTTP status {status}: {text}")
