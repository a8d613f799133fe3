"""Connections that are broken off, in their handshake or in a request: what they take of memory goes with them."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import struct
from asyncio import sslproto
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from podkeep.agent.probes import dialing
from podkeep.base.errors import PodkeepError
from podkeep.http.backend import Address, Backend
from podkeep.http.connection import HttpConnection, Limits
from podkeep.http.listener import tcp_socket
from podkeep.http.messages import Request, Response
from podkeep.http.self_signed import ensure
from podkeep.http.server import Server
from podkeep.http.tls import server_context
from support.cycles import uncollected
from support.waiting import TIMEOUT_S

BEGINNING = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""Of a client's first message, whose rest never comes."""
TIMES = 5


@pytest.fixture(autouse=True)
def no_cycles() -> Iterator[None]:
    """Nothing is freed that refers to itself."""
    with uncollected():
        yield


def ends() -> int:
    """Return how many ends of TLS connections there are."""
    return sum(isinstance(item, sslproto._SSLProtocolTransport) for item in gc.get_objects())


def connections() -> int:
    """Return how many connections of servers there are."""
    return sum(isinstance(item, HttpConnection) for item in gc.get_objects())


async def until_none() -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while ends():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def nothing(_: Request) -> Response:
    return Response()


@pytest.mark.slow
def test_clients_that_leave_in_their_handshake(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    ensure(certificate, key, "test", ["test"], ["127.0.0.1"])
    tls = server_context("test", str(certificate), str(key))

    async def work() -> None:
        server = Server("test", nothing, Limits())
        listening = tcp_socket("127.0.0.1", 0)
        server.start([listening], tls)
        for _ in range(TIMES):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(BEGINNING)
            await writer.drain()
            async with asyncio.timeout(TIMEOUT_S):
                while not ends():  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            writer.close()
            await until_none()
        await server.close()

    asyncio.run(work())


@pytest.mark.slow
@pytest.mark.parametrize("who", ["backend", "probe"])
@pytest.mark.parametrize("answer", [b"", b"no TLS"])
def test_servers_that_end_it_in_the_handshake(who: str, answer: bytes) -> None:
    tls = ssl.create_default_context()

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(end, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for _ in range(TIMES):
            with suppress(PodkeepError, OSError):
                if who == "probe":
                    await dialing.connect("127.0.0.1", port, tls)
                else:
                    await Backend.connect(Address(host="127.0.0.1", port=port, tls=tls))
                raise AssertionError("there is a connection")
        await until_none()
        server.close()

    asyncio.run(work())


@pytest.mark.parametrize("length", [0, 1_000_000])
def test_clients_that_break_a_request_off(length: int) -> None:
    """What came of it goes with the connection, whether it waited for a request or for its body."""

    async def read(request: Request) -> Response:
        await request.body.read(1_000_000)
        return Response()

    async def work() -> None:
        server = Server("test", read, Limits(idle_timeout=TIMEOUT_S))
        listening = tcp_socket("127.0.0.1", 0)
        server.start([listening])
        for _ in range(TIMES):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length + bytes(length // 10))
            async with asyncio.timeout(TIMEOUT_S):
                if not length:
                    await reader.readuntil(b"\r\n\r\n")
                while length and not server.pool.kept:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            writer.transport.abort()
        async with asyncio.timeout(TIMEOUT_S):
            while len(server) or connections():  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        await server.close()

    asyncio.run(work())
