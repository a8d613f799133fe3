"""Clients of CRI's streams, for tests: commands over SPDY and WebSocket behind one interface, and pairs of ports.

The WebSocket client is that of the command line; the SPDY client is written here, as a client of Kubernetes would be,
with every version of the protocol.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from typing import Any, Literal, TypeAlias

from podkeep.base.errors import Unavailable
from podkeep.cli.pods.stream_client import CommandClient, ForwardClient, exit_code
from podkeep.cri.v1 import api_pb2 as api
from podkeep.http import spdy
from podkeep.http.client import Upgraded, upgrade
from podkeep.http.websocket import STDERR, STDOUT
from support.cri import Pods
from support.waiting import TIMEOUT_S

Transport: TypeAlias = Literal["spdy", "websocket"]
TRANSPORTS: tuple[Transport, ...] = ("spdy", "websocket")
LINES = 'trap : INT; echo ready; while read -r line; do eval "$line"; done'
"""A shell script that does what it reads. busybox's own prompt asks the terminal for the cursor's place, and takes what
comes next for the answer."""
_CHANNELS = {"stdout": STDOUT, "stderr": STDERR}


class SpdyCommand:
    """The interface of ``CommandClient`` over SPDY."""

    def __init__(self, connection: Upgraded, streams: tuple[str, ...]) -> None:
        self.connection = connection
        self.protocol = connection.headers.get("x-stream-protocol-version", "")
        self.status = b""
        self._encoder, self._decoder = spdy.Encoder(), spdy.Decoder()
        self._names = {2 * index + 1: name for index, name in enumerate(streams)}
        self._numbers = {name: number for number, name in self._names.items()}

    @classmethod
    async def connect(cls, url: str, streams: tuple[str, ...], protocol: str = "v4.channel.k8s.io") -> SpdyCommand:
        headers = {"upgrade": "SPDY/3.1"} | ({"x-stream-protocol-version": protocol} if protocol else {})
        command = cls(await upgrade(url, "POST", headers), ("error", *streams))
        for number, name in command._names.items():
            await command.send(spdy.SynStream(stream_id=number, headers={"streamtype": name}))
        return command

    async def send(self, frame: spdy.Frame) -> None:
        await self.connection.send(self._encoder.encode(frame))

    async def send_input(self, data: bytes) -> None:
        for start in range(0, len(data), 32768):
            await self.send(spdy.Data(stream_id=self._numbers["stdin"], data=data[start : start + 32768]))

    async def end_input(self) -> None:
        await self.send(spdy.Data(stream_id=self._numbers["stdin"], data=b"", fin=True))

    async def resize(self, width: int, height: int) -> None:
        data = json.dumps({"Width": width, "Height": height}).encode() + b"\n"
        await self.send(spdy.Data(stream_id=self._numbers["resize"], data=data))

    async def frames(self) -> AsyncIterator[spdy.Frame]:
        while data := await self.connection.receive():
            for frame in self._decoder.feed(data):
                yield frame

    async def outputs(self) -> AsyncIterator[tuple[int, bytes]]:
        async for frame in self.frames():
            if isinstance(frame, spdy.Data):
                name = self._names[frame.stream_id]
                if name == "error":
                    self.status += frame.data
                elif frame.data:
                    yield _CHANNELS[name], frame.data

    def exit_code(self) -> int:
        return exit_code(self.status)

    async def close(self) -> None:
        await self.connection.close()


Command: TypeAlias = SpdyCommand | CommandClient


def exec_url(pods: Pods, container: str, *command: str, stdin: bool = False, tty: bool = False) -> str:
    """Return the URL of a command."""
    request = api.ExecRequest(container_id=container, cmd=command, stdin=stdin, stdout=True, stderr=not tty, tty=tty)
    return str(pods.call("Exec", request).url)


async def connect(transport: Transport, url: str, *, stdin: bool = False, tty: bool = False) -> Command:
    """Connect to the URL of a command that was asked for with these streams."""
    async with asyncio.timeout(TIMEOUT_S):
        if transport == "websocket":
            return await CommandClient.connect(url)
        streams = (*(("stdin",) if stdin else ()), "stdout", "resize" if tty else "stderr")
        return await SpdyCommand.connect(url, streams)


def abort(command: Command) -> None:
    """Vanish as a killed client does."""
    connection = command.connection if isinstance(command, SpdyCommand) else command._connection
    connection.writer.transport.abort()


async def collect(command: Command) -> tuple[bytes, bytes]:
    """Return both outputs of a command, read to its end."""
    found = {STDOUT: bytearray(), STDERR: bytearray()}
    async with asyncio.timeout(TIMEOUT_S):
        async for channel, data in command.outputs():
            found[channel] += data
    await command.close()
    return bytes(found[STDOUT]), bytes(found[STDERR])


async def converse(command: Command, data: bytes) -> tuple[bytes, bytes]:
    """Send input, end it, and return both outputs."""

    async def send() -> None:
        await command.send_input(data)
        await command.end_input()

    sending = asyncio.ensure_future(send())
    try:
        return await collect(command)
    finally:
        await asyncio.gather(sending, return_exceptions=True)


async def read_until(command: Command, wanted: bytes) -> bytes:
    """Return the output up to and with ``wanted``."""
    found = b""
    async with asyncio.timeout(TIMEOUT_S):
        async for _, data in command.outputs():
            found += data
            if wanted in found:
                return found
    raise AssertionError(f"{wanted!r} did not come in {found!r}")


async def forward_once(url: str, port: int, data: bytes) -> bytes:
    """Send data to a port over a SPDY connection, end our side, and return what came back."""
    client = await ForwardClient.connect(url, port)

    async def send() -> None:
        for start in range(0, len(data), 65536):
            await client.send(data[start : start + 65536])
        await client.end()

    sending = asyncio.ensure_future(send())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return b"".join([part async for part in client.received()])
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await client.close()


async def raw(url: str, head: bytes) -> bytes:
    """Send bytes to the server behind a URL and return all it answers."""
    host, _, port = url.split("/")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(head)
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await reader.read()
            except ConnectionResetError:
                return b""
    finally:
        writer.transport.abort()


def websocket_headers(protocol: str) -> dict[str, str]:
    """Return the headers of a WebSocket handshake."""
    return {
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": base64.b64encode(os.urandom(16)).decode(),
        "sec-websocket-protocol": protocol,
    }


async def refusal(awaitable: Any) -> str:
    """Return why the server refused."""
    try:
        await awaitable
    except Unavailable as error:
        return error.message
    raise AssertionError("the server did not refuse")
