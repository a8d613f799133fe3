"""A client of Exec or Attach, over SPDY or WebSocket, as the streams of a command.

Owns: which streams a client opens in which version of the protocol, and what it is told at the end. Does not own: what
runs behind them (``exec.py``, ``attach.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.runtime.streaming import status, websocket
from podkeep.runtime.streaming.channels import ClientGone, CommandStreams, Sink
from podkeep.runtime.streaming.spdy_connection import SpdyConnection, SpdyStream
from podkeep.runtime.streaming.transport import Transport
from podkeep.runtime.streaming.websocket import ChannelConnection, ChannelSink, WebSocket

log = logging.getLogger(__name__)

STREAM_TIMEOUT_S = 30.0
"""How long a client may take to open its streams."""
SPDY_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
"""Version 5 differs from 4 over WebSocket only."""
_JSON_STATUS = frozenset(SPDY_PROTOCOLS[:2])
_RESIZING = frozenset(SPDY_PROTOCOLS[:3])
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
"""Channels of a WebSocket."""

Session = Callable[[CommandStreams], Awaitable[bytes]]
"""What runs: it returns the status to end with."""


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """A session that waits for its client, and the streams it was asked for."""

    session: Session
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


async def serve_spdy(transport: Transport, protocol: str, request: CommandRequest) -> None:
    """Serve a client over SPDY to the end of its session.

    :raises ClientGone: if it left.
    """
    arrived: asyncio.Queue[SpdyStream] = asyncio.Queue()

    def accept(stream: SpdyStream) -> bool:
        arrived.put_nowait(stream)
        return True

    connection = SpdyConnection(transport, accept)
    gone = asyncio.Event()
    reading = asyncio.ensure_future(_read(connection.run(), gone))
    try:
        streams = await _wait_for_streams(arrived, gone, protocol, request)
        await _run(request.session, streams)
    finally:
        await _stop(reading)
    for stream in (streams.stdin, streams.resize):
        if isinstance(stream, SpdyStream):
            await stream.end()
    await connection.close()


async def _wait_for_streams(
    arrived: asyncio.Queue[SpdyStream], gone: asyncio.Event, protocol: str, request: CommandRequest
) -> CommandStreams:
    wanted = {"error", *(name for name in ("stdin", "stdout", "stderr") if getattr(request, name))}
    if request.tty and protocol in _RESIZING:
        wanted.add("resize")
    found: dict[str, SpdyStream] = {}
    try:
        async with asyncio.timeout(STREAM_TIMEOUT_S):
            while wanted - found.keys():
                stream = await _first(arrived.get(), gone)
                found[stream.headers.get("streamtype", "")] = stream
    except TimeoutError as error:
        raise ClientGone(f"the client did not open {', '.join(wanted - found.keys())} in time") from error
    for name, stream in found.items():
        if name not in wanted:
            stream.discard()
    return CommandStreams(
        status=found["error"],
        gone=gone,
        stdin=found["stdin"] if request.stdin else None,
        stdout=found["stdout"] if request.stdout else None,
        stderr=found["stderr"] if request.stderr else None,
        resize=found["resize"] if "resize" in wanted else None,
        json_status=protocol in _JSON_STATUS,
    )


async def _first(arriving: Coroutine[Any, Any, SpdyStream], gone: asyncio.Event) -> SpdyStream:
    stream, end = asyncio.ensure_future(arriving), asyncio.ensure_future(gone.wait())
    try:
        await asyncio.wait({stream, end}, return_when=asyncio.FIRST_COMPLETED)
        if not stream.done():
            raise ClientGone("the client left before it opened its streams")
        return stream.result()
    finally:
        stream.cancel()
        end.cancel()


async def serve_websocket(transport: Transport, protocol: str, request: CommandRequest) -> None:
    """Serve a client over WebSocket to the end of its session.

    :raises ClientGone: if it left.
    """
    version = websocket.COMMAND_PROTOCOLS[protocol]
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
    reading = asyncio.ensure_future(_read(connection.run(), gone))
    try:
        await _run(request.session, streams)
    finally:
        await _stop(reading)
    await connection.close()


async def _read(running: Coroutine[Any, Any, None], gone: asyncio.Event) -> None:
    try:
        await running
    except InvalidArgument as error:
        log.info("a client broke the protocol: %s", error)
    finally:
        gone.set()


async def _stop(reading: asyncio.Future[None]) -> None:
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.shield(asyncio.gather(reading, return_exceptions=True))


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
