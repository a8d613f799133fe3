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
from collections.abc import Mapping
from contextlib import suppress

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.http.budget import Account, ClientGone
from podkeep.http.streams import Inbox
from podkeep.http.transport import LINGER_S, Transport

STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
"""Channels of a command (k8s.io/client-go, tools/remotecommand)."""
CLOSE_SIGNAL = 255
MESSAGE_BYTES = 32 * 1024
"""Data in one message of ours. Kubernetes' clients read with buffers of this size."""
PARTS_AT_A_TIME = 64
"""Parts of messages that are kept at a time for who takes them."""


class Part(FrozenStruct):
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
        self._closed = self._ended = False
        self._more = False
        """Whether there may be more parts in what has been read."""

    async def receive(self) -> list[Part]:
        """Return the next parts of messages; none when the client leaves or breaks the protocol. Pings are answered."""
        parts: list[Part] = []
        while not parts and not self._ended:
            if not self._more:
                data = await self.transport.receive()
                if not data:
                    self._ended = True
                    break
                self._connection.receive_data(data)
            self._more = False
            for event in self._connection.events():
                taken = len(event.data) if isinstance(event, BytesMessage | TextMessage) else 0
                # Pings and empty messages count, too: each is work, and a client may send nothing else.
                await self.transport.account.took(taken)
                if isinstance(event, BytesMessage | TextMessage):
                    payload = event.data.encode() if isinstance(event, TextMessage) else bytes(event.data)
                    parts.append(Part(payload, first=self._at_start, last=event.message_finished))
                    self._at_start = event.message_finished
                elif isinstance(event, Ping):
                    with suppress(LocalProtocolError):  # we have said that we close
                        await self.transport.send(self._connection.send(event.response()))
                elif isinstance(event, CloseConnection):
                    self._ended = True
                    await self._answer_close(event)
                    break
                if len(parts) == PARTS_AT_A_TIME:
                    self._more = True
                    break
        return parts

    async def _answer_close(self, event: CloseConnection) -> None:
        self._closed = True
        await self._say_last(event.response())

    async def _say_last(self, close: CloseConnection) -> None:
        with suppress(ClientGone, LocalProtocolError, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self.transport.send(self._connection.send(close))

    async def send(self, data: bytes) -> None:
        """Send a binary message.

        :raises ClientGone: if the client is not there any more.
        """
        await self._send(BytesMessage(data=data))

    async def send_text(self, text: str) -> None:
        await self._send(TextMessage(data=text))

    async def _send(self, message: BytesMessage | TextMessage) -> None:
        if self._closed:
            raise ClientGone("the client closed the connection")
        try:
            frame = self._connection.send(message)
        except LocalProtocolError as error:
            raise ClientGone(f"the client closed the connection: {error}") from error
        await self.transport.send(frame)

    async def close(self) -> None:
        """End the connection in good order; nobody may be in :meth:`receive`."""
        if not self._closed:
            self._closed = True
            await self._say_last(CloseConnection(code=CloseReason.NORMAL_CLOSURE))
        await self.transport.close()


class Protocol(FrozenStruct):
    """A version of the channel protocol."""

    name: str
    base64: bool = False
    json_status: bool = False
    """Whether the error channel carries a status as JSON."""
    signals_end: bool = False


class ChannelConnection:
    """A WebSocket connection as numbered channels: those in ``inputs`` are read, the others only written."""

    def __init__(self, socket: WebSocket, protocol: Protocol, inputs: tuple[int, ...]) -> None:
        self._socket, self._protocol = socket, protocol
        self.inboxes: Mapping[int, Inbox] = {number: Inbox(socket.transport.account) for number in inputs}
        self._text = b""
        self._channel = -1

    async def run(self) -> None:
        """Read and dispatch until the client leaves; then every reader is told.

        :raises InvalidArgument: if the client broke the protocol.
        """
        try:
            take = self._take_text if self._protocol.base64 else self._take
            while parts := await self._socket.receive():
                for part in parts:
                    await take(part)
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
        # The other channels are the server's: what a client sends there is dropped.
        elif number in self.inboxes:
            await self.inboxes[number].put(data)
        if part.last:
            self._channel = -1

    async def _take_text(self, part: Part) -> None:
        """Decode as much as is there: groups of four characters stand for themselves."""
        text, self._text = self._text + part.data, b""
        if self._channel < 0:
            if not text:
                return
            self._channel, text = text[0] - ord("0"), text[1:]
        # Padding may only be in the last group, so one is held back.
        whole = len(text) if part.last else max(len(text) - 1, 0) // 4 * 4
        text, self._text = text[:whole], text[whole:]
        number = self._channel
        if part.last:
            self._channel = -1
        elif b"=" in text:
            raise InvalidArgument("WebSocket: a message that is not base64: it goes on after its end")
        if number in self.inboxes:
            try:
                data = base64.b64decode(text, validate=True)
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


class ChannelSink(FrozenStruct):
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

    @property
    def account(self) -> Account:
        return self._socket.transport.account

    async def receive(self) -> bytes:
        while parts := await self._socket.receive():
            # An empty message is no end of the stream, which no bytes would mean.
            if data := b"".join(part.data for part in parts):
                return data
        return b""

    async def send(self, data: bytes) -> None:
        await self._socket.send(data)

    async def close(self) -> None:
        await self._socket.close()
