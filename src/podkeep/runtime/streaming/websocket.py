"""WebSocket connections: channels in messages, and a tunnel for another protocol.

Owns: what Kubernetes puts into messages. Does not own: frames, masks, fragments and pings of RFC 6455, which are
wsproto's, or the handshake (``handshake.py``).

The first byte of a message is the number of a channel. In the base64 variants the message is text, the number a digit
and the rest encoded. From version 5 on, channel 255 is a signal: the byte after it names the channel that ends.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.streaming.channels import ClientGone, Inbox
from podkeep.runtime.streaming.transport import Transport

CLOSE_SIGNAL = 255
MESSAGE_BYTES = 32 * 1024
"""Data in one message of ours. Kubernetes' clients read with buffers of this size."""
MAX_TEXT = 1 << 20
"""Longest message that has to be complete before it can be decoded."""


@dataclass(frozen=True)
class Part:
    """A part of a message: ``first`` and ``last`` say which."""

    data: bytes
    first: bool
    last: bool


class WebSocket:
    """Messages over a connection whose handshake is done."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._connection = Connection(ConnectionType.SERVER)
        self._at_start = True
        self._closed = False

    async def parts(self) -> AsyncIterator[Part]:
        """Yield the parts of messages until the client leaves or breaks the protocol; pings are answered."""
        while data := await self.transport.receive():
            self._connection.receive_data(data)
            for event in self._connection.events():
                if isinstance(event, BytesMessage | TextMessage):
                    payload = event.data.encode() if isinstance(event, TextMessage) else bytes(event.data)
                    part = Part(payload, first=self._at_start, last=event.message_finished)
                    self._at_start = event.message_finished
                    yield part
                elif isinstance(event, Ping):
                    await self.transport.send(self._connection.send(event.response()))
                elif isinstance(event, CloseConnection):
                    await self._answer_close(event)
                    return

    async def _answer_close(self, event: CloseConnection) -> None:
        self._closed = True
        with suppress(ClientGone, LocalProtocolError):
            await self.transport.send(self._connection.send(event.response()))

    async def send(self, data: bytes) -> None:
        """Send a binary message.

        :raises ClientGone: if the client is not there any more.
        """
        await self._send(BytesMessage(data=data))

    async def send_text(self, text: str) -> None:
        """Send a text message; see :meth:`send`."""
        await self._send(TextMessage(data=text))

    async def _send(self, message: BytesMessage | TextMessage) -> None:
        if self._closed:
            raise ClientGone("the client closed the connection")
        await self.transport.send(self._connection.send(message))

    async def close(self) -> None:
        """End the connection in good order; nobody may be in :meth:`parts`."""
        if not self._closed:
            self._closed = True
            with suppress(ClientGone, LocalProtocolError):
                await self.transport.send(self._connection.send(CloseConnection(code=CloseReason.NORMAL_CLOSURE)))
        await self.transport.close()


@dataclass(frozen=True)
class Protocol:
    """A version of the channel protocol."""

    name: str
    base64: bool = False
    json_status: bool = False
    """Whether the error channel carries a status as JSON."""
    signals_end: bool = False


COMMAND_PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("v5.channel.k8s.io", json_status=True, signals_end=True),
        Protocol("v4.channel.k8s.io", json_status=True),
        Protocol("v4.base64.channel.k8s.io", base64=True, json_status=True),
        Protocol("channel.k8s.io"),
        Protocol("base64.channel.k8s.io", base64=True),
        Protocol(""),
    )
}
"""By the name that a client asks for."""


class ChannelConnection:
    """A WebSocket connection as numbered channels: those in ``inputs`` are read, the others only written."""

    def __init__(self, socket: WebSocket, protocol: Protocol, inputs: tuple[int, ...]) -> None:
        self._socket, self._protocol = socket, protocol
        self.inboxes: Mapping[int, Inbox] = {number: Inbox(socket.transport.hangup) for number in inputs}
        self._text = bytearray()
        self._channel = -1

    async def run(self) -> None:
        """Read and dispatch until the client leaves; then every reader is told.

        :raises InvalidArgument: if the client broke the protocol.
        """
        try:
            async for part in self._socket.parts():
                if self._protocol.base64:
                    await self._take_text(part)
                else:
                    await self._take(part)
        except ClientGone:
            return
        finally:
            for inbox in self.inboxes.values():
                inbox.fail()

    async def _take(self, part: Part) -> None:
        data = part.data
        if part.first or self._channel < 0:
            if not data:
                return
            self._channel, data = data[0], data[1:]
        number = self._channel
        if self._protocol.signals_end and number == CLOSE_SIGNAL:
            if data and data[0] in self.inboxes:
                self.inboxes[data[0]].finish()
        elif number in self.inboxes:
            await self.inboxes[number].put(data)
        if part.last:
            self._channel = -1

    async def _take_text(self, part: Part) -> None:
        self._text += part.data
        if len(self._text) > MAX_TEXT:
            raise InvalidArgument(f"WebSocket: a message of more than {MAX_TEXT} bytes")
        if not part.last:
            return
        message, self._text = bytes(self._text), bytearray()
        number = message[0] - ord("0") if message else -1
        if number in self.inboxes:
            try:
                data = base64.b64decode(message[1:], validate=True)
            except binascii.Error as error:
                raise InvalidArgument(f"WebSocket: a message that is not base64: {error}") from error
            await self.inboxes[number].put(data)

    async def send(self, number: int, data: bytes) -> None:
        """Send data on a channel, in messages that a client has room for; nothing is a message, too.

        :raises ClientGone: if the client is not there any more.
        """
        for start in range(0, len(data) or 1, MESSAGE_BYTES):
            part = data[start : start + MESSAGE_BYTES]
            if self._protocol.base64:
                await self._socket.send_text(f"{number}{base64.b64encode(part).decode()}")
            else:
                await self._socket.send(bytes((number,)) + part)

    async def close(self) -> None:
        """End the connection in good order; nobody may be in :meth:`run`."""
        await self._socket.close()


@dataclass(frozen=True)
class ChannelSink:
    """One channel to the client. It has no end of its own: the connection's end is the end of all."""

    connection: ChannelConnection
    number: int

    async def send(self, data: bytes) -> None:
        if data:
            await self.connection.send(self.number, data)

    async def end(self) -> None:
        return


class Tunnel:
    """A WebSocket connection as a Transport of another protocol: the bytes are those of all messages."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._parts = socket.parts()

    @property
    def hangup(self) -> asyncio.Event:
        return self._socket.transport.hangup

    async def receive(self) -> bytes:
        async for part in self._parts:
            if part.data:
                return part.data
        return b""

    async def send(self, data: bytes) -> None:
        await self._socket.send(data)

    async def close(self) -> None:
        await self._socket.close()
