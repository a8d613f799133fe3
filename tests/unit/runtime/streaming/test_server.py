"""The streaming server's doors: connections that say nothing do not keep out those that have a URL."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from podkeep.base.config import StreamingConfig
from podkeep.base.errors import FailedPrecondition
from podkeep.http.client import upgrade
from podkeep.runtime.streaming.command_streams import CommandStreams
from podkeep.runtime.streaming.remote_command import CommandRequest
from podkeep.runtime.streaming.server import StreamingServer
from support.streams import SpdyCommand, collect

TIMEOUT_S = 30.0


async def _session(streams: CommandStreams) -> bytes:
    assert streams.stdout is not None
    await streams.stdout.send(b"served")
    return b'{"status": "Success"}'


def _request() -> CommandRequest:
    return CommandRequest(session=_session, pod="pod", stdin=False, stdout=True, stderr=False, tty=False)


def test_who_says_nothing_makes_room() -> None:
    async def scenario() -> None:
        server = StreamingServer(StreamingConfig(), max_connections=4)
        await server.start()
        port = urlsplit(server.url("exec", _request())).port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        async with asyncio.timeout(TIMEOUT_S):
            client = await SpdyCommand.connect(server.url("exec", _request()), ("stdout",))
            assert (await collect(client))[0] == b"served"
            assert client.exit_code() == 0
            # The oldest had to go.
            assert await silent[0][0].read() == b""
        await server.close()
        for _, writer in silent:
            writer.close()

    asyncio.run(scenario())


def test_no_port_is_taken_that_a_pod_has_as_a_host_port() -> None:
    """The pod would get what clients send there. Pods may have all that the kernel draws from."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    others = frozenset(range(65536)) - {port}

    async def scenario() -> None:
        server = StreamingServer(StreamingConfig())
        await server.start(others)
        assert urlsplit(server.url("exec", _request())).port == port
        await server.close()
        with pytest.raises(FailedPrecondition, match=f"a pod has streaming.port {port} as a host port"):
            await StreamingServer(StreamingConfig(port=port)).start({port})
        with pytest.raises(FailedPrecondition, match="no port is left"):
            await StreamingServer(StreamingConfig()).start(range(65536))

    asyncio.run(scenario())


def test_who_says_half_a_request_makes_room() -> None:
    async def scenario() -> None:
        server = StreamingServer(StreamingConfig(), max_connections=4)
        await server.start()
        port = urlsplit(server.url("exec", _request())).port
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in slow:
            writer.write(b"GET /exec/x HTTP/1.1\r\nHost: ")
        async with asyncio.timeout(TIMEOUT_S):
            client = await SpdyCommand.connect(server.url("exec", _request()), ("stdout",))
            assert (await collect(client))[0] == b"served"
        await server.close()
        for _, writer in slow:
            writer.transport.abort()

    asyncio.run(scenario())


def test_who_begins_no_tls_makes_room(tmp_path: Path) -> None:
    """Also those count who have not come as far as a request."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-subj", "/CN=podkeep", "-days", "1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(argv, check=True, capture_output=True)

    async def scenario() -> None:
        server = StreamingServer(StreamingConfig(tls_cert=str(cert), tls_key=str(key)), max_connections=4)
        await server.start()
        url = server.url("exec", _request())
        silent = [await asyncio.open_connection("127.0.0.1", urlsplit(url).port) for _ in range(20)]
        async with asyncio.timeout(TIMEOUT_S):
            # The last ones that came are here, the others had to go.
            for reader, _ in silent[:16]:
                assert await reader.read() == b""
            headers = {"upgrade": "SPDY/3.1", "x-stream-protocol-version": "v4.channel.k8s.io"}
            connection = await upgrade(url, "POST", headers, str(cert))
            await connection.close()
        await server.close()
        for _, writer in silent:
            writer.transport.abort()

    asyncio.run(scenario())
