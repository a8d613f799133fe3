"""TLS that is broken off in its handshake, from either side: what it takes of memory goes with the connection."""

from __future__ import annotations

import asyncio
import gc
import ssl
from asyncio import sslproto
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from podkeep.agent.probes import dialing
from podkeep.base.errors import PodkeepError
from podkeep.http.backend import Address, Backend
from podkeep.http.connection import Limits
from podkeep.http.listener import tcp_socket
from podkeep.http.messages import Request, Response
from podkeep.http.self_signed import ensure
from podkeep.http.server import Server
from podkeep.http.tls import server_context
from support.timeout import TIMEOUT_S

BEGINNING = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""Of a client's first message, whose rest never comes."""
TIMES = 5


@pytest.fixture(autouse=True)
def no_cycles() -> Iterator[None]:
    """Nothing is freed that refers to itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def ends() -> int:
    """Return how many ends of TLS connections there are."""
    return sum(isinstance(item, sslproto._SSLProtocolTransport) for item in gc.get_objects())


async def until_none() -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while ends():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def nothing(_: Request) -> Response:
    return Response()


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
