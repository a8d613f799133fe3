"""The HTTP server core with real sockets: what a client may do, what it gets, and what is given back."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec import structs

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.http.budget import HELD_BYTES, MUCH_BYTES, ClientGone, Pool
from podkeep.http.connection import PIECE_BYTES, Limits
from podkeep.http.listener import Connection, Listener, tcp_socket, unix_socket
from podkeep.http.messages import Handler, Refused, Request, Response, Upgrade, framed
from podkeep.http.server import Server
from podkeep.http.tls import server_context
from podkeep.http.transport import Transport
from support.waiting import TIMEOUT_S

KEPT = Limits(idle_timeout=TIMEOUT_S)
GET = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"
SWITCH = b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"


@dataclass
class Client:
    """A client that says and reads bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def response(self, *, body: bool = True) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the next response."""
        line, *fields = (await self.reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
        content = b""
        if body and "content-length" in headers:
            content = await self.reader.readexactly(int(headers["content-length"]))
        elif body and headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readline(), 16):
                content += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
        return int(line.split()[1]), headers, content

    async def rest(self) -> bytes:
        """Return all that comes until the connection ends, in whatever way."""
        found = b""
        with suppress(ConnectionResetError):
            while part := await self.reader.read(65536):
                found += part
        return found

    def leave(self) -> None:
        self.writer.transport.abort()


@dataclass
class Serving:
    """A server that runs, and its clients."""

    server: Server
    pool: Pool
    address: tuple[str, int] | str
    clients: list[Client]

    async def connect(self, tls: ssl.SSLContext | None = None) -> Client:
        if isinstance(self.address, str):
            client = Client(*await asyncio.open_unix_connection(self.address))
        else:
            client = Client(*await asyncio.open_connection(*self.address, ssl=tls, limit=4096))
        self.clients.append(client)
        return client

    async def ask(self, data: bytes) -> Client:
        client = await self.connect()
        client.send(data)
        return client


@asynccontextmanager
async def serving(
    handler: Handler, limits: Limits = KEPT, *, tls: ssl.SSLContext | None = None, path: Path | None = None
) -> AsyncIterator[Serving]:
    """Serve, within a time. Nothing is left of it at the end."""
    pool = Pool(100_000)
    server = Server("test", handler, limits, pool)
    sock = tcp_socket("127.0.0.1", 0) if path is None else unix_socket(path)
    started = Serving(server, pool, sock.getsockname(), [])
    server.start([sock], tls)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield started
            await server.close()
        assert (len(server), pool.kept, pool.used) == (0, 0, 0)
    finally:
        await server.close()
        for client in started.clients:
            client.leave()


@pytest.fixture
def run(caplog: pytest.LogCaptureFixture) -> Callable[[Awaitable[None]], None]:
    """Run a scenario; nothing may fail in the background."""

    def run_it(scenario: Awaitable[None]) -> None:
        failures: list[dict[str, Any]] = []
        caplog.set_level(logging.INFO)

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
            before = asyncio.all_tasks()
            descriptors = len(os.listdir("/proc/self/fd"))
            await scenario
            await until(lambda: asyncio.all_tasks() == before)
            await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
            gc.collect()

        asyncio.run(main())
        assert failures == []
        # A client could fill the log with what it is refused; asyncio warns of each piece that is written to a
        # connection that is gone.
        assert [
            record.getMessage() for record in caplog.records if record.name.startswith(("podkeep", "asyncio"))
        ] == []

    return run_it


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not true():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_is_short_is_sent_at_once(host: str) -> None:
    """Nagle's algorithm and delayed acknowledgements have a client wait 40 ms for the first answer after TLS."""
    found: list[int] = []

    async def serve(connection: Connection) -> None:
        connected = connection.writer.get_extra_info("socket")
        found.append(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async def scenario() -> None:
        listener = Listener(serve, limit=1, admitted=None, handshake_timeout=TIMEOUT_S)
        sock = tcp_socket(host, 0)
        place = sock.getsockname()[:2]
        listener.start([sock])
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*place)
            with suppress(ConnectionResetError):
                await reader.read()
        writer.transport.abort()
        await listener.close()

    asyncio.run(scenario())
    assert found == [1]


def test_many_who_come_at_once_are_taken_in_few_turns_of_the_event_loop(tmp_path: Path) -> None:
    """Who comes after them waits for the work of others as often as there are turns."""
    path = tmp_path / "socket"

    async def serve(_: Connection) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        listener = Listener(serve, limit=200, admitted=None, handshake_timeout=TIMEOUT_S)
        listener.start([unix_socket(path)])
        turns = 0
        with ExitStack() as held:
            for _ in range(100):
                held.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
            async with asyncio.timeout(TIMEOUT_S):
                while len(listener) < 100:
                    await asyncio.sleep(0)
                    turns += 1
            assert turns <= 25
            await listener.close()

    asyncio.run(scenario())


async def answer_path(request: Request) -> Response:
    return Response(headers=[("Content-Type", "text/plain")], body=request.target.encode())


# requests and whole responses


def test_requests_on_one_connection_are_answered_in_turn(run: Any) -> None:
    async def scenario() -> None:
        async with serving(answer_path) as given:
            client = await given.ask(b"GET /a?b=%20c HTTP/1.1\r\nHost: x\r\n\r\n")
            status, headers, body = await client.response()
            assert (status, body) == (200, b"/a?b=%20c")
            assert headers["content-type"] == "text/plain"
            assert "date" in headers
            assert "connection" not in headers
            client.send(b"HEAD /1234 HTTP/1.1\r\nHost: x\r\n\r\n")
            status, headers, _ = await client.response(body=False)
            assert (status, headers["content-length"]) == (200, "5")
            client.send(b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await client.response())[2] == b"/last"
            assert await client.rest() == b""

    run(scenario())


