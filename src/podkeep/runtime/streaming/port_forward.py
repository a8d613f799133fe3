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
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from podkeep.base.concurrency.tasks import Tasks, ungrouped
from podkeep.base.errors import InvalidArgument, PodkeepError, ResourceExhausted, reason_of
from podkeep.base.frozen import FrozenStruct
from podkeep.http.budget import Account, ClientGone
from podkeep.http.spdy_connection import SpdyConnection, SpdyStream
from podkeep.http.streams import Sink, Source
from podkeep.http.transport import Transport
from podkeep.http.websocket import ChannelConnection, ChannelSink, Protocol, WebSocket
from podkeep.runtime.streaming.descriptor import Descriptor
from podkeep.runtime.streaming.remote_command import reading

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

FORWARDS_OF_POD = 512
"""Forwarded connections of one pod, over all of its clients' connections: each takes two descriptors of the daemon."""
MAX_PAIRS = 256
"""Connections that a client may have, or be about to have, over one of its own."""
MAX_PORTS = 127
"""Ports of a request: over WebSocket each takes two of the numbers of a byte, and one is the close signal's."""

Connect = Callable[[int], Coroutine[Any, Any, socket.socket]]
"""Connects to a port of the pod."""


class ForwardRequest(FrozenStruct, kw_only=True):
    """A session that waits for its client. ``ports``: those of the request, which only WebSocket channels need."""

    pod: str
    connect: Connect
    ports: tuple[int, ...] = ()
    size: int = 0
    """What is kept until its client comes, in bytes."""


async def serve_spdy(transport: Transport, request: ForwardRequest, forwards: Counter[str]) -> None:
    """Serve a client over SPDY until it leaves. ``forwards``: the connections of each pod, counted here."""
    async with Tasks("a forwarded connection") as tasks:
        forwarder = _Forwarder(request, transport.account, forwards, tasks)
        try:
            await SpdyConnection(transport, forwarder).run()
        finally:
            forwarder.close()


async def serve_channels(transport: Transport, protocol: str, request: ForwardRequest, forwards: Counter[str]) -> None:
    """Serve a client over WebSocket channels until all connections have ended, or it leaves.

    :param forwards: the connections of each pod, counted here.
    :raises ResourceExhausted: if the pod has too many forwarded connections.
    """
    with _counted(forwards, request):
        await _serve_channels(transport, protocol, request)


@contextmanager
def _counted(forwards: Counter[str], request: ForwardRequest) -> Iterator[None]:
    """Count the connections of a request that names its ports."""
    if forwards[request.pod] + len(request.ports) > FORWARDS_OF_POD:
        raise ResourceExhausted(f"pod sandbox {request.pod} has {forwards[request.pod]} forwarded connections")
    forwards[request.pod] += len(request.ports)
    try:
        yield
    finally:
        _uncount(forwards, request.pod, len(request.ports))


def _uncount(forwards: Counter[str], pod: str, number: int) -> None:
    forwards[pod] -= number
    if not forwards[pod]:
        del forwards[pod]


async def _serve_channels(transport: Transport, protocol: str, request: ForwardRequest) -> None:
    inputs = tuple(range(0, 2 * len(request.ports), 2))
    connection = ChannelConnection(WebSocket(transport), CHANNEL_PROTOCOLS[protocol], inputs)
    async with reading(connection.run()) as gone:
        for index, port in enumerate(request.ports):
            # The first message of a channel is its port.
            for number in (2 * index, 2 * index + 1):
                await connection.send(number, port.to_bytes(2, "little"))
        async with Tasks("a forwarded connection") as tasks:
            left = tasks.start(_set(gone))
            forwarding = [
                tasks.start(
                    _forward(
                        request,
                        port,
                        Pair(
                            data_in=connection.inboxes[2 * index],
                            data_out=ChannelSink(connection, 2 * index),
                            errors=ChannelSink(connection, 2 * index + 1),
                            given_up=gone,
                            outputs=transport.account.outputs,
                            has_ends=False,
                        ),
                    )
                )
                for index, port in enumerate(request.ports)
            ]
            while forwarding and not left.done():
                await asyncio.wait([left, *forwarding], return_when=asyncio.FIRST_COMPLETED)
                forwarding = [task for task in forwarding if not task.done()]
    await connection.close()


async def _set(event: asyncio.Event) -> None:
    await event.wait()


class Pair(FrozenStruct, kw_only=True):
    """The client's side of one connection: its data, and where errors are told.

    ``given_up``: set when the client does not want it any more. ``outputs``: held while a portion of what the pod says
    is read and sent, as many connections share one that may be slow. ``has_ends``: whether one direction can be ended
    alone; with WebSocket channels it cannot.
    """

    data_in: Source
    data_out: Sink
    errors: Sink
    given_up: asyncio.Event
    outputs: asyncio.Semaphore
    has_ends: bool = True


@dataclass
class _Half:
    """Streams of a pair that is not complete."""

    port: int
    timer: asyncio.TimerHandle = field(repr=False)
    streams: dict[str, SpdyStream] = field(default_factory=dict)


