"""The client's side of CRI's streams: commands over WebSocket (v5.channel.k8s.io), ports over SPDY/3.1.

Owns: what is said on a connection to the URL that a runtime answered with. Does not own: that connection
(``http/client.py``), terminals and files of this process (``terminal.py``) or verbs. It speaks to any CRI runtime. Each
forwarded connection has a SPDY connection of its own, so that none waits for another.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import suppress

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping

from podkeep.base.errors import Internal, Unavailable
from podkeep.http import spdy
from podkeep.http.client import Upgraded, upgrade
from podkeep.http.websocket import CLOSE_SIGNAL, ERROR, MESSAGE_BYTES, RESIZE, STDERR, STDIN, STDOUT

COMMAND_PROTOCOL = "v5.channel.k8s.io"
FORWARD_PROTOCOL = "portforward.k8s.io"
_SERVER = "the runtime's streaming server"
_LAST_WORDS = 1024
_LOST = (
    "the runtime has ended (`podkeep status`), or nothing passed for streaming.idle_timeout; what was started may still"
    " run in the container: look before you start it again"
)


class CommandClient:
    """A client of Exec or Attach."""

    def __init__(self, connection: Upgraded) -> None:
        self._connection = connection
        self._frames = Connection(ConnectionType.CLIENT)
        self._status = b""
        self.last_words = b""
        """The end of what came last."""

    @classmethod
    async def connect(cls, url: str, certificate: str = "", protocol: str = COMMAND_PROTOCOL) -> CommandClient:
        """Connect; the session begins.

        :raises Unavailable: if that is not possible.
        """
        headers = {
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": base64.b64encode(os.urandom(16)).decode(),
            "sec-websocket-protocol": protocol,
        }
        return cls(await upgrade(url, "GET", headers, certificate, name=_SERVER))

    async def send_input(self, data: bytes) -> None:
        for start in range(0, len(data), MESSAGE_BYTES):
            await self._send(bytes((STDIN,)) + data[start : start + MESSAGE_BYTES])

    async def end_input(self) -> None:
        await self._send(bytes((CLOSE_SIGNAL, STDIN)))

    async def resize(self, width: int, height: int) -> None:
        """Say how large the terminal is, in characters."""
        # With capitals: Go's remotecommand.TerminalSize has no JSON tags.
        await self._send(bytes((RESIZE,)) + json.dumps({"Width": width, "Height": height}).encode() + b"\n")

    async def _send(self, message: bytes) -> None:
        await self._connection.send(self._frames.send(BytesMessage(data=message)))

    async def outputs(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield what comes, with its channel (STDOUT, STDERR), until the session ends."""
        channel = -1
        while data := await self._connection.receive():
            self._frames.receive_data(data)
            for event in self._frames.events():
                if isinstance(event, BytesMessage):
                    payload = bytes(event.data)
                    # A message may come in several frames, and only the first one begins with the channel.
                    if channel < 0 and payload:
                        channel, payload = payload[0], payload[1:]
                    if channel == ERROR:
                        self._status += payload
                    elif channel in {STDOUT, STDERR} and payload:
                        self.last_words = (self.last_words + payload)[-_LAST_WORDS:]
                        yield channel, payload
                    if event.message_finished:
                        channel = -1
                elif isinstance(event, Ping):
                    await self._connection.send(self._frames.send(event.response()))
                elif isinstance(event, CloseConnection):
                    with suppress(Unavailable):
                        await self._connection.send(self._frames.send(event.response()))
                    return

    def exit_code(self) -> int:
        """Return the command's exit code, once :meth:`outputs` has ended.

        :raises Internal: with the runtime's words, if the session failed.
        :raises Unavailable: if the connection ended without a status.
        """
        return exit_code(self._status)

    async def close(self) -> None:
        """Close the connection; a command that still runs is killed."""
        await self._connection.close()


def exit_code(status: bytes) -> int:
    """Return the exit code in a ``v1.Status``.

    :raises Internal: with the runtime's words, if it says that the session failed.
    :raises Unavailable: if there is none.
    """
    if not status:
        raise Unavailable("the runtime closed the connection without a status", hint=_LOST)
    try:
        message = json.loads(status)
        if message["status"] == "Success":
            return 0
        if message.get("reason") == "NonZeroExitCode":
            causes = message["details"]["causes"]
            return int(next(cause["message"] for cause in causes if cause.get("reason") == "ExitCode"))
        words = str(message["message"])
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise Internal(f"the runtime sent a status that cannot be read: {status[:200]!r}") from error
    raise Internal(words)


class ForwardClient:
    """One connection to one port of a pod."""

    _ERROR_STREAM, _DATA_STREAM = 1, 3

    def __init__(self, connection: Upgraded) -> None:
        self._connection = connection
        self._encoder, self._decoder = spdy.Encoder(), spdy.Decoder()
        self._words = b""

    @classmethod
    async def connect(cls, url: str, port: int, certificate: str = "") -> ForwardClient:
        """Connect and ask for ``port``.

        :raises Unavailable: if that is not possible; that nothing listens on the port is said later.
        """
        headers = {"upgrade": "SPDY/3.1", "x-stream-protocol-version": FORWARD_PROTOCOL}
        client = cls(await upgrade(url, "POST", headers, certificate, name=_SERVER))
        for number, kind in ((cls._ERROR_STREAM, "error"), (cls._DATA_STREAM, "data")):
            fields = {"streamtype": kind, "port": str(port), "requestid": "0"}
            await client._send(spdy.SynStream(stream_id=number, headers=fields))
        # As kubectl: only the server writes to the error stream, and may wait for the end of this side.
        await client._send(spdy.Data(stream_id=cls._ERROR_STREAM, data=b"", fin=True))
        return client

    async def send(self, data: bytes) -> None:
        await self._send(spdy.Data(stream_id=self._DATA_STREAM, data=data))

    async def end(self) -> None:
        await self._send(spdy.Data(stream_id=self._DATA_STREAM, data=b"", fin=True))

    async def _send(self, frame: spdy.Frame) -> None:
        await self._connection.send(self._encoder.encode(frame))

    async def received(self) -> AsyncIterator[bytes]:
        """Yield what comes from the pod, and nothing (``b""``) when it has ended its side, until all is said.

        :raises Unavailable: with the runtime's words, if it could not connect.
        """
        ended: set[int] = set()
        while len(ended) < 2 and (data := await self._connection.receive()):
            for frame in self._decoder.feed(data):
                if isinstance(frame, spdy.Data):
                    if frame.stream_id == self._ERROR_STREAM:
                        self._words += frame.data
                    elif frame.data:
                        yield frame.data
                    if frame.fin:
                        ended.add(frame.stream_id)
                        if frame.stream_id == self._DATA_STREAM:
                            yield b""
                elif isinstance(frame, spdy.RstStream):
                    ended.add(frame.stream_id)
                # Even IDs are the server's; an odd one would be the answer to a ping of this side (SPDY/3.1, PING).
                elif isinstance(frame, spdy.Ping) and frame.ping_id % 2 == 0:
                    await self._send(frame)
        if self._words:
            raise Unavailable(self._words.decode(errors="replace"))

    async def close(self) -> None:
        await self._connection.close()