def test_requests_sent_ahead_are_answered_in_their_order(run: Any) -> None:
    running = 0

    async def handler(request: Request) -> Response:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        running -= 1
        return await answer_path(request)

    async def scenario() -> None:
        async with serving(handler) as given:
            requests = [b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(200)]
            client = await given.ask(b"".join(requests))
            assert [(await client.response())[2] for _ in requests] == [b"/%d" % number for number in range(200)]

    run(scenario())


def test_a_request_in_single_bytes_is_read(run: Any) -> None:
    async def handler(request: Request) -> Response:
        return Response(body=await request.body.read(10))

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.connect()
            for byte in b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody":
                client.send(bytes((byte,)))
                await client.writer.drain()
                await asyncio.sleep(0)
            assert (await client.response())[2] == b"body"

    run(scenario())


def test_a_large_response_is_written_in_pieces(run: Any) -> None:
    body = os.urandom(5_000_001)

    async def handler(_: Request) -> Response:
        return Response(body=body)

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(GET + GET)
            for _ in range(2):
                assert (await client.response())[2] == body

    run(scenario())


HOSTILE = b" " * 15_000 + b"\0"


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\na:" + HOSTILE + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\na:" + HOSTILE[:-1] + b"\rb\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\na:" + b"\n " * 7_000 + b"\n \0\r\n\r\n",
    ],
    ids=["blanks", "carriage return", "folded"],
)
def test_what_takes_long_to_parse_is_refused_before(said: bytes, pieces: int, run: Any) -> None:
    """A line with thousands of blanks before a byte that no header may have cost the square of their number."""

    async def handler(request: Request) -> Response:
        raise AssertionError

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.connect()
            size = -(-len(said) // pieces)
            for start in range(0, len(said), size):
                client.send(said[start : start + size])
                await client.writer.drain()
            status, _, body = await client.response()
            assert (status, body) == (
                400,
                b"not an HTTP/1.1 request: a byte that no head may have, or a folded line\n",
            )

    run(scenario())


def test_what_follows_a_request_is_looked_at_as_well(run: Any) -> None:
    async def handler(request: Request) -> Response:
        return Response(body=await request.body.read(1000))

    async def scenario() -> None:
        async with serving(handler) as given:
            post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nb \0y"
            client = await given.ask(post + b"GET / HTTP/1.1\r\nHost: x\r\na:" + HOSTILE + b"\r\n\r\n")
            assert (await client.response())[2] == b"b \0y"
            assert (await client.response())[0] == 400

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"0\r\na:" + HOSTILE + b"\r\n\r\n", b"a byte that no head may have, or a folded line"),
        (b"1;" + b" " * 15_000 + b"\nx\r\n0\r\n\r\n", b"illegal chunk header"),
        (b"0\r\n" + b"a: b\r\n" * 10_000 + b"\r\n", b"more than 16384 bytes"),
    ],
    ids=["trailer", "chunk", "many trailers"],
)
def test_chunks_that_take_long_to_parse_are_refused_before(said: bytes, words: bytes, pieces: int, run: Any) -> None:
    async def handler(request: Request) -> Response:
        return Response(body=await request.body.read(1000))

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
            before = time.process_time()
            size = -(-len(said) // pieces)
            for start in range(0, len(said), size):
                client.send(said[start : start + size])
                await client.writer.drain()
            status, headers, body = await client.response()
            assert (status in (400, 431), headers["connection"]) == (True, "close")
            assert words in body
            assert time.process_time() - before < 1

    run(scenario())


def test_trailers_and_what_follows_them(run: Any) -> None:
    async def handler(request: Request) -> Response:
        return Response(body=await request.body.read(1000))

    async def scenario() -> None:
        async with serving(handler) as given:
            post = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            chunks = b"2;name=x\r\n\0\n\r\n1\r\ny\r\n"
            for trailers in (b"0\r\na: b\r\nc: d\r\n\r\n", b"0\r\n\r\n"):
                client = await given.ask((post + chunks + trailers) * 2 + GET)
                for _ in range(2):
                    assert (await client.response())[::2] == (200, b"\0\ny")
                assert (await client.response())[0] == 200
                byte_by_byte = await given.connect()
                for byte in post + chunks + trailers:
                    byte_by_byte.send(bytes([byte]))
                    await asyncio.sleep(0)
                assert (await byte_by_byte.response())[2] == b"\0\ny"

    run(scenario())


def test_headers_with_bytes_above_ascii_are_sent_as_they_are(run: Any) -> None:
    async def handler(request: Request) -> Response:
        return Response(headers=[("A", *request.headers["a"])])

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(b"GET / HTTP/1.1\r\nHost: x\r\nA: gr\xfcn\r\n\r\n")
            assert b"\r\nA: gr\xfcn\r\n" in await client.reader.readuntil(b"\r\n\r\n")

    run(scenario())


def test_chunks_that_nobody_asked_for_are_not_parsed(run: Any) -> None:
    async def handler(_: Request) -> Response:
        return Response(body=b"ok")

    async def scenario() -> None:
        async with serving(handler) as given:
            post = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            client = await given.ask(post + b"1;" + b" " * 15_000 + b"\nx\r\n0\r\na:" + HOSTILE + b"\r\n\r\n")
            status, headers, body = await client.response()
            assert (status, headers["connection"], body) == (200, "close", b"ok")

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n a: folded\r\n\x00: y\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -4\r\n\r\nbody", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /" + b"x" * 16_400 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET /" + b"x" * 1_000_000, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 100_000, 431),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_closed(head: bytes, status: int, run: Any) -> None:
    async def handler(_: Request) -> Response:
        raise AssertionError

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(head)
            found, headers, body = await client.response()
            assert (found, headers["connection"]) == (status, "close")
            assert b"xxx" not in body
            assert await client.rest() == b""

    run(scenario())


def test_a_client_of_http_1_0_gets_a_body_without_chunks(run: Any) -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"one "
        yield b"two"

    async def handler(_: Request) -> Response:
        return Response(body=chunks())

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(b"GET / HTTP/1.0\r\n\r\n")
            _, headers, _ = await client.response(body=False)
            assert "transfer-encoding" not in headers
            assert await client.rest() == b"one two"

    run(scenario())


# time


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", b"GET /x HTTP/1.1\r\nHost: "])
def test_a_request_that_does_not_come_ends_the_connection(said: bytes, run: Any) -> None:
    async def scenario() -> None:
        async with serving(answer_path, Limits(head_timeout=0.1)) as given:
            client = await given.ask(said)
            assert await client.rest() == b""

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
def test_a_second_request_that_has_begun_has_no_more_time_than_the_first(together: bool, run: Any) -> None:
    limits = Limits(idle_timeout=TIMEOUT_S)

    async def scenario() -> None:
        async with serving(answer_path, limits) as given:
            client = await given.ask(GET + b"GET" if together else GET)
            # Only from now on: on a busy machine the first request would be too late, too.
            structs.force_setattr(limits, "head_timeout", 0.1)
            assert (await client.response())[2] == b"/x"
            client.send(b" /half" if together else b"GET /half")
            assert await client.rest() == b""

    run(scenario())


@pytest.mark.slow
def test_a_head_that_comes_slowly_has_no_more_time_than_another(run: Any) -> None:
    async def scenario() -> None:
        async with serving(answer_path, Limits(head_timeout=0.2)) as given:
            client = await given.ask(b"GET /")
            ended = asyncio.ensure_future(client.rest())
            while not ended.done():
                client.send(b"x")
                await asyncio.sleep(0.01)
            assert await ended == b""

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("idle", [0.0, 0.1])
def test_a_connection_is_kept_for_as_long_as_the_server_likes(idle: float, run: Any) -> None:
    async def scenario() -> None:
        async with serving(answer_path, Limits(idle_timeout=idle)) as given:
            client = await given.ask(GET)
            _, headers, _ = await client.response()
            assert headers.get("connection") == (None if idle else "close")
            assert await client.rest() == b""

    run(scenario())


# bodies of requests


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("length", "status"), [(0, 200), (1000, 200), (1001, 413), (300_000, 413)])
def test_a_body_is_read_up_to_the_limit_of_its_handler(length: int, status: int, chunked: bool, run: Any) -> None:
    async def handler(request: Request) -> Response:
        return Response(body=await request.body.read(1000))

    async def scenario() -> None:
        body = os.urandom(length)
        head, sent = b"Content-Length: %d" % length, body
        if chunked:
            head = b"Transfer-Encoding: chunked"
            parts = [body[start : start + 7] for start in range(0, length, 7)]
            sent = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        async with serving(handler) as given:
            client = await given.ask(b"POST / HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % head + sent)
            found, headers, answer = await client.response()
            assert found == status
            if status == 200:
                assert answer == body
                client.send(b"GET /again HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await client.response())[0] == 200
            else:
                assert headers["connection"] == "close"
                assert await client.rest() == b""

    run(scenario())


def test_a_client_that_asks_first_is_told_to_go_on_or_refused(run: Any) -> None:
    async def handler(request: Request) -> Response:
        return Response(body=await request.body.read(10))

    async def scenario() -> None:
        async with serving(handler) as given:
            head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
            client = await given.ask(head % 4)
            assert (await client.response(body=False))[0] == 100
            client.send(b"body")
            assert (await client.response())[2] == b"body"
            client.send(head % 11)
            assert (await client.response())[0] == 413

    run(scenario())


@pytest.mark.parametrize("expects", [b"", b"Expect: 100-continue\r\n"])
def test_a_client_that_left_before_its_body_is_nothing_unexpected(expects: bytes, run: Any) -> None:
    asked, left, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> Response:
        request.at_end.callback(ended.set)
        asked.set()
        await left.wait()
        return Response(body=await request.body.read(10))

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(b"POST / HTTP/1.1\r\nHost: x\r\n%bContent-Length: 4\r\n\r\n" % expects)
            await asked.wait()
            sock = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            client.leave()
            for _ in range(20):
                await asyncio.sleep(0)
            left.set()
            await ended.wait()

    run(scenario())


def test_a_client_that_left_before_it_is_looked_for_is_nothing_unexpected(run: Any) -> None:
    asked, left = asyncio.Event(), asyncio.Event()
    found: list[str] = []

    async def work() -> None:
        found.append("done")

    async def handler(request: Request) -> Response:
        asked.set()
        await left.wait()
        try:
            await request.while_there(work())
        except ClientGone:
            found.append("gone")
            raise
        return Response()

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(GET)
            await asked.wait()
            sock = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            client.leave()
            for _ in range(20):
                await asyncio.sleep(0)
            left.set()
            await until(lambda: len(given.server) == 0)

    run(scenario())
    assert found == ["gone"]


def test_what_was_made_when_the_client_left_is_not_lost(run: Any) -> None:
    """A connection to another server that was made in the turn in which the client left had nobody to close it."""
    asked, left = asyncio.Event(), asyncio.Event()
    found: list[str] = []

    def is_watched() -> bool:
        return any(getattr(task.get_coro(), "__name__", "") == "_fail_when" for task in asyncio.all_tasks())

    async def work() -> str:
        asked.set()
        await left.wait()
        # Runs in each turn, and so also in the one between the end of who watches the client and its consequence.
        while is_watched():  # noqa: ASYNC110 - the turn itself is what is waited for
            await asyncio.sleep(0)
        return "made"

    async def handler(request: Request) -> Response:
        request.at_end.callback(found.append, "ended")
        found.append(await request.while_there(work()))
        return Response()

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(GET)
            await asked.wait()
            assert is_watched()
            client.leave()
            left.set()
            await until(lambda: len(given.server) == 0)

    run(scenario())
    assert found == ["made", "ended"]


def test_a_body_in_pieces_is_not_kept(run: Any) -> None:
    sizes: list[int] = []

    async def handler(request: Request) -> Response:
        async for piece in request.body:
            sizes.append(len(piece))
        return Response(body=b"%d" % sum(sizes))

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n")
            for _ in range(50):
                client.send(bytes(100_000))
                await client.writer.drain()
            assert (await client.response())[2] == b"5000000"
            assert max(sizes) <= 2 * PIECE_BYTES
            assert given.pool.kept == 0

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("read", [True, False])
def test_a_body_that_does_not_come_is_not_waited_for(read: bool, run: Any) -> None:
    async def handler(request: Request) -> Response:
        return Response(body=await request.body.read(1000) if read else b"not read")

    async def scenario() -> None:
        async with serving(handler, Limits(body_timeout=0.1, write_timeout=0.1, idle_timeout=TIMEOUT_S)) as given:
            client = await given.ask(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\nhalf")
            status, headers, _ = await client.response()
            assert (status, headers["connection"]) == (408 if read else 200, "close")
            assert await client.rest() == b""

    run(scenario())


@pytest.mark.slow
def test_a_body_that_comes_in_single_bytes_has_no_more_time_than_another(run: Any) -> None:
    async def handler(request: Request) -> Response:
        return Response(body=await request.body.read(1000_000))

    async def scenario() -> None:
        async with serving(handler, Limits(body_timeout=0.2, write_timeout=0.1)) as given:
            client = await given.ask(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
            answered = asyncio.ensure_future(client.response())
            while not answered.done():
                client.send(b"x")
                await asyncio.sleep(0.01)
            assert (await answered)[0] == 408

    run(scenario())


def test_what_was_not_read_of_a_body_does_not_become_a_request(run: Any) -> None:
    async def scenario() -> None:
        async with serving(answer_path) as given:
            inner = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
            head = b"POST /first HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(inner)
            client = await given.ask(head + inner + GET)
            assert (await client.response())[2] == b"/first"
            assert (await client.response())[2] == b"/x"

    run(scenario())


def test_bodies_of_all_clients_together_are_bounded(run: Any) -> None:
    """Each has 64 KiB in any case; above that 100,000 bytes are for all (``serving``)."""
    go_on = asyncio.Event()

    async def handler(request: Request) -> Response:
        await request.body.read(1_000_000)
        await go_on.wait()
        return Response()

    def post(length: int) -> bytes:
        return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length + bytes(length)

    async def scenario() -> None:
        async with serving(handler) as given:
            first = await given.ask(post(160_000))
            await until(lambda: given.pool.kept == 160_000)
            second = await given.ask(post(160_000))
            status, headers, _ = await second.response()
            assert (status, headers["retry-after"]) == (503, "1")
            small = await given.ask(post(60_000))
            await until(lambda: given.pool.kept == 220_000)
            go_on.set()
            for client in (first, small):
                assert (await client.response())[0] == 200
            assert given.pool.kept == 0

    run(scenario())


# what handlers raise


def test_a_handler_refuses(run: Any) -> None:
    async def handler(_: Request) -> Response:
        raise Refused(403, "not here", [("X-Why", "because")])

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(GET)
            status, headers, body = await client.response()
            assert (status, headers["x-why"], headers["connection"], body) == (403, "because", "close", b"not here\n")
            assert await client.rest() == b""

    run(scenario())


@pytest.mark.parametrize("error", [ValueError("secret"), OSError("secret"), InvalidArgument("secret")])
def test_a_handler_that_fails_is_an_internal_error(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(_: Request) -> Response:
        raise error

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(b"GET /path HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
            for _ in range(2):
                status, _, body = await client.response()
                assert status == 500
                assert b"secret" not in body

    asyncio.run(scenario())
    failed = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in failed] == ["the handler of a test request (GET) failed unexpectedly"] * 2
    assert failed[0].exc_info is not None
    assert failed[0].exc_info[1] is error


# chunked responses


def test_chunks_are_sent_as_they_are_made(run: Any) -> None:
    go_on = asyncio.Queue[bytes]()

    async def chunks() -> AsyncGenerator[bytes, None]:
        while chunk := await go_on.get():
            yield chunk
            yield b""

    async def handler(_: Request) -> Response:
        return Response(headers=[("Content-Type", "x/y")], body=chunks())

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(GET)
            _, headers, _ = await client.response(body=False)
            assert (headers["transfer-encoding"], headers["content-type"]) == ("chunked", "x/y")
            for chunk, most in ((b"one", PIECE_BYTES), (b"2" * 100_000, 100_000), (b"3" * 200_000, PIECE_BYTES)):
                go_on.put_nowait(chunk)
                for start in range(0, len(chunk), most):
                    part = chunk[start : start + most]
                    assert await client.reader.readline() == b"%x\r\n" % len(part)
                    assert await client.reader.readexactly(len(part) + 2) == part + b"\r\n"
            go_on.put_nowait(b"")
            assert await client.reader.readexactly(5) == b"0\r\n\r\n"
            go_on.put_nowait(b"")
            client.send(GET)
            assert (await client.response())[2] == b""

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_chunks_are_written_at_once_while_the_next_is_waited_for(version: bytes, run: Any) -> None:
    requests = asyncio.Queue[Request]()
    go_on = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"one"
        await go_on.wait()
        yield b"three"

    async def handler(request: Request) -> Response:
        assert not request.write_now(framed(b"before the head"))
        requests.put_nowait(request)
        return Response(body=chunks())

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(b"GET / HTTP/%b\r\nHost: a\r\n\r\n" % version)
            await client.response(body=False)
            chunked = version == b"1.1"
            first = b"3\r\none\r\n" if chunked else b"one"
            assert await client.reader.readexactly(len(first)) == first
            request = await requests.get()
            assert request.write_now(framed(b"two")) == chunked
            go_on.set()
            rest = b"3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n" if chunked else b"three"
            assert await client.reader.readexactly(len(rest)) == rest
            assert not request.write_now(framed(b"after the end"))

    run(scenario())


def test_nothing_is_written_at_once_to_a_client_that_takes_nothing(run: Any) -> None:
    requests = asyncio.Queue[Request]()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"first"
        await asyncio.Event().wait()

    async def handler(request: Request) -> Response:
        requests.put_nowait(request)
        return Response(body=chunks())

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(GET)
            await client.response(body=False)
            request = await requests.get()
            await client.reader.readexactly(len(b"5\r\nfirst\r\n"))
            written = 0
            while written < 1000 and request.write_now(framed(b"x" * 65536)):
                written += 1
            assert 0 < written < 1000

    run(scenario())


@dataclass
class Watch:
    """A response that has nothing to say, and what became of it."""

    started: asyncio.Event
    closed: asyncio.Event
    at_end: asyncio.Event

    @classmethod
    def new(cls) -> Watch:
        return cls(asyncio.Event(), asyncio.Event(), asyncio.Event())

    async def chunks(self, wait: Awaitable[Any] | None = None) -> AsyncGenerator[bytes, None]:
        try:
            self.started.set()
            yield b"first"
            await (wait or asyncio.Event().wait())
        finally:
            self.closed.set()

    async def __call__(self, request: Request) -> Response:
        request.admit()
        request.at_end.callback(self.at_end.set)
        return Response(body=self.chunks(request.stopping.wait()))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["abort", "half", "flood"])
def test_a_response_ends_with_its_client_also_when_it_has_nothing_to_say(end: str, run: Any) -> None:
    async def scenario() -> None:
        watch = Watch.new()
        async with serving(watch) as given:
            client = await given.ask(GET)
            await client.response(body=False)
            assert await client.reader.readexactly(10) == b"5\r\nfirst\r\n"
            if end == "half":
                client.writer.write_eof()
            elif end == "flood":
                client.send(GET * 1000)
                await client.writer.drain()
                client.writer.close()
            else:
                client.leave()
            await watch.closed.wait()
            await watch.at_end.wait()
            await until(lambda: len(given.server) == 0)

    run(scenario())


def test_a_generator_is_closed_also_when_nothing_of_it_is_sent(run: Any) -> None:
    async def scenario() -> None:
        watch = Watch.new()
        async with serving(watch) as given:
            client = await given.ask(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
            _, headers, _ = await client.response(body=False)
            assert headers["transfer-encoding"] == "chunked"
            await watch.at_end.wait()
            assert not watch.started.is_set()
            watch.at_end.clear()
            client.send(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await client.response(body=False)
            assert await client.rest() == b""
            assert watch.at_end.is_set()

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_a_client_that_takes_nothing_is_cut_off(whole: bool, run: Any) -> None:
    made = 0
    ended = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        nonlocal made
        while True:
            made += PIECE_BYTES
            yield bytes(PIECE_BYTES)

    async def handler(request: Request) -> Response:
        request.at_end.callback(ended.set)
        return Response(body=bytes(50_000_000) if whole else chunks())

    async def scenario() -> None:
        async with serving(handler, Limits(write_timeout=0.2)) as given:
            await given.ask(GET)
            await ended.wait()
            await until(lambda: len(given.server) == 0)
            # What buffers between us hold.
            assert made < 5_000_000

    run(scenario())


def test_a_client_that_takes_slowly_gets_all(run: Any) -> None:
    ahead = 0

    async def chunks() -> AsyncGenerator[bytes, None]:
        nonlocal ahead
        for number in range(200):
            ahead += 1
            yield bytes((number,)) * 50_000

    async def handler(_: Request) -> Response:
        return Response(body=chunks())

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(GET)
            await client.response(body=False)
            for number in range(200):
                assert await client.reader.readline() == b"c350\r\n"
                assert await client.reader.readexactly(50_002) == bytes((number,)) * 50_000 + b"\r\n"
                assert ahead - number < 100
            assert await client.reader.readexactly(5) == b"0\r\n\r\n"

    run(scenario())


def test_a_response_that_fails_is_broken_off(caplog: pytest.LogCaptureFixture) -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"first"
        raise ValueError("broken")

    async def handler(_: Request) -> Response:
        return Response(body=chunks())

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(GET)
            await client.response(body=False)
            assert await client.rest() == b"5\r\nfirst\r\n"

    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        "a connection failed unexpectedly"
    ]


# upgrades


async def echo(transport: Transport) -> None:
    while data := await transport.receive():
        await transport.send(data)
    await transport.close()


def switching(session: Callable[[Transport], Awaitable[None]], idle_timeout: float = TIMEOUT_S) -> Handler:
    async def handler(request: Request) -> Upgrade:
        assert request.upgrade == "echo"
        headers = [("connection", "Upgrade"), ("upgrade", "echo")]
        return Upgrade(headers=headers, session=session, idle_timeout=idle_timeout)

    return handler


@pytest.mark.slow
@pytest.mark.parametrize("unix", [False, True])
def test_what_a_client_sends_with_its_upgrade_belongs_to_the_session(unix: bool, run: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(switching(echo), path=tmp_path / "socket" if unix else None) as given:
            client = await given.ask(SWITCH + b"early ")
            status, headers, _ = await client.response(body=False)
            assert (status, headers["upgrade"], "date" in headers) == (101, "echo", False)
            client.send(b"late")
            assert await client.reader.readexactly(10) == b"early late"
            client.writer.write_eof()
            assert await client.rest() == b""

    run(scenario())


def test_an_upgrade_may_follow_another_request(run: Any) -> None:
    switch = switching(echo)

    async def handler(request: Request) -> Response | Upgrade:
        return await (switch(request) if request.upgrade else answer_path(request))

    async def scenario() -> None:
        async with serving(handler) as given:
            client = await given.ask(GET + SWITCH + b"early")
            assert (await client.response())[2] == b"/x"
            assert (await client.response(body=False))[0] == 101
            assert await client.reader.readexactly(5) == b"early"

    run(scenario())


def test_a_client_that_asks_for_an_upgrade_may_get_a_response(run: Any) -> None:
    async def scenario() -> None:
        async with serving(answer_path) as given:
            client = await given.ask(SWITCH + GET)
            for _ in range(2):
                assert (await client.response())[2] == b"/x"

    run(scenario())


def test_an_upgrade_has_no_body(run: Any) -> None:
    async def scenario() -> None:
        async with serving(switching(echo)) as given:
            client = await given.ask(SWITCH.replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\nbody"))
            assert (await client.response())[0] == 413

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("end", ["idle", "returns", "leaves", "stop"])
def test_a_session_ends(end: str, run: Any) -> None:
    async def scenario() -> None:
        ended = asyncio.Event()

        async def session(transport: Transport) -> None:
            try:
                if end == "leaves":
                    # Nothing is read; the kernel says that the client has left.
                    await transport.account.hangup.wait()
                elif end != "returns":
                    await echo(transport)
            finally:
                ended.set()

        async with serving(switching(session, 0.1 if end == "idle" else TIMEOUT_S)) as given:
            client = await given.ask(SWITCH)
            assert (await client.response(body=False))[0] == 101
            if end == "leaves":
                client.writer.close()
            elif end == "stop":
                await given.server.close()
            else:
                assert await client.rest() == b""
            await ended.wait()
            await until(lambda: len(given.server) == 0)

    run(scenario())


# numbers of connections


def test_for_one_more_connection_the_oldest_goes_that_has_no_request(run: Any) -> None:
    async def handler(request: Request) -> Response:
        return await watch(request) if request.target == "/watch" else await answer_path(request)

    watch = Watch.new()

    async def scenario() -> None:
        async with serving(handler, Limits(waiting=3, idle_timeout=TIMEOUT_S)) as given:
            watching = await given.ask(b"GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
            await watching.response(body=False)
            clients = [await given.ask(GET) for _ in range(3)]
            for client in clients:
                await client.response()
            # Who has been answered last is the last to go.
            clients[0].send(GET)
            await clients[0].response()
            newcomer = await given.ask(GET)
            assert (await newcomer.response())[0] == 200
            assert await clients[1].rest() == b""
            for client in (clients[0], clients[2], newcomer):
                client.send(GET)
                assert (await client.response())[0] == 200
            assert not watch.closed.is_set()

    run(scenario())


def test_requests_that_are_admitted_are_bounded(run: Any) -> None:
    watch = Watch.new()

    async def scenario() -> None:
        async with serving(watch, Limits(admitted=2, idle_timeout=TIMEOUT_S)) as given:
            clients = [await given.ask(GET) for _ in range(2)]
            for client in clients:
                assert (await client.response(body=False))[0] == 200
            third = await given.ask(GET)
            status, headers, _ = await third.response()
            assert (status, headers["retry-after"]) == (503, "1")
            clients[0].leave()
            await watch.at_end.wait()
            await until(lambda: len(given.server) == 1)
            fourth = await given.ask(GET)
            assert (await fourth.response(body=False))[0] == 200

    run(scenario())


def test_for_one_more_who_has_the_most_that_are_admitted_loses_the_newest(run: Any) -> None:
    async def follow(request: Request) -> Response:
        request.admit(request.target[1:])
        return Response(body=Watch.new().chunks(request.stopping.wait()))

    async def scenario() -> None:
        async with serving(follow, Limits(admitted=4, idle_timeout=TIMEOUT_S)) as given:

            async def ask(owner: bytes) -> tuple[Client, int]:
                client = await given.ask(GET.replace(b"/", b"/" + owner, 1))
                return client, (await client.response(body=False))[0]

            many = [await ask(b"many") for _ in range(4)]
            assert [status for _, status in many] == [200] * 4
            for left in (3, 2):
                assert (await ask(b"few"))[1] == 200
                ended = many[left][0]
                assert await ended.reader.read() in (b"", b"5\r\nfirst\r\n")
            # Both have two now; nobody else has more than one less than they would have.
            assert (await ask(b"few"))[1] == 503
            assert (await ask(b"many"))[1] == 503
            assert (await ask(b"one"))[1] == 200
            assert not many[0][0].reader.at_eof()

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("asks", [True, False])
def test_memory_is_given_back_when_many_connections_have_ended(asks: bool, tls: Any) -> None:
    """Also if nothing was kept of what their clients sent: of a thousand that followed a log 137 MB stayed, and as much
    of a thousand that began a handshake.
    """

    async def scenario() -> None:
        shrunk = asyncio.Event()
        server = Server("test", Watch.new(), Limits(), Pool(on_shrunk=shrunk.set))
        sock = tcp_socket("127.0.0.1", 0)
        server.start([sock], None if asks else tls[0])
        async with asyncio.timeout(TIMEOUT_S):
            clients = [
                await asyncio.open_connection(*sock.getsockname()[:2]) for _ in range(MUCH_BYTES // HELD_BYTES + 1)
            ]
            for reader, writer in clients if asks else ():
                writer.write(GET)
                await reader.readuntil(b"first\r\n")
            await until(lambda: len(server) == len(clients))
            assert not shrunk.is_set()
            for _, writer in clients:
                writer.transport.abort()
            await shrunk.wait()
            await until(lambda: server.pool.held == 0)
            await server.close()

    asyncio.run(scenario())


# stopping


def test_a_server_that_stops_lets_requests_end(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> Response:
        if request.target == "/x":
            begun.set()
            await go_on.wait()
        return await answer_path(request)

    async def scenario() -> None:
        async with serving(handler, path=path) as given:
            idle = await given.ask(b"GET /idle HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await idle.response())[2] == b"/idle"
            busy = await given.ask(GET)
            await begun.wait()
            closing = asyncio.ensure_future(given.server.close(grace=TIMEOUT_S))
            assert await idle.rest() == b""
            with pytest.raises(FileNotFoundError):
                await given.connect()
            go_on.set()
            _, headers, body = await busy.response()
            assert (headers["connection"], body) == ("close", b"/x")
            assert await busy.rest() == b""
            await closing

    run(scenario())


@pytest.mark.slow
def test_a_server_that_stops_waits_no_longer_than_it_was_told(run: Any) -> None:
    cancelled = asyncio.Event()

    async def handler(_: Request) -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async def scenario() -> None:
        for grace in (0.0, 0.1):
            cancelled.clear()
            async with serving(handler) as given:
                client = await given.ask(GET)
                await until(lambda given=given: len(given.server) == 1)  # type: ignore[misc]
                await given.server.close(grace)
                assert await client.rest() == b""
        assert cancelled.is_set()

    run(scenario())


def test_a_watch_ends_whole_when_the_server_stops(run: Any) -> None:
    async def scenario() -> None:
        async with serving(Watch.new()) as given:
            client = await given.ask(GET)
            await client.response(body=False)
            assert await client.reader.readexactly(10) == b"5\r\nfirst\r\n"
            await given.server.close(grace=TIMEOUT_S)
            assert await client.rest() == b"0\r\n\r\n"

    run(scenario())


# who is there


def certificate(directory: Path, name: str) -> tuple[str, str]:
    """Make a certificate that signs itself, and its key."""
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-subj", f"/O=system:masters/CN={name}", "-days", "1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(argv, check=True, capture_output=True)
    return str(cert), str(key)


async def answer_peer(request: Request) -> Response:
    return Response(body=repr((request.peer.address, request.peer.certificate, request.peer.credentials)).encode())


def test_who_connects_to_a_unix_socket_is_known(run: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(answer_peer, path=tmp_path / "socket") as given:
            client = await given.ask(GET)
            wanted = f"('', None, Credentials(pid={os.getpid()}, uid={os.getuid()}, gid={os.getgid()}))"
            assert (await client.response())[2] == wanted.encode()

    run(scenario())


@pytest.mark.slow
def test_a_client_may_show_a_certificate(run: Any, tmp_path: Path) -> None:
    server, known, other = (certificate(tmp_path, name) for name in ("server", "known", "other"))
    tls = server_context("the server", *server, client_ca=known[0])

    def client_context(pair: tuple[str, str] | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=server[0])
        context.check_hostname = False
        context.set_alpn_protocols(["h2", "http/1.1"])
        if pair is not None:
            context.load_cert_chain(*pair)
        return context

    async def ask_with(given: Serving, context: ssl.SSLContext) -> bytes:
        client = await given.connect(context)
        client.send(GET)
        return (await client.response())[2]

    async def scenario() -> None:
        async with serving(answer_peer, tls=tls) as given:
            client = await given.connect(client_context(None))
            assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
            client.send(GET)
            assert (await client.response())[2] == b"('127.0.0.1', None, None)"
            body = await ask_with(given, client_context(known))
            assert b"(('organizationName', 'system:masters'),), (('commonName', 'known'),)" in body
            with pytest.raises((OSError, EOFError)):
                await ask_with(given, client_context(other))

    run(scenario())


def short_lived(directory: Path, name: str, seconds: int) -> tuple[str, str]:
    """Make a certificate that signs itself and is valid for some seconds, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(seconds=seconds))
        .sign(key, SHA256())
    )
    cert, private = directory / f"{name}.pem", directory / f"{name}.key"
    cert.write_bytes(made.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(cert), str(private)


def client_with(server: tuple[str, str], pair: tuple[str, str]) -> ssl.SSLContext:
    """Return the settings of a client that shows a certificate."""
    context = ssl.create_default_context(cafile=server[0])
    context.check_hostname = False
    context.load_cert_chain(*pair)
    # Its session is there when the handshake ends.
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@pytest.mark.slow
def test_who_has_a_certificate_is_known_for_as_long_as_it_is_valid(run: Any, tmp_path: Path) -> None:
    """TLS looks at it when a connection begins, and for a session that is taken up again not even then."""
    server, known = certificate(tmp_path, "server"), short_lived(tmp_path, "known", 5)
    context = client_with(server, known)

    def ask_in_session(address: Any, session: Any) -> int:
        with (
            socket.create_connection(address) as plain,
            context.wrap_socket(plain, session=session) as connection,
            connection.makefile("rb") as lines,
        ):
            assert connection.session_reused
            connection.sendall(GET)
            return int(lines.readline().split()[1])

    async def scenario() -> None:
        async with serving(answer_peer, tls=server_context("the server", *server, client_ca=known[0])) as given:
            client = await given.connect(context)
            session = client.writer.get_extra_info("ssl_object").session
            assert await asyncio.to_thread(ask_in_session, given.address, session) == 200
            status = 200
            while status == 200:
                client.send(GET)
                status, _, body = await client.response()
            assert (status, body) == (401, b"the client's certificate has expired\n")
            assert await client.rest() == b""
            assert await asyncio.to_thread(ask_in_session, given.address, session) == 401

    run(scenario())


@pytest.mark.slow
def test_who_showed_a_certificate_comes_again_when_other_authorities_are_trusted(run: Any, tmp_path: Path) -> None:
    """Its connection ends when no request is being answered; who showed none has nothing to prove again."""
    server, old, new = (certificate(tmp_path, name) for name in ("server", "old", "new"))
    answering, answered = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> Response:
        if request.target == "/slow":
            answering.set()
            await answered.wait()
        return await answer_peer(request)

    async def scenario() -> None:
        async with serving(handler, tls=server_context("the server", *server, client_ca=old[0])) as given:
            plain = ssl.create_default_context(cafile=server[0])
            plain.check_hostname = False
            idle, busy = [await given.connect(client_with(server, old)) for _ in range(2)]
            stranger = await given.connect(plain)
            for client in (idle, stranger):
                client.send(GET)
                assert (await client.response())[0] == 200
            busy.send(GET.replace(b"/x", b"/slow") + GET)
            await answering.wait()
            given.server.renew(server_context("the server", *server, client_ca=new[0]))
            assert await idle.rest() == b""
            answered.set()
            status, headers, _ = await busy.response()
            assert (status, headers["connection"]) == (200, "close")
            assert await busy.rest() == b""
            stranger.send(GET)
            assert (await stranger.response())[0] == 200

    run(scenario())


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the settings of a server and of its clients."""
    pair = certificate(tmp_path, "server")
    client = ssl.create_default_context(cafile=pair[0])
    client.check_hostname = False
    return server_context("the server", *pair), client


def test_nothing_is_written_to_a_client_of_tls_that_is_gone(run: Any, tls: Any) -> None:
    written: list[int] = []
    sockets: list[socket.socket] = []

    async def chunks() -> AsyncGenerator[bytes, None]:
        sockets[0].shutdown(socket.SHUT_RDWR)
        for number in range(1000):
            written.append(number)
            yield b"x"

    async def handler(_: Request) -> Response:
        return Response(body=chunks())

    async def scenario() -> None:
        async with serving(handler, tls=tls[0]) as given:
            client = await given.connect(tls[1])
            sockets.append(client.writer.get_extra_info("socket"))
            client.send(GET)
            await until(lambda: len(given.server) == 0)

    run(scenario())
    assert len(written) < 10


@pytest.mark.slow
@pytest.mark.parametrize("unread", [0, 150_000])
def test_a_session_over_tls_learns_that_its_client_is_gone(unread: int, run: Any, tls: Any) -> None:
    sent: list[int] = []
    sockets: list[socket.socket] = []
    ready = asyncio.Event()

    async def session(transport: Transport) -> None:
        await (transport.account.hangup if unread else ready).wait()
        sockets[0].shutdown(socket.SHUT_WR if unread else socket.SHUT_RDWR)
        with suppress(ClientGone):
            for number in range(1000):
                sent.append(number)
                if unread:
                    await asyncio.sleep(0)
                await transport.send(b"x")

    async def handler(_: Request) -> Upgrade:
        return Upgrade(headers=[("Connection", "Upgrade")], session=session, idle_timeout=TIMEOUT_S)

    async def scenario() -> None:
        async with serving(handler, tls=tls[0]) as given:
            client = await given.connect(tls[1])
            sockets.append(client.writer.get_extra_info("socket"))
            client.send(SWITCH)
            await client.response(body=False)
            ready.set()
            if unread:
                client.send(bytes(unread))
                sockets[0].shutdown(socket.SHUT_WR)
            await until(lambda: len(given.server) == 0)

    run(scenario())
    assert len(sent) < 10


def test_certificates_that_cannot_be_used_are_said(tmp_path: Path) -> None:
    pair = certificate(tmp_path, "server")
    with pytest.raises(FailedPrecondition, match="the API's certificate /no/cert"):
        server_context("the API", "/no/cert", "/no/key")
    with pytest.raises(FailedPrecondition, match="the API's authorities for clients in /no/ca"):
        server_context("the API", *pair, client_ca="/no/ca")
