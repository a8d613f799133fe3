"""What a hostile client makes the streaming server keep is bounded, and given back: streams, headers, data, tasks."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import struct
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, Ping, Pong, TextMessage

from podkeep.base.config import StreamingConfig
from podkeep.base.errors import ResourceExhausted
from podkeep.cli.pods.stream_client import FORWARD_PROTOCOL
from podkeep.http import budget, spdy
from podkeep.http.client import Upgraded, upgrade
from podkeep.http.streams import QUEUE_BYTES
from podkeep.runtime.streaming import port_forward
from podkeep.runtime.streaming import server as streaming_server
from podkeep.runtime.streaming.command_streams import CommandStreams
from podkeep.runtime.streaming.port_forward import ForwardRequest
from podkeep.runtime.streaming.remote_command import CommandRequest
from podkeep.runtime.streaming.server import StreamingServer
from support import streams
from support.streams import SpdyCommand, collect

STREAMS = 1000
LARGE = {"x-large": "x" * 3000}
SOME_KIB = 512 * 1024
"""What Python itself may need more after a run than before."""


def serving(scenario: Callable[[StreamingServer], Awaitable[Any]], caplog: pytest.LogCaptureFixture) -> Any:
    """Run a scenario with a server, within a time; nothing may fail in the background."""
    failures: list[dict[str, Any]] = []

    async def run() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        server = StreamingServer(StreamingConfig())
        await server.start()
        try:
            async with asyncio.timeout(streams.TIMEOUT_S):
                return await scenario(server)
        finally:
            await server.close()
            gc.collect()

    result = asyncio.run(run())
    assert failures == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    return result


def command(session: Any, **fields: Any) -> CommandRequest:
    wanted = {"pod": "pod", "stdin": False, "stdout": True, "stderr": False, "tty": False}
    return CommandRequest(session=session, **(wanted | fields))


async def _never(port: int) -> socket.socket:
    """A pod that accepts nothing."""
    await asyncio.Event().wait()
    raise AssertionError(port)


async def _until_left(given: CommandStreams) -> bytes:
    await given.gone.wait()
    return b'{"status": "Success"}'


class Peer:
    """A client that says what it likes in SPDY."""

    def __init__(self, connection: Upgraded) -> None:
        self.connection = connection
        self.encoder, self.decoder = spdy.Encoder(), spdy.Decoder()
        self.number = -1
        self.replied = self.refused = self.reset = 0

    @classmethod
    async def forward(cls, server: StreamingServer, request: ForwardRequest) -> Peer:
        headers = {"upgrade": "SPDY/3.1", "x-stream-protocol-version": FORWARD_PROTOCOL}
        return cls(await upgrade(server.url("portforward", request), "POST", headers))

    @classmethod
    async def command(cls, server: StreamingServer, request: CommandRequest) -> Peer:
        headers = {"upgrade": "SPDY/3.1", "x-stream-protocol-version": "v4.channel.k8s.io"}
        return cls(await upgrade(server.url("exec", request), "POST", headers))

    def open(self, **fields: str) -> bytes:
        self.number += 2
        return self.encoder.encode(spdy.SynStream(stream_id=self.number, headers=fields))

    def data(self, data: bytes) -> bytes:
        return self.encoder.encode(spdy.Data(stream_id=self.number, data=data))

    def rst(self) -> bytes:
        return self.encoder.encode(spdy.RstStream(stream_id=self.number, status=spdy.ResetStatus.CANCEL))

    async def answers(self) -> None:
        """Take what has been answered until a ping comes back, or the connection ends."""
        await self.connection.send(self.encoder.encode(spdy.Ping(ping_id=1)))
        while data := await self.connection.receive():
            for frame in self.decoder.feed(data):
                match frame:
                    case spdy.SynReply():
                        self.replied += 1
                    case spdy.RstStream(status=spdy.ResetStatus.REFUSED_STREAM):
                        self.refused += 1
                    case spdy.RstStream():
                        self.reset += 1
                    case spdy.Ping():
                        return


def _growth(since: int) -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - since


@pytest.mark.parametrize("kind", ["portforward", "exec"])
@pytest.mark.slow
def test_nothing_is_kept_of_streams_that_are_reset(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: StreamingServer) -> None:
        if kind == "exec":
            peer = await Peer.command(server, command(_until_left))
        else:
            peer = await Peer.forward(server, ForwardRequest(pod="pod", connect=_never))
        await peer.answers()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for number in range(STREAMS):
                fields = {"streamtype": "data" if kind == "portforward" else f"type-{number}", "port": "80"}
                opened = peer.open(**fields, requestid=str(number), **LARGE)
                await peer.connection.send(opened + peer.data(bytes(1000)) + peer.rst())
                if number % 100 == 0:
                    await peer.answers()
            await peer.answers()
            assert _growth(before) < SOME_KIB
        finally:
            tracemalloc.stop()
        assert (peer.replied, peer.refused) == ((STREAMS, 0) if kind == "portforward" else (0, STREAMS))
        await peer.connection.close()

    serving(scenario, caplog)


@pytest.mark.slow
def test_pairs_that_are_reset_while_their_pod_lets_them_wait_end(caplog: pytest.LogCaptureFixture) -> None:
    waiting: set[int] = set()

    async def connect(port: int) -> socket.socket:
        number = len(waiting)
        waiting.add(number)
        try:
            return await _never(port)
        finally:
            waiting.discard(number)

    async def scenario(server: StreamingServer) -> None:
        peer = await Peer.forward(server, ForwardRequest(pod="pod", connect=connect))
        for number in range(3 * port_forward.MAX_PAIRS):
            fields = {"port": "80", "requestid": str(number)}
            opened = peer.open(streamtype="error", **fields) + peer.open(streamtype="data", **fields)
            await peer.connection.send(opened + peer.rst())
            await peer.answers()
        assert peer.refused == 0
        await until(lambda: not waiting)
        await peer.connection.close()

    serving(scenario, caplog)


@pytest.mark.slow
def test_a_connection_has_a_bounded_number_of_pairs(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: StreamingServer) -> None:
        peer = await Peer.forward(server, ForwardRequest(pod="pod", connect=_never))
        for number in range(port_forward.MAX_PAIRS + 50):
            fields = {"port": "80", "requestid": str(number)}
            for kind in ("error", "data"):
                await peer.connection.send(peer.open(streamtype=kind, **fields))
        await peer.answers()
        assert (peer.replied, peer.refused) == (2 * port_forward.MAX_PAIRS, 100)
        await peer.connection.close()

    serving(scenario, caplog)


def test_each_stream_of_a_command_can_be_opened_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: StreamingServer) -> None:
        peer = await Peer.command(server, command(_until_left, stdin=True))
        kinds = ("error", "stdin", "stdout", "stderr", "resize")
        for kind in (*kinds, *kinds, "", "Error", "stdin2", "port"):
            await peer.connection.send(peer.open(streamtype=kind))
        await peer.answers()
        assert (peer.replied, peer.refused) == (5, 9)
        # A type is used up, also if its stream was reset.
        await peer.connection.send(peer.rst() + peer.open(streamtype="resize"))
        await peer.answers()
        assert peer.refused == 10
        await peer.connection.close()

    serving(scenario, caplog)


@pytest.mark.parametrize("size", [spdy.MAX_HEADER_BYTES, 60_000, 5_000_000])
def test_large_headers_end_the_connection(size: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: StreamingServer) -> None:
        peer = await Peer.forward(server, ForwardRequest(pod="pod", connect=_never))
        if size == 60_000:  # what cannot be compressed
            opened = spdy._frame(spdy.FrameType.SYN_STREAM, b"\0\0\0\1" + bytes(6) + zlib.compress(bytes(size), 0))
        else:
            opened = peer.open(streamtype="x" * size)
        await peer.connection.send(opened)
        await peer.answers()
        assert peer.replied == 0
        assert await peer.connection.receive() == b""
        await peer.connection.close()

    serving(scenario, caplog)


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)


async def _full(peer: Peer, number: int) -> None:
    """Send to many streams whose data nobody takes, until the server reads no more."""
    for request in range(number):
        opened = peer.open(streamtype="data", port="80", requestid=str(request))
        try:
            async with asyncio.timeout(0.5):
                await peer.connection.send(opened + peer.data(bytes(200_000)))
        except TimeoutError:
            return
    raise AssertionError("the server takes whatever comes")


@pytest.mark.slow
def test_what_a_connection_keeps_is_bounded_whatever_the_number_of_its_streams(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(server: StreamingServer) -> None:
        peer = await Peer.forward(server, ForwardRequest(pod="pod", connect=_never))
        await _full(peer, 250)
        kept = server.pool.used
        assert budget.CONNECTION_BYTES // 2 < kept <= budget.CONNECTION_BYTES + 2 * 65536
        peer.connection.writer.transport.abort()
        await until(lambda: not server.pool.used and not server._running)

    serving(scenario, caplog)


@pytest.mark.slow
def test_what_all_connections_keep_is_bounded_and_none_is_kept_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def echo(given: CommandStreams) -> bytes:
        assert given.stdin is not None
        assert given.stdout is not None
        while data := await given.stdin.receive():
            await given.stdout.send(data)
        return b'{"status": "Success"}'

    async def scenario(server: StreamingServer) -> None:
        request = ForwardRequest(pod="pod", connect=_never)
        server.pool._limit = 2 * budget.CONNECTION_BYTES
        peers = [await Peer.forward(server, request) for _ in range(20)]
        await asyncio.gather(*(_full(peer, 250) for peer in peers))
        assert server.pool.used <= 2 * budget.CONNECTION_BYTES + len(peers) * 65536
        # Somebody else's session works meanwhile.
        client = await SpdyCommand.connect(
            server.url("exec", command(echo, pod="other", stdin=True)), ("stdin", "stdout")
        )
        data = bytes(3_000_000)
        assert await streams.converse(client, data) == (data, b"")
        for peer in peers:
            peer.connection.writer.transport.abort()
        await until(lambda: not server.pool.used and not server._running)

    serving(scenario, caplog)


def test_a_pod_has_a_bounded_number_of_sessions_and_others_have_theirs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming_server, "MAX_SESSIONS_OF_POD", 8)

    async def said(given: CommandStreams) -> bytes:
        assert given.stdout is not None
        await given.stdout.send(b"said")
        return b'{"status": "Success"}'

    async def scenario(server: StreamingServer) -> None:
        peers = [await Peer.command(server, command(_until_left)) for _ in range(4)]
        for peer in peers:
            await peer.answers()
        for _ in range(4):
            server.url("exec", command(_until_left))
        with pytest.raises(ResourceExhausted, match="8 streaming sessions"):
            server.url("exec", command(_until_left))
        client = await SpdyCommand.connect(server.url("exec", command(said, pod="other")), ("stdout",))
        assert (await collect(client))[0] == b"said"
        for peer in peers:
            await peer.connection.close()
        await until(lambda: not server._running)
        server.url("exec", command(_until_left))

    serving(scenario, caplog)


def test_a_pod_has_its_own_sessions_when_others_have_all_the_rest(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming_server, "MAX_SESSIONS", 4)
    monkeypatch.setattr(streaming_server, "OWN_SESSIONS", 2)

    async def scenario(server: StreamingServer) -> None:
        peers = []
        for number in range(2):
            request = command(_until_left, pod=f"hostile {number}")
            peers += [await Peer.command(server, request) for _ in range(3)]
            server.url("exec", request)
        for peer in peers:
            await peer.answers()
        with pytest.raises(ResourceExhausted, match="above 2 each"):
            server.url("exec", command(_until_left, pod="hostile 0"))
        for _ in range(2):
            peers.append(await Peer.command(server, command(_until_left, pod="other")))
            await peers[-1].answers()
        with pytest.raises(ResourceExhausted, match="above 2 each"):
            server.url("exec", command(_until_left, pod="other"))
        for peer in peers:
            await peer.connection.close()
        await until(lambda: not server._running)

    serving(scenario, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unknown", "empty", "ping", "fragments"])
def test_small_frames_wait_with_those_of_their_pod(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood is taken in pauses, as much of one pod as of another, whatever its number of connections."""
    frames = {
        "unknown": struct.pack(">HHI", 0x8003, 99, 0),
        "empty": spdy.Encoder().encode(spdy.Data(stream_id=99, data=b"")),
        "ping": spdy.Encoder().encode(spdy.Ping(ping_id=2)),
        "fragments": b"\x00\x81\0\0\0\0x",
    }
    taken: Counter[str] = Counter()

    async def scenario(server: StreamingServer) -> None:
        wait_for_turn = server.pool.turn

        async def turn(of_pod: asyncio.Lock, *, small: bool) -> None:
            assert small
            await wait_for_turn(of_pod, small=small)
            taken[next(pod for pod in pods if server.pool.turns_of(pod) is of_pod)] += 1

        monkeypatch.setattr(server.pool, "turn", turn)
        pods = {"many": 6, "one": 1}
        connections = []
        for pod, number in pods.items():
            for _ in range(number):
                request = command(_until_left, pod=pod)
                if kind == "fragments":
                    headers = streams.websocket_headers("v5.channel.k8s.io")
                    connections.append(await upgrade(server.url("exec", request), "GET", headers))
                    connections[-1].writer.write(b"\x02\x81\0\0\0\0\x07")
                else:
                    connections.append((await Peer.command(server, request)).connection)
        for connection in connections:
            connection.writer.write(frames[kind] * budget.PIECES_AT_A_TIME * 20)
        await until(lambda: taken["one"] >= 19)
        # Twice as many at most would be theirs if they began before.
        assert taken["many"] <= 2 * taken["one"]
        for connection in connections:
            connection.writer.transport.abort()
        await until(lambda: not server._running)

    serving(scenario, caplog)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_that_clients_made_the_server_take_goes_back_to_the_system(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: StreamingServer) -> None:
        request = ForwardRequest(pod="pod", connect=_never)
        peers = [await Peer.forward(server, request) for _ in range(40)]
        before = _resident()
        await asyncio.gather(*(_full(peer, 250) for peer in peers))
        kept = server.pool.kept
        assert kept > 20 * budget.CONNECTION_BYTES
        assert _resident() - before > kept // 2
        for peer in peers:
            peer.connection.writer.transport.abort()
        await until(lambda: not server.pool.kept and not server._running)
        await until(lambda: not server._server._tasks)
        # A wide margin: this process is the clients', too.
        assert _resident() - before < kept // 2

    serving(scenario, caplog)


