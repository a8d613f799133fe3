"""Connections that are passed on: what they take of memory goes with them."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from podkeep.base.errors import Unavailable
from podkeep.http.backend import RELAYED_BYTES, Address, Backend
from podkeep.http.budget import MUCH_BYTES, Pool
from podkeep.http.connection import Limits
from podkeep.http.listener import tcp_socket
from podkeep.http.messages import Refused, Request, Response, Upgrade
from podkeep.http.server import Server
from podkeep.http.transport import Transport
from support.waiting import TIMEOUT_S

HEAD = b"GET / HTTP/1.1\r\nHost: front\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n"
ANSWER = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n"
CLIENTS = MUCH_BYTES // RELAYED_BYTES


@pytest.fixture
def no_cycles() -> Iterator[None]:
    """Nothing is freed that refers to itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Upgrade, and send until nothing is taken any more."""
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        while True:
            writer.write(bytes(65536))
            await writer.drain()
    except OSError:
        writer.close()


@asynccontextmanager
async def passing_on(pool: Pool, held: list[weakref.ref[Any]]) -> AsyncIterator[int]:
    """Serve a port whose connections are passed on to a server that sends all the time."""
    behind = await asyncio.start_server(flood, "127.0.0.1", 0)

    async def answer(request: Request) -> Upgrade:
        backend = await Backend.connect(Address(host="127.0.0.1", port=behind.sockets[0].getsockname()[1]))

        async def session(transport: Transport) -> None:
            held.extend((weakref.ref(backend), weakref.ref(transport)))
            await backend.splice(transport)

        request.at_end.callback(backend.abort)
        await backend.ask("GET", "/", [("Host", "behind"), ("Connection", "Upgrade"), ("Upgrade", "raw")])
        return Upgrade(headers=[("Connection", "Upgrade"), ("Upgrade", "raw")], session=session, idle_timeout=TIMEOUT_S)

    front = Server("front", answer, Limits(), pool)
    listening = tcp_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    front.start([listening])
    try:
        yield port
    finally:
        await front.close()
        behind.close()


async def client(port: int) -> socket.socket:
    """Return a connection that was upgraded, and takes nothing any more."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, HEAD)
    await loop.sock_recv(sock, 10)
    return sock


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not true():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.usefixtures("no_cycles")
def test_nothing_of_a_connection_that_broke_waits_for_pythons_search_for_cycles() -> None:
    """Each had more than a MiB, until some hundred thousand objects more were made."""

    async def work() -> None:
        held: list[weakref.ref[Any]] = []
        async with passing_on(Pool(), held) as port:
            clients = [await client(port) for _ in range(5)]
            for sock in clients:
                reset(sock)
            await until(lambda: len(held) == 10 and not any(item() for item in held))

    asyncio.run(work())


@pytest.mark.slow
def test_memory_is_given_back_after_many_connections() -> None:
    async def work() -> None:
        shrunk = asyncio.Event()
        pool = Pool(on_shrunk=shrunk.set)
        async with asyncio.timeout(TIMEOUT_S), passing_on(pool, []) as port:
            clients = [await client(port) for _ in range(CLIENTS)]
            assert not shrunk.is_set()
            for sock in clients:
                reset(sock)
            await shrunk.wait()
            await until(lambda: not pool.kept)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"HTTP/1.1 413 \r\nContent-Length: 5\r\n\r\nlarge", 413),
        (b"HTTP/1.1 204 \r\n\r\n", 204),
        (b"", 503),
        (b"nonsense\r\n\r\n", 503),
    ],
    ids=["body", "no body", "end", "no answer"],
)
def test_an_answer_that_comes_before_the_end_of_its_request_arrives(
    caplog: pytest.LogCaptureFixture, said: bytes, status: int
) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()
        writer.write_eof()
        with suppress(OSError):
            await reader.read()
        writer.close()

    async def work() -> bytes:
        behind = await asyncio.start_server(say, "127.0.0.1", 0)
        address = Address(host="127.0.0.1", port=behind.sockets[0].getsockname()[1])

        async def answer(request: Request) -> Response:
            backend = await Backend.connect(address)
            request.at_end.callback(backend.abort)
            headers = [("Host", "behind"), ("Content-Length", str(request.body.length))]
            try:
                await request.while_there(backend.ask("POST", "/", headers, request.body))
            except Unavailable as error:
                raise Refused(503, error.message) from error
            return Response(status=backend.status, body=backend.body())

        front = Server("front", answer, Limits(idle_timeout=TIMEOUT_S))
        listening = tcp_socket("127.0.0.1", 0)
        port = listening.getsockname()[1]
        front.start([listening])
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: front\r\nContent-Length: 1000000\r\n\r\nbegun")
            head = await reader.readuntil(b"\r\n\r\n")
            # What was on its way must not reset the connection before the client has read the answer.
            writer.write(bytes(1000))
            writer.write_eof()
            rest = await reader.read()
            writer.close()
            await front.close()
            behind.close()
        return head + rest

    got = asyncio.run(work())
    assert got.startswith(b"HTTP/1.1 %d " % status)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