class _Forwarder:
    """The pairs of one connection."""

    def __init__(self, request: ForwardRequest, account: Account, forwards: Counter[str], tasks: Tasks) -> None:
        self._request, self._account, self._forwards, self._tasks = request, account, forwards, tasks
        self._halves: dict[str, _Half] = {}

    def accept(self, stream: SpdyStream) -> bool:
        """Take a stream into its pair; the pair that is complete with it is served."""
        try:
            port = parse_port(stream.headers.get("port", ""))
        except InvalidArgument as error:
            log.debug("port-forward to sandbox %s: a stream is refused: %s", self._request.pod, error)
            return False
        kind = stream.headers.get("streamtype", "")
        if kind not in {"data", "error"}:
            return False
        key = _pair_of(stream)
        half = self._halves.get(key)
        if half is None:
            # Also those count whose streams are gone and which have not come to their end.
            pod = self._request.pod
            if len(self._halves) + len(self._tasks) >= MAX_PAIRS or self._forwards[pod] >= FORWARDS_OF_POD:
                return False
            self._forwards[pod] += 1
            timer = asyncio.get_running_loop().call_later(PAIR_TIMEOUT_S, self._give_up, key)
            half = self._halves[key] = _Half(port, timer)
        if kind in half.streams or half.port != port:
            return False
        half.streams[kind] = stream
        if len(half.streams) == 2:
            self._forget(key)
            serving = self._tasks.start(self._serve(port, half.streams["data"], half.streams["error"]))
            # Not in the task: one that is cancelled before it begins runs nothing.
            serving.add_done_callback(lambda _: self._uncount())
        return True

    def dropped(self, stream: SpdyStream) -> None:
        """Forget half a pair; what is served ends by itself."""
        key = _pair_of(stream)
        half = self._halves.get(key)
        if half is not None and stream in half.streams.values():
            self._forget(key)
            self._uncount()
            for other in half.streams.values():
                if other is not stream:
                    self._tasks.start(_end(other, "the other stream of this pair was reset"))

    def close(self) -> None:
        """Give up the pairs of which one stream alone has come."""
        for key in list(self._halves):
            self._forget(key)
            self._uncount()

    def _forget(self, key: str) -> _Half:
        half = self._halves.pop(key)
        half.timer.cancel()
        return half

    def _uncount(self) -> None:
        _uncount(self._forwards, self._request.pod, 1)

    def _give_up(self, key: str) -> None:
        self._uncount()
        for stream in self._forget(key).streams.values():
            self._tasks.start(_end(stream, "the pair of this stream did not come in time"))

    async def _serve(self, port: int, data: SpdyStream, error: SpdyStream) -> None:
        # Nobody reads what a client writes to the error stream.
        error.discard()
        pair = Pair(
            data_in=data,
            data_out=data,
            errors=error,
            given_up=data.reset_by_client,
            outputs=self._account.outputs,
        )
        try:
            await _forward(self._request, port, pair)
        finally:
            data.forget()
            error.forget()


async def _end(stream: SpdyStream, message: str) -> None:
    try:
        if stream.headers.get("streamtype") == "error":
            await stream.send(message.encode())
        await stream.end()
    except ClientGone:
        pass
    finally:
        stream.forget()


async def _forward(request: ForwardRequest, port: int, pair: Pair) -> None:
    """Connect to a port, pass bytes both ways until both sides have ended, and say what went wrong."""
    try:
        try:
            sock = await _connect(request, port, pair.given_up)
            if sock is not None:
                await _pass(sock, pair)
        except ClientGone:
            raise
        except (PodkeepError, OSError) as error:
            message = f"error forwarding port {port} to pod {request.pod}: {reason_of(error)}"
            log.debug("%s", message)
            await pair.errors.send(message.encode())
        await pair.data_out.end()
    except ClientGone:
        pass  # of this connection only: others go on
    # Also for a client that has enough of the data: kubectl resets that stream when the pod has closed the connection,
    # and keeps its own side open until the error stream ends (k8s.io/client-go, tools/portforward).
    with suppress(ClientGone):
        await pair.errors.end()


async def _connect(request: ForwardRequest, port: int, given_up: asyncio.Event) -> socket.socket | None:
    """Connect, unless the client gives up first: a pod may let us wait, and a client ask again and again."""
    made: list[socket.socket] = []

    async def connect_or_give_up() -> None:
        async def connect() -> None:
            made.append(await request.connect(port))

        async with asyncio.TaskGroup() as group:
            both = group.create_task(given_up.wait()), group.create_task(connect())
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in both:
                task.cancel()

    try:
        await ungrouped(connect_or_give_up())
    except BaseException:
        for sock in made:
            sock.close()
        raise
    return next(iter(made), None)


async def _pass(sock: socket.socket, pair: Pair) -> None:
    async def pass_both() -> None:
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(_to_pod(pair.data_in, descriptor, sock))
            await _from_pod(descriptor, pair)
            if not pair.has_ends:
                # The client cannot learn that the pod has said everything but from the end of the whole connection.
                sending.cancel()

    with sock, closing(Descriptor(os.dup(sock.fileno()))) as descriptor:
        await ungrouped(pass_both())


async def _to_pod(source: Source, target: Descriptor, sock: socket.socket) -> None:
    try:
        while data := await source.receive():
            await target.write(data)
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        source.discard()  # the pod's side ended; that is seen by reading


async def _from_pod(source: Descriptor, pair: Pair) -> None:
    while True:
        async with pair.outputs:
            data = await source.read_now()
            if data:
                await pair.data_out.send(data)
        if data is None:
            await source.readable()
        elif not data:
            break
    await pair.data_out.end()


def parse_port(text: str) -> int:
    """Return a port number.

    :raises InvalidArgument: if it is none.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 1 << 16):
        raise InvalidArgument(f"{text[:20]!r} is no port", hint="use 1 to 65535")
    return int(text)


def _pair_of(stream: SpdyStream) -> str:
    """Return a pair's name; clients that give none open the error stream, and then the data stream."""
    if name := stream.headers.get("requestid", ""):
        return f"request {name}"
    return f"stream {stream.stream_id if stream.headers.get('streamtype') == 'error' else stream.stream_id - 2}"