@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "v4.base64.channel.k8s.io"])
@pytest.mark.slow
def test_nothing_is_kept_of_messages_without_end_and_of_pings(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """In fragments of a message without a reader; between them may be pings, each of which is answered."""
    message = TextMessage if "base64" in protocol else BytesMessage
    fragment = message(data="AAAA" * 1000 if "base64" in protocol else bytes(4000), message_finished=False)
    ended = message(data="" if "base64" in protocol else b"", message_finished=True)

    async def scenario(server: StreamingServer) -> None:
        connection = await upgrade(server.url("exec", command(_until_left)), "GET", streams.websocket_headers(protocol))
        client = Connection(ConnectionType.CLIENT)
        reading = asyncio.ensure_future(_pongs(client, connection, 1000))
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(1000):
                await connection.send(client.send(fragment) + client.send(Ping(payload=b"x" * 100)))
            await connection.send(client.send(ended))
            await reading
            assert _growth(before) < SOME_KIB
        finally:
            tracemalloc.stop()
        for _ in range(100):
            connection.writer.write(b"\x88\x80\0\0\0\0")  # close, again and again
        await connection.close()

    serving(scenario, caplog)


async def _pongs(client: Connection, connection: Upgraded, wanted: int) -> None:
    while wanted and (data := await connection.receive()):
        client.receive_data(data)
        wanted -= sum(isinstance(event, Pong) for event in client.events())


@pytest.mark.slow
def test_portions_of_few_bytes_count_as_what_they_take(caplog: pytest.LogCaptureFixture) -> None:
    """An object of Python's for each two bytes would take 30 times what is counted."""

    async def scenario(server: StreamingServer) -> None:
        peer = await Peer.command(server, command(_until_left, stdin=True))
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            await peer.connection.send(peer.open(streamtype="stdin") + peer.data(b"xy") * 10)
            portions = peer.data(b"xy") * 10_000
            with suppress(TimeoutError):
                async with asyncio.timeout(10):
                    # More than all buffers between us and the server hold.
                    for _ in range(100):
                        async with asyncio.timeout(1):
                            await peer.connection.send(portions)
            assert _growth(before) < 2 * QUEUE_BYTES + SOME_KIB
        finally:
            tracemalloc.stop()
        peer.connection.writer.transport.abort()
        await until(lambda: not server.pool.kept and not server._running)

    serving(scenario, caplog)


@pytest.mark.parametrize("protocol", ["spdy", "websocket"])
@pytest.mark.slow
def test_clients_that_send_many_small_frames_take_turns(
    protocol: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn of the event loop takes some frames, whatever the number of clients that send them."""
    clients, frames = 30, 2000

    async def scenario(server: StreamingServer) -> None:
        connections = []
        for _ in range(clients):
            if protocol == "spdy":
                peer = await Peer.command(server, command(_until_left))
                connections.append(peer.connection)
                data = spdy.Encoder().encode(spdy.Data(stream_id=99, data=b"x")) * frames
            else:
                headers = streams.websocket_headers("v5.channel.k8s.io")
                connections.append(await upgrade(server.url("exec", command(_until_left)), "GET", headers))
                data = Connection(ConnectionType.CLIENT).send(BytesMessage(data=b"\x07x")) * frames
        taken: list[int] = []
        rounds = 0
        wait_for_turn = server.pool.turn

        async def turn(of_pod: asyncio.Lock, *, small: bool) -> None:
            await wait_for_turn(of_pod, small=small)
            taken.append(rounds)

        monkeypatch.setattr(server.pool, "turn", turn)
        for connection in connections:
            connection.writer.write(data)
        while len(taken) < clients * (frames // budget.PIECES_AT_A_TIME):
            rounds += 1
            await asyncio.sleep(0)
        assert rounds > len(taken) // 2
        for connection in connections:
            connection.writer.transport.abort()
        await until(lambda: not server._running)

    serving(scenario, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("ended", ["reset", "gone"])
def test_a_pod_has_a_bounded_number_of_forwarded_connections_and_others_have_theirs(
    ended: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all connections of its clients, and also those count whose second stream has not come."""
    monkeypatch.setattr(port_forward, "FORWARDS_OF_POD", 100)

    def opened(peer: Peer, number: int) -> bytes:
        kinds = ("error", "data") if number % 2 else ("error",)
        return b"".join(peer.open(streamtype=kind, port="80", requestid=str(number)) for kind in kinds)

    async def scenario(server: StreamingServer) -> None:
        peers = [await Peer.forward(server, ForwardRequest(pod="pod", connect=_never)) for _ in range(3)]
        for peer in peers:
            await peer.connection.send(b"".join(opened(peer, number) for number in range(40)))
            await peer.answers()
        assert [peer.refused for peer in peers] == [0, 0, 30]
        other = await Peer.forward(server, ForwardRequest(pod="other", connect=_never))
        await other.connection.send(b"".join(opened(other, number) for number in range(40)))
        await other.answers()
        assert other.refused == 0
        for peer in (*peers, other):
            if ended == "reset":
                for number in range(1, peer.number + 1, 2):
                    peer.number = number
                    await peer.connection.send(peer.rst())
                await peer.answers()
            else:
                peer.connection.writer.transport.abort()
        await until(lambda: not server.forwards)

    serving(scenario, caplog)
