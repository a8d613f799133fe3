"""The session of PortForward: a client's streams, tied to connections inside a pod's network namespace.

A client asks for a connection with a pair of streams, data and error; many pairs share one SPDY connection, directly or
through a WebSocket. Over WebSocket channels there is one pair per port of the request. What goes wrong is a text in the
error stream.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.runtime.streaming.channels import ClientGone, Sink, Source
from podkeep.runtime.streaming.descriptor import Descriptor
from podkeep.runtime.streaming.spdy_connection import SpdyConnection, SpdyStream
from podkeep.runtime.streaming.transport import Transport
from podkeep.runtime.streaming.websocket import ChannelConnection, ChannelSink, Protocol, WebSocket

log = logging.getLogger(__name__)

PROTOCOL = "portforward.k8s.io"
CHANNEL_PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("v4.channel.k8s.io"),
        Protocol("v4.base64.channel.k8s.io", base64=True),
        Protocol(""),
    )
}
PAIR_TIMEOUT_S = 30.0
"""How long the second stream of a pair may come after the first."""

Connect = Callable[[int], Awaitable[socket.socket]]
"""Connects to a port of the pod."""


@dataclass(frozen=True, kw_only=True)
class ForwardRequest:
    """A session that waits for its client. ``ports``: those of the request, which only WebSocket channels need."""

    sandbox: str
    connect: Connect
    ports: tuple[int, ...] = ()


async def serve_spdy(transport: Transport, request: ForwardRequest) -> None:
    """Serve a client over SPDY until it leaves."""
    await _Forwarder(transport, request).run()


async def serve_channels(transport: Transport, protocol: str, request: ForwardRequest) -> None:
    """Serve a client over WebSocket channels until all connections have ended, or it leaves."""
    inputs = tuple(range(0, 2 * len(request.ports), 2))
    connection = ChannelConnection(WebSocket(transport), CHANNEL_PROTOCOLS[protocol], inputs)
    reading = asyncio.ensure_future(connection.run())
    try:
        for index, port in enumerate(request.ports):
            # The first message of a channel is its port.
            for number in (2 * index, 2 * index + 1):
                await connection.send(number, port.to_bytes(2, "little"))
        forwarding = asyncio.gather(
            *(
                _forward(
                    request,
                    port,
                    data_in=connection.inboxes[2 * index],
                    data_out=ChannelSink(connection, 2 * index),
                    errors=ChannelSink(connection, 2 * index + 1),
                )
                for index, port in enumerate(request.ports)
            )
        )
        try:
            ends: set[asyncio.Future[Any]] = {forwarding, reading}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await connection.close()


@dataclass
class _Pair:
    port: int
    data: SpdyStream | None = None
    error: SpdyStream | None = None
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)


class _Forwarder:
    """The pairs of one connection."""

    def __init__(self, transport: Transport, request: ForwardRequest) -> None:
        self._request = request
        self._connection = SpdyConnection(transport, self._accept)
        self._pairs: dict[str, _Pair] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            await self._connection.run()
        finally:
            for pair in self._pairs.values():
                if pair.timer is not None:
                    pair.timer.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, stream: SpdyStream) -> bool:
        """Take a stream into its pair; the pair that is complete with it is served."""
        try:
            port = parse_port(stream.headers.get("port", ""))
        except InvalidArgument as error:
            log.info("port-forward to sandbox %s: a stream is refused: %s", self._request.sandbox, error)
            return False
        kind = stream.headers.get("streamtype", "")
        if kind not in {"data", "error"}:
            return False
        key = stream.headers.get("requestid", "") or _pair_of_old_client(kind, stream.stream_id)
        pair = self._pairs.setdefault(key, _Pair(port))
        if getattr(pair, kind) is not None or pair.port != port:
            return False
        setattr(pair, kind, stream)
        if pair.timer is None:
            pair.timer = asyncio.get_running_loop().call_later(PAIR_TIMEOUT_S, self._give_up, key)
        if pair.data is not None and pair.error is not None:
            pair.timer.cancel()
            del self._pairs[key]
            self._spawn(self._serve(port, pair.data, pair.error))
        return True

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _give_up(self, key: str) -> None:
        pair = self._pairs.pop(key)
        for stream in filter(None, (pair.data, pair.error)):
            self._spawn(_end(stream, "" if stream is pair.data else "the pair of this stream did not come in time"))

    async def _serve(self, port: int, data: SpdyStream, error: SpdyStream) -> None:
        error.discard()
        try:
            await _forward(self._request, port, data_in=data, data_out=data, errors=error)
        finally:
            data.forget()
            error.forget()


async def _end(stream: SpdyStream, message: str) -> None:
    try:
        await stream.send(message.encode())
        await stream.end()
    except ClientGone:
        pass
    finally:
        stream.forget()


async def _forward(request: ForwardRequest, port: int, *, data_in: Source, data_out: Sink, errors: Sink) -> None:
    """Connect to a port, pass bytes both ways until both sides have ended, and say what went wrong."""
    try:
        try:
            await _pass(await request.connect(port), data_in, data_out)
        except ClientGone:
            raise
        except (PodkeepError, OSError) as error:
            why = error.message if isinstance(error, PodkeepError) else str(error)
            message = f"error forwarding port {port} to pod {request.sandbox}: {why}"
            log.info("%s", message)
            await errors.send(message.encode())
        await data_out.end()
    except ClientGone:
        pass  # of this connection only: others go on
    # Also for a client that has enough of the data: kubectl resets that stream when the pod has closed the connection,
    # and keeps its own side open until the error stream ends (k8s.io/client-go, tools/portforward).
    with suppress(ClientGone):
        await errors.end()


async def _pass(sock: socket.socket, data_in: Source, data_out: Sink) -> None:
    descriptor = Descriptor(os.dup(sock.fileno()))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_to_pod(data_in, descriptor, sock))
            group.create_task(_from_pod(descriptor, data_out))
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    finally:
        descriptor.close()
        sock.close()


async def _to_pod(source: Source, target: Descriptor, sock: socket.socket) -> None:
    try:
        while data := await source.receive():
            await target.write(data)
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        source.discard()  # the pod's side ended; that is seen by reading


async def _from_pod(source: Descriptor, sink: Sink) -> None:
    while data := await source.read():
        await sink.send(data)
    await sink.end()


def parse_port(text: str) -> int:
    """Return a port number.

    :raises InvalidArgument: if it is none.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 1 << 16):
        raise InvalidArgument(f"{text[:20]!r} is no port", hint="use 1 to 65535")
    return int(text)


def _pair_of_old_client(kind: str, stream_id: int) -> str:
    """Return a pair's name for clients that give none: they open the error stream, and then the data stream."""
    return f"stream {stream_id if kind == 'error' else stream_id - 2}"
