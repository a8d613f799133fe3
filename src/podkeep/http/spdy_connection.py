"""Streams over one SPDY connection, from the server's side.

Owns: opening, ending and resetting streams, pings, and the order of what is written. Does not own: the form of frames
(``spdy.py``) or what streams are for. As the frames of all streams come one after the other and Kubernetes' clients
know no flow control, a stream nobody reads holds up the others once its queue is full.

Nothing is kept of a stream that its client reset: what was queued is dropped, and who accepted it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from podkeep.http import spdy
from podkeep.http.budget import ClientGone
from podkeep.http.streams import Inbox
from podkeep.http.transport import LINGER_S, Transport

FRAME_BYTES = 32 * 1024
"""Data in one frame of ours."""
MAX_STREAMS = 512
"""Streams of one connection at a time; a port-forward needs two for each of its connections."""


class SpdyStream:
    """One stream of a client: a Source and a Sink in one."""

    def __init__(self, connection: SpdyConnection, stream_id: int, headers: Mapping[str, str]) -> None:
        self.stream_id, self.headers = stream_id, headers
        self.inbox = Inbox(connection.transport.account)
        self.reset_by_client = asyncio.Event()
        self._connection = connection
        self._ended = False

    async def receive(self) -> bytes:
        return await self.inbox.receive()

    def discard(self) -> None:
        self.inbox.discard()

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), FRAME_BYTES):
            if self._ended or self.reset_by_client.is_set():
                raise ClientGone(f"the client gave up stream {self.stream_id}")
            part = data[start : start + FRAME_BYTES]
            await self._connection.send(spdy.Data(stream_id=self.stream_id, data=part))

    async def end(self) -> None:
        if not self._ended and not self.reset_by_client.is_set():
            self._ended = True
            with suppress(ClientGone):
                await self._connection.send(spdy.Data(stream_id=self.stream_id, data=b"", fin=True))

    def forget(self) -> None:
        """Nothing of this stream is needed any more; what its client still sends for it is dropped."""
        self._connection.forget(self.stream_id)


class Streams(Protocol):
    """Who has use for the streams of a connection."""

    def accept(self, stream: SpdyStream) -> bool:
        """Take a new stream, or refuse it; never waits."""

    def dropped(self, stream: SpdyStream) -> None:
        """Forget a stream that was taken: its client reset it."""


class SpdyConnection:
    """The connection; :meth:`run` reads it to its end."""

    def __init__(self, transport: Transport, streams: Streams) -> None:
        self.transport = transport
        self._accepting = streams
        self._decoder, self._encoder = spdy.Decoder(), spdy.Encoder()
        self._streams: dict[int, SpdyStream] = {}
        self._last = 0
        self._order = asyncio.Lock()

    async def run(self) -> None:
        """Read and dispatch until the client leaves; then every stream's reader is told.

        :raises SpdyError: if the client broke the protocol.
        """
        try:
            while data := await self.transport.receive():
                for frame in self._decoder.feed(data):
                    if isinstance(frame, spdy.GoAway):
                        return
                    await self._take(frame)
                    # Frames without data count, too: each is work, and a client may send nothing else.
                    await self.transport.account.took(len(frame.data) if isinstance(frame, spdy.Data) else 0)
        except spdy.SpdyError:
            await self._go_away(spdy.GoAwayStatus.PROTOCOL_ERROR)
            raise
        except ClientGone:
            return
        finally:
            for stream in self._streams.values():
                stream.inbox.fail()

    async def send(self, frame: spdy.Frame) -> None:
        """Send one frame.

        :raises ClientGone: if the client is not there any more.
        """
        # Header blocks must go out in the order in which they were compressed.
        async with self._order:
            await self.transport.send(self._encoder.encode(frame))

    async def close(self) -> None:
        """End the connection in good order."""
        await self._go_away(spdy.GoAwayStatus.OK)
        await self.transport.close()

    def forget(self, stream_id: int) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            stream.inbox.discard()

    async def _go_away(self, status: spdy.GoAwayStatus) -> None:
        with suppress(ClientGone, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self.send(spdy.GoAway(last_stream_id=self._last, status=status))

    async def _take(self, frame: spdy.Frame | spdy.Unknown) -> None:
        match frame:
            case spdy.SynStream():
                await self._open(frame)
            case spdy.Data():
                stream = self._streams.get(frame.stream_id)
                if stream is not None:
                    await stream.inbox.put(frame.data)
                    if frame.fin:
                        stream.inbox.finish()
            case spdy.Headers():
                stream = self._streams.get(frame.stream_id)
                if stream is not None and frame.flags & spdy.Flag.FIN:
                    stream.inbox.finish()
            case spdy.RstStream():
                stream = self._streams.pop(frame.stream_id, None)
                if stream is not None:
                    stream.reset_by_client.set()
                    stream.inbox.reset()
                    self._accepting.dropped(stream)
            # Even numbers are answers to pings of ours: to answer these would never end.
            case spdy.Ping(ping_id=number) if number % 2:
                await self.send(frame)
            case _:
                pass  # settings and windows: Kubernetes' clients send none and wait for none; and what is unknown

    async def _open(self, frame: spdy.SynStream) -> None:
        number = frame.stream_id
        # The streams of a client have odd numbers, each above the last (section 2.3.2).
        if number % 2 == 0 or number <= self._last:
            await self.send(spdy.RstStream(stream_id=number, status=spdy.ResetStatus.PROTOCOL_ERROR))
            return
        self._last = number
        stream = SpdyStream(self, number, frame.headers)
        if len(self._streams) >= MAX_STREAMS or not self._accepting.accept(stream):
            await self.send(spdy.RstStream(stream_id=number, status=spdy.ResetStatus.REFUSED_STREAM))
            return
        self._streams[number] = stream
        if frame.flags & spdy.Flag.FIN:
            stream.inbox.finish()
        await self.send(spdy.SynReply(stream_id=number))
