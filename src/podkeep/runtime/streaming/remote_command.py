"""A client of Exec or Attach, over SPDY or WebSocket, as the streams of a command.

Owns: which streams a client opens in which version of the protocol, and what it is told at the end. Does not own: what
runs behind them (``exec.py``, ``attach.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.http.budget import ClientGone
from podkeep.http.spdy_connection import SpdyConnection, SpdyStream
from podkeep.http.streams import Sink
from podkeep.http.transport import Transport
from podkeep.http.websocket import (
    ERROR,
    RESIZE,
    STDERR,
    STDIN,
    STDOUT,
    ChannelConnection,
    ChannelSink,
    Protocol,
    WebSocket,
)
from podkeep.runtime.streaming import status
from podkeep.runtime.streaming.command_streams import CommandStreams

log = logging.getLogger(__name__)

STREAM_TIMEOUT_S = 30.0
"""How long a client may take to open its streams."""
SPDY_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
"""Version 5 differs from 4 over WebSocket only."""
WEBSOCKET_PROTOCOLS = {
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
_JSON_STATUS = frozenset(SPDY_PROTOCOLS[:2])
_RESIZING = frozenset(SPDY_PROTOCOLS[:3])
STREAM_TYPES = frozenset({"error", "stdin", "stdout", "stderr", "resize"})

Session = Callable[[CommandStreams], Awaitable[bytes]]
"""What runs: it returns the status to end with."""


class CommandRequest(FrozenStruct, kw_only=True):
    """A session that waits for its client, and the streams it was asked for.

    ``pod`` is whose it is; ``size`` the bytes that are kept until its client comes.
    """

    session: Session
    pod: str
    size: int = 0
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


class _Arrivals:
    """The streams that a client opens, each type once: what else it opens is refused."""

    def __init__(self, protocol: str, request: CommandRequest) -> None:
        self.found: dict[str, SpdyStream] = {}
        self.complete = asyncio.Event()
        """Set when all that is needed is there."""
        self.wanted = {"error", *(name for name in ("stdin", "stdout", "stderr") if getattr(request, name))}
        if request.tty and protocol in _RESIZING:
            self.wanted.add("resize")

    def accept(self, stream: SpdyStream) -> bool:
        kind = stream.headers.get("streamtype", "")
        if kind not in STREAM_TYPES or kind in self.found:
            return False
        self.found[kind] = stream
        if kind not in self.wanted:
            stream.discard()
        if not self.missing():
            self.complete.set()
        return True

    def dropped(self, stream: SpdyStream) -> None:
        """See :class:`Streams`. Its type is used up, and who reads or writes it learns of the end."""

    def missing(self) -> set[str]:
        return self.wanted - self.found.keys()


async def serve_spdy(transport: Transport, protocol: str, request: CommandRequest) -> None:
    """Serve a client over SPDY to the end of its session.

    :raises ClientGone: if it left.
    """
    arrivals = _Arrivals(protocol, request)
    connection = SpdyConnection(transport, arrivals)
    async with reading(connection.run()) as gone:
        streams = await _wait_for_streams(arrivals, gone, protocol, request)
        await _run(request.session, streams)
    for stream in (streams.stdin, streams.resize):
        if isinstance(stream, SpdyStream):
            await stream.end()
    await connection.close()


async def _wait_for_streams(
    arrivals: _Arrivals, gone: asyncio.Event, protocol: str, request: CommandRequest
) -> CommandStreams:
    try:
        async with asyncio.timeout(STREAM_TIMEOUT_S):
            await _either(arrivals.complete, gone)
    except TimeoutError as error:
        raise ClientGone(f"the client did not open {', '.join(sorted(arrivals.missing()))} in time") from error
    if arrivals.missing():
        raise ClientGone("the client left before it opened its streams")
    found = arrivals.found
    return CommandStreams(
        status=found["error"],
        gone=gone,
        stdin=found["stdin"] if request.stdin else None,
        stdout=found["stdout"] if request.stdout else None,
        stderr=found["stderr"] if request.stderr else None,
        resize=found["resize"] if "resize" in arrivals.wanted else None,
        json_status=protocol in _JSON_STATUS,
    )


async def _either(first: asyncio.Event, second: asyncio.Event) -> None:
    async with Tasks("waiting for streams") as tasks:
        waiting = [tasks.start(_set(event)) for event in (first, second)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def serve_websocket(transport: Transport, protocol: str, request: CommandRequest) -> None:
    """Serve a client over WebSocket to the end of its session.

    :raises ClientGone: if it left.
    """
    version = WEBSOCKET_PROTOCOLS[protocol]
    connection = ChannelConnection(WebSocket(transport), version, (STDIN, RESIZE))

    def sink(wanted: bool, number: int) -> Sink | None:
        return ChannelSink(connection, number) if wanted else None

    gone = asyncio.Event()
    streams = CommandStreams(
        status=ChannelSink(connection, ERROR),
        gone=gone,
        stdin=connection.inboxes[STDIN] if request.stdin else None,
        stdout=sink(request.stdout, STDOUT),
        stderr=sink(request.stderr, STDERR),
        resize=connection.inboxes[RESIZE] if request.tty else None,
        json_status=version.json_status,
    )
    for number, used in ((STDIN, streams.stdin), (RESIZE, streams.resize)):
        if used is None:
            connection.inboxes[number].discard()
    # Clients take the first message, which is empty, as the sign that the session is there.
    await connection.send(STDOUT if request.stdout else STDERR if request.stderr else ERROR, b"")
    async with reading(connection.run(), gone):
        await _run(request.session, streams)
    await connection.close()


@asynccontextmanager
async def reading(work: Coroutine[Any, Any, None], gone: asyncio.Event | None = None) -> AsyncIterator[asyncio.Event]:
    """Read a client in the background; the event is set when it has left or broken the protocol."""
    gone = gone or asyncio.Event()
    async with Tasks("reading a streaming client") as tasks:
        tasks.start(_read(work, gone))
        yield gone


async def _read(work: Coroutine[Any, Any, None], gone: asyncio.Event) -> None:
    try:
        await work
    except ClientGone:
        pass
    except InvalidArgument as error:
        log.debug("a client broke the protocol: %s", error)
    finally:
        gone.set()


async def _run(session: Session, streams: CommandStreams) -> None:
    """Run a session, and tell the client how it ended."""
    try:
        end = await session(streams)
    except ClientGone:
        raise
    except PodkeepError as error:
        end = status.failure(str(error))
    for stream in (streams.stdout, streams.stderr):
        if stream is not None:
            await stream.end()
    if not streams.json_status:
        end = status.plain(end)
    await streams.status.send(end)
    await streams.status.end()
