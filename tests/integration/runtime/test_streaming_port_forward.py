"""PortForward over SPDY, SPDY in WebSocket, and WebSocket channels; IPv4, IPv6, closed ports, many at once."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from podkeep.cli.pods.stream_client import ForwardClient
from podkeep.cri.v1 import api_pb2 as api
from podkeep.http import spdy
from podkeep.http.client import upgrade
from podkeep.kernel.namespace.namespaces import run_in_netns
from support import streams
from support.cri import BLOCK, Pods, error_of, namespaces, pod
from support.waiting import wait_for

ECHO, ECHO6, COUNT, GREET = 7000, 7006, 7002, 7003


class PodServers:
    """Servers inside a pod's network namespace: two say what they hear, on IPv4 and on IPv6, one counts it.

    One says something and closes the connection.
    """

    def __init__(self) -> None:
        self.connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._servers: list[asyncio.Server] = []

    def start(self, pid: int) -> None:
        """Start them in the network namespace of process ``pid``."""
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        try:
            for family, address, port in (
                (socket.AF_INET, "127.0.0.1", ECHO),
                (socket.AF_INET6, "::1", ECHO6),
                (socket.AF_INET, "127.0.0.1", COUNT),
                (socket.AF_INET, "127.0.0.1", GREET),
            ):
                sock = run_in_netns(namespace, partial(_listener, family, address, port))
                self._servers.append(self._wait(asyncio.start_server(partial(self._serve, port), sock=sock)))
        finally:
            os.close(namespace)

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            total = 0
            if port == GREET:
                writer.write(b"bye\n")
                return
            while data := await reader.read(65536):
                total += len(data)
                if port != COUNT:
                    writer.write(data)
                    await writer.drain()
            if port == COUNT:
                writer.write(b"%d\n" % total)
                await writer.drain()
        except OSError:
            pass
        finally:
            self.connections.discard(task)
            writer.close()

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        async def stop() -> None:
            for server in self._servers:
                server.close()
            for task in list(self.connections):
                task.cancel()
            await asyncio.gather(*self.connections, return_exceptions=True)

        self._wait(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _listener(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    sock = socket.socket(family)
    sock.bind((address, port))
    sock.listen(128)
    return sock


@pytest.fixture
def servers() -> Iterator[PodServers]:
    """Servers to start in a pod; they end before the pod is removed."""
    found = PodServers()
    yield found
    found.close()


def launch(pods: Pods, servers: PodServers, config: api.PodSandboxConfig | None = None) -> str:
    """Run a pod with servers in it."""
    sandbox = pods.run(config)
    servers.start(pods.host_pid(pods.launch(sandbox)))
    return sandbox


def url(pods: Pods, sandbox: str, *ports: int) -> str:
    return str(pods.call("PortForward", api.PortForwardRequest(pod_sandbox_id=sandbox, port=ports)).url)


@pytest.mark.parametrize("port", [7000, 7006])
@pytest.mark.parametrize("user", [None, BLOCK])
def test_a_connection(pods: Pods, servers: PodServers, port: int, user: tuple[int, int, int] | None) -> None:
    sandbox = launch(pods, servers, pod(options=namespaces(user=user)))
    data = os.urandom(3_000_000)
    assert pods.wait(streams.forward_once(url(pods, sandbox), port, data)) == data


def test_the_end_of_a_side_is_passed_on(pods: Pods, servers: PodServers) -> None:
    sandbox = launch(pods, servers)
    assert pods.wait(streams.forward_once(url(pods, sandbox), 7002, bytes(12345))) == b"12345\n"


def test_a_connection_that_the_pod_closes(pods: Pods, servers: PodServers) -> None:
    """kubectl resets the data stream then, and waits for the end of the error stream before it closes its own side."""
    sandbox = launch(pods, servers)

    async def go() -> list[bytes]:
        client = await ForwardClient.connect(request, GREET)
        found = []
        async with asyncio.timeout(streams.TIMEOUT_S):
            async for part in client.received():
                found.append(part)
                if not part:
                    await client._send(spdy.RstStream(stream_id=3, status=spdy.ResetStatus.CANCEL))
        await client.close()
        return found

    request = url(pods, sandbox)
    assert pods.wait(go()) == [b"bye\n", b""]


def test_a_closed_port_is_said_in_the_error_stream(pods: Pods, servers: PodServers) -> None:
    sandbox = launch(pods, servers)
    with pytest.raises(Unavailable, match=r"port 81 .*127.0.0.1: Connection refused; ::1: Connection refused"):
        pods.wait(streams.forward_once(url(pods, sandbox), 81, b""))


def test_a_pod_on_the_hosts_network(pods: Pods, servers: PodServers) -> None:
    sandbox = launch(pods, servers, pod(options=namespaces(network=api.NODE)))
    assert pods.wait(streams.forward_once(url(pods, sandbox), 7000, b"host")) == b"host"


async def many(request: str, ports: list[int], *, tunnel: bool) -> dict[int, bytes]:
    """Open a pair of streams for each port over one connection, send its index, and return all answers."""
    if tunnel:
        connection = await upgrade(request, "GET", streams.websocket_headers("SPDY/3.1+portforward.k8s.io"))
        assert connection.headers["sec-websocket-protocol"] == "SPDY/3.1+portforward.k8s.io"
    else:
        headers = {"upgrade": "SPDY/3.1", "x-stream-protocol-version": "portforward.k8s.io"}
        connection = await upgrade(request, "POST", headers)
    frames = Connection(ConnectionType.CLIENT)
    encoder, decoder = spdy.Encoder(), spdy.Decoder()

    async def send(frame: spdy.Frame) -> None:
        data = encoder.encode(frame)
        await connection.send(frames.send(BytesMessage(data=data)) if tunnel else data)

    async def receive() -> list[bytes]:
        data = await connection.receive()
        if not tunnel:
            return [data]
        frames.receive_data(data or None)
        return [bytes(event.data) for event in frames.events() if isinstance(event, BytesMessage)]

    for index, port in enumerate(ports):
        for offset, kind in ((1, "error"), (3, "data")):
            fields = {"streamtype": kind, "port": str(port), "requestid": str(index)}
            await send(spdy.SynStream(stream_id=4 * index + offset, headers=fields))
        await send(spdy.Data(stream_id=4 * index + 3, data=b"%d" % index, fin=True))
    await send(spdy.Ping(ping_id=7))
    found: dict[int, bytes] = {4 * index + offset: b"" for index in range(len(ports)) for offset in (1, 3)}
    ended, replied, pinged = set(), set(), False
    async with asyncio.timeout(streams.TIMEOUT_S):
        while len(ended) < len(found) or not pinged:
            for part in await receive():
                for frame in decoder.feed(part):
                    if isinstance(frame, spdy.Data):
                        assert frame.stream_id in replied
                        found[frame.stream_id] += frame.data
                        if frame.fin:
                            ended.add(frame.stream_id)
                    elif isinstance(frame, spdy.SynReply):
                        replied.add(frame.stream_id)
                    elif isinstance(frame, spdy.Ping):
                        pinged = True
    await connection.close()
    return found


@pytest.mark.parametrize("tunnel", [False, True])
def test_many_connections_and_ports_over_one(pods: Pods, servers: PodServers, tunnel: bool) -> None:
    sandbox = launch(pods, servers)
    ports = [7000, 7006, 81, 7002] * 10
    found = pods.wait(many(url(pods, sandbox), ports, tunnel=tunnel))
    for index, port in enumerate(ports):
        error, data = found[4 * index + 1], found[4 * index + 3]
        if port == 81:
            assert b"Connection refused" in error
            assert data == b""
        else:
            assert error == b""
            assert data == (b"%d\n" % len(b"%d" % index) if port == 7002 else b"%d" % index)


def test_websocket_channels(pods: Pods, servers: PodServers) -> None:
    sandbox = launch(pods, servers)

    async def go() -> dict[int, bytes]:
        request = (
            await pods._client.runtime.PortForward(api.PortForwardRequest(pod_sandbox_id=sandbox, port=[7000, 81]))
        ).url
        connection = await upgrade(request, "GET", streams.websocket_headers("v4.channel.k8s.io"))
        frames = Connection(ConnectionType.CLIENT)
        await connection.send(frames.send(BytesMessage(data=b"\x00hello")))
        found: dict[int, bytes] = {}
        async with asyncio.timeout(streams.TIMEOUT_S):
            while b"hello" not in found.get(0, b"") or b"refused" not in found.get(3, b""):
                frames.receive_data(await connection.receive())
                for event in frames.events():
                    if isinstance(event, BytesMessage):
                        data = bytes(event.data)
                        found[data[0]] = found.get(data[0], b"") + data[1:]
        await connection.close()
        return found

    found = pods.wait(go())
    assert found[0] == (7000).to_bytes(2, "little") + b"hello"
    assert found[1] == (7000).to_bytes(2, "little")
    assert found[3].startswith((81).to_bytes(2, "little") + b"error forwarding port 81")


def test_websocket_channels_end_when_the_pod_closes_its_connection(pods: Pods, servers: PodServers) -> None:
    sandbox = launch(pods, servers)

    async def go() -> bytes:
        request = (
            await pods._client.runtime.PortForward(api.PortForwardRequest(pod_sandbox_id=sandbox, port=[GREET]))
        ).url
        connection = await upgrade(request, "GET", streams.websocket_headers("v4.channel.k8s.io"))
        frames = Connection(ConnectionType.CLIENT)
        data, ended = b"", False
        async with asyncio.timeout(streams.TIMEOUT_S):
            while not ended and (received := await connection.receive()):
                frames.receive_data(received)
                for event in frames.events():
                    ended = ended or isinstance(event, CloseConnection)
                    if isinstance(event, BytesMessage) and event.data[0] == 0:
                        data += bytes(event.data[1:])
        await connection.close()
        return data

    assert pods.wait(go()) == GREET.to_bytes(2, "little") + b"bye\n"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"streamtype": "data"},
        {"streamtype": "data", "port": "0"},
        {"streamtype": "data", "port": "65536"},
        {"streamtype": "data", "port": "http"},
        {"streamtype": "stdin", "port": "7000"},
        {"port": "7000"},
    ],
)
def test_a_stream_that_makes_no_sense_is_refused_and_others_go_on(
    pods: Pods, servers: PodServers, fields: dict[str, str]
) -> None:
    sandbox = launch(pods, servers)

    async def go() -> tuple[bool, bytes]:
        client = await ForwardClient.connect(url_, 7000)
        await client._send(spdy.SynStream(stream_id=5, headers=fields))
        await client.send(b"on")
        await client.end()
        return True, b"".join([part async for part in client.received()])

    url_ = url(pods, sandbox)
    assert pods.wait(go()) == (True, b"on")


def test_connections_end_with_their_client(pods: Pods, servers: PodServers) -> None:
    sandbox = launch(pods, servers)

    async def go() -> None:
        clients = [await ForwardClient.connect(request, 7000) for request in requests]
        for client in clients:
            await client.send(b"x")
            async for part in client.received():
                assert part == b"x"
                break
        for client in clients:
            client._connection.writer.transport.abort()

    requests = [url(pods, sandbox) for _ in range(10)]
    pods.wait(go())
    wait_for(lambda: not servers.connections, "the connections' end")


def test_what_cannot_be_is_refused_at_once(pods: Pods) -> None:
    sandbox = pods.run()

    def error(kind: type[InvalidArgument | NotFound | FailedPrecondition], **fields: object) -> str:
        request = api.PortForwardRequest(**({"pod_sandbox_id": sandbox} | fields))  # type: ignore[arg-type]
        return error_of(lambda: pods.call("PortForward", request), kind)

    assert "pod_sandbox_id" in error(InvalidArgument, pod_sandbox_id="")
    assert "65536" in error(InvalidArgument, port=[65536])
    assert "128 ports" in error(InvalidArgument, port=[80] * 128)
    error(NotFound, pod_sandbox_id="f" * 64)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/portforward/[A-Za-z0-9_-]{43}", url(pods, sandbox))
    pods.stop_pod(sandbox)
    assert "not ready" in error(FailedPrecondition)
