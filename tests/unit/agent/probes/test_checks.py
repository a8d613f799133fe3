"""One run of a probe against real servers on loopback, good, bad and hostile."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from podkeep.agent.probes import http_get
from podkeep.agent.probes.checks import Checks
from podkeep.agent.probes.model import Outcome, Target, Verdict
from podkeep.api.containers import (
    Container,
    EnvVar,
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    HTTPHeader,
    Probe,
    TCPSocketAction,
)
from podkeep.base.errors import DeadlineExceeded, NotFound
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from unit.cri.cri_endpoint import run, talking

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def target(host: str = "127.0.0.1", container: Container | None = None) -> Target:
    return Target(container=container or Container(name="c"), id="id", pod="p_default(u)", host=host)


@asynccontextmanager
async def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
            await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def answering(data: bytes, heads: list[bytes] | None = None) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heads is not None:
            heads.append(head)
        writer.write(data)

    return serve


async def check(probe: Probe, where: Target | None = None) -> Outcome:
    return await Checks(CriClient("/nowhere")).run(probe, where or target())


def http(port: int, **fields: object) -> Probe:
    return Probe(http_get=HTTPGetAction(port=port, **{"path": "/x", **fields}), timeout_seconds=1)  # type: ignore[arg-type]


async def asked(data: bytes, **fields: object) -> Outcome:
    async with listening(answering(data)) as port:
        outcome = await check(http(port, **fields))
        return Outcome(verdict=outcome.verdict, text=outcome.text.replace(str(port), "PORT"))


def status(code: int, more: str = "", body: str = "") -> bytes:
    return f"HTTP/1.1 {code} X\r\n{more}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("data", "verdict", "text"),
    [
        (OK, Verdict.SUCCESS, "ok"),
        (status(204), Verdict.SUCCESS, ""),
        (status(100) + OK, Verdict.SUCCESS, "ok"),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil closed", Verdict.SUCCESS, "until closed"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", Verdict.SUCCESS, "abc"),
        (status(304), Verdict.WARNING, "Probe terminated redirects, Response body: "),
        (status(302, body="b"), Verdict.WARNING, "Probe terminated redirects, Response body: b"),
        (
            status(302, "Location: http://other.invalid/\r\n", "b"),
            Verdict.WARNING,
            "Probe terminated redirects, Response body: b",
        ),
        (
            status(302, "Location: /x\r\n"),
            Verdict.FAILURE,
            'Get "http://127.0.0.1:PORT/x": stopped after 10 redirects',
        ),
        (status(400, body="secret"), Verdict.FAILURE, "HTTP probe failed with statuscode: 400"),
        (status(500), Verdict.FAILURE, "HTTP probe failed with statuscode: 500"),
        (b"", Verdict.FAILURE, 'Get "http://127.0.0.1:PORT/x": EOF'),
        (b"HTTP/1.1 200 OK\r\n", Verdict.FAILURE, 'Get "http://127.0.0.1:PORT/x": EOF'),
    ],
)
def test_http_answers(data: bytes, verdict: Verdict, text: str) -> None:
    assert run(asked(data)) == Outcome(verdict=verdict, text=text)


@pytest.mark.parametrize(
    "data",
    [
        b"what is this\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA:" + b" " * 60_000 + b"\x0b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 100_000,
        status(103) * 1000 + OK,
        status(100) + b"HTTP/1.1 200 OK\r\nA:" + b" " * 15_000 + b"\0\r\n\r\n",
        CHUNKED + b"0\r\nA:" + b" " * 15_000 + b"\0\r\n\r\n",
        CHUNKED + b"1;" + b" " * 15_000 + b"\nx\r\n\r\n",
        b"\0" * 1_000_000,
    ],
    ids=["no HTTP", "blanks", "long head", "interim", "blanks after interim", "trailers", "chunk", "zeros"],
)
def test_http_answers_that_are_none(data: bytes) -> None:
    before = time.process_time()
    outcome = run(asked(data))
    assert outcome.verdict is Verdict.FAILURE
    assert outcome.text.startswith('Get "http://127.0.0.1:PORT/x": ')
    assert len(outcome.text) < 1000
    # All probes of the node are on this thread.
    assert time.process_time() - before < 1


def test_a_body_is_read_up_to_10_kb() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 4096)
            await writer.drain()

    async def work() -> Outcome:
        async with listening(endless) as port:
            return await check(http(port))

    assert run(work()) == Outcome(verdict=Verdict.SUCCESS, text="x" * 10240)


@pytest.mark.slow
def test_a_server_that_says_nothing_fails_after_the_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def work() -> tuple[Outcome, int]:
        async with listening(silent) as port:
            return await check(http(port)), port

    outcome, port = run(work())
    expected = (
        f'Get "http://127.0.0.1:{port}/x": context deadline exceeded (Client.Timeout exceeded while awaiting headers)'
    )
    assert outcome == Outcome(verdict=Verdict.FAILURE, text=expected)


async def sent(action: HTTPGetAction, container: Container | None = None) -> str:
    heads: list[bytes] = []
    async with listening(answering(OK, heads)) as port:
        ported = HTTPGetAction(path=action.path, port=port, http_headers=action.http_headers)
        await check(Probe(http_get=ported, timeout_seconds=5), target(container=container))
    return heads[0].decode().replace(str(port), "PORT")


def headers(**given: str) -> HTTPGetAction:
    named = tuple(HTTPHeader(name=name.replace("_", "-"), value=value) for name, value in given.items())
    return HTTPGetAction(path="/", http_headers=named)


@pytest.mark.parametrize(
    ("action", "lines"),
    [
        (headers(), {"host: 127.0.0.1:port", "user-agent: kube-probe/1.36", "accept: */*", "connection: close"}),
        (headers(Host="a.b"), {"host: a.b", "user-agent: kube-probe/1.36", "accept: */*", "connection: close"}),
        (headers(user_agent="me", accept=""), {"host: 127.0.0.1:port", "user-agent: me", "connection: close"}),
        (
            headers(X_A="1"),
            {"host: 127.0.0.1:port", "x-a: 1", "user-agent: kube-probe/1.36", "accept: */*", "connection: close"},
        ),
    ],
)
def test_headers(action: HTTPGetAction, lines: set[str]) -> None:
    first, *rest = run(sent(action)).split("\r\n")
    assert first == "GET / HTTP/1.1"
    assert {line.lower() for line in rest if line} == lines


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", "/"),
        ("/", "/"),
        ("healthz", "/healthz"),
        ("/a b?c=d e#f", "/a%20b?c=d%20e"),
        ("/a%20b", "/a%20b"),
        ("/100%", "/100%25"),
        ("http://elsewhere/x?y", "/x?y"),
        ("/é", "/%C3%A9"),
        ("/a\r\nHost: b", "/a%0D%0AHost:%20b"),
    ],
)
def test_paths(path: str, line: str) -> None:
    request = http_get.request(HTTPGetAction(path=path, port=80), target(), "probe")
    assert request.target == line
    assert request.url == f"http://127.0.0.1:80{line}"


def test_a_header_that_cannot_be_sent_is_a_failure() -> None:
    action = HTTPGetAction(path="/", port=80, http_headers=(HTTPHeader(name="A", value="b\r\nC: d"),))
    outcome = run(check(Probe(http_get=action, timeout_seconds=1)))
    assert outcome.verdict is Verdict.FAILURE
    assert "the request cannot be sent" in outcome.text


@pytest.mark.parametrize(("location", "host"), [("/y?z", "a.b"), ("http://127.0.0.1:PORT/y?z", "127.0.0.1:PORT")])
def test_a_redirect_on_the_same_host_is_followed(location: str, host: str) -> None:
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = str(writer.get_extra_info("sockname")[1])
        head = (await reader.readuntil(b"\r\n\r\n")).decode().replace(port, "PORT")
        heads.append(head)
        moved = status(307, f"Location: {location.replace('PORT', port)}\r\n")
        writer.write(moved if head.startswith("GET /x ") else OK)

    async def work() -> Outcome:
        async with listening(serve) as port:
            return await check(http(port, http_headers=(HTTPHeader(name="Host", value="a.b"),)))

    assert run(work()) == Outcome(verdict=Verdict.SUCCESS, text="ok")
    assert heads[1].startswith(f"GET /y?z HTTP/1.1\r\nHost: {host}\r\n")


def test_https_verifies_nothing(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-subj", "/CN=somebody.else", "-days", "1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(argv, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    async def work() -> Outcome:
        async with listening(answering(OK), context) as port:
            return await check(http(port, scheme="HTTPS"))

    assert run(work()) == Outcome(verdict=Verdict.SUCCESS, text="ok")


def test_http_where_https_was_asked_for() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read(100)

    async def work() -> Outcome:
        async with listening(plain) as port:
            outcome = await check(http(port, scheme="HTTPS"))
            return Outcome(verdict=outcome.verdict, text=outcome.text.replace(str(port), "PORT"))

    text = 'Get "https://127.0.0.1:PORT/x": http: server gave HTTP response to HTTPS client'
    assert run(work()) == Outcome(verdict=Verdict.FAILURE, text=text)


def test_tcp() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def work() -> tuple[Outcome, Outcome, Outcome, int]:
        async with listening(silent) as port:
            there = await check(Probe(tcp_socket=TCPSocketAction(port=port), timeout_seconds=1))
        gone = await check(Probe(tcp_socket=TCPSocketAction(port=port), timeout_seconds=1))
        named = await check(Probe(tcp_socket=TCPSocketAction(port="none"), timeout_seconds=1))
        return there, gone, named, port

    there, gone, named, port = run(work())
    assert there == Outcome(verdict=Verdict.SUCCESS)
    assert gone == Outcome(verdict=Verdict.FAILURE, text=f"dial tcp 127.0.0.1:{port}: connect: connection refused")
    assert named == Outcome(verdict=Verdict.UNKNOWN, text='strconv.Atoi: parsing "none": invalid syntax')


@asynccontextmanager
async def grpc_server(answers: dict[bytes, bytes] | None) -> AsyncIterator[int]:
    """Serve grpc.health.v1 with the given answers, or, with None, no health at all."""
    server = grpc.aio.server()

    async def answer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        if answers is None or request not in answers:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        assert answers is not None
        return answers[request]

    if answers is not None:
        handler = grpc.unary_unary_rpc_method_handler(answer)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler}),)
        )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("answers", "service", "verdict", "text"),
    [
        ({b"": b"\x08\x01"}, None, Verdict.SUCCESS, "service healthy"),
        ({b"\x0a\x01a": b"\x08\x01"}, "a", Verdict.SUCCESS, "service healthy"),
        ({b"": b"\x08\x02"}, "", Verdict.FAILURE, 'service unhealthy (responded with "NOT_SERVING")'),
        ({b"": b""}, "", Verdict.FAILURE, 'service unhealthy (responded with "UNKNOWN")'),
        (
            {b"": b"\xff\xff"},
            "",
            Verdict.FAILURE,
            "error: health rpc probe failed: the answer is no HealthCheckResponse",
        ),
        (
            {},
            "a",
            Verdict.FAILURE,
            "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
        ),
        (
            None,
            "",
            Verdict.FAILURE,
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): Method not found!",
        ),
    ],
)
def test_grpc(answers: dict[bytes, bytes] | None, service: str | None, verdict: Verdict, text: str) -> None:
    async def work() -> Outcome:
        async with grpc_server(answers) as port:
            return await check(Probe(grpc=GRPCAction(port=port, service=service), timeout_seconds=5))

    assert run(work()) == Outcome(verdict=verdict, text=text)


@pytest.mark.slow
def test_grpc_to_nobody() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def work() -> tuple[Outcome, int]:
        async with listening(silent) as port:
            return await check(Probe(grpc=GRPCAction(port=port), timeout_seconds=1)), port

    outcome, port = run(work())
    assert outcome.verdict is Verdict.FAILURE
    assert outcome.text.startswith(f'timeout: failed to connect service "127.0.0.1:{port}" within 1s')


def test_exec(tmp_path: Path) -> None:
    """The command has its static variables replaced; its exit code decides, its output is shown up to 10 kB."""
    requests: list[api_pb2.ExecSyncRequest] = []

    async def exec_sync(request: api_pb2.ExecSyncRequest) -> api_pb2.ExecSyncResponse:
        requests.append(request)
        if request.cmd[0] == "slow":
            raise DeadlineExceeded("too slow")
        if request.cmd[0] == "gone":
            raise NotFound("no container id")
        return api_pb2.ExecSyncResponse(stdout=b"a" * 20_000, stderr=b"e", exit_code=int(request.cmd[0] == "fails"))

    container = Container(name="c", env=(EnvVar(name="X", value="fails"),))

    async def work() -> list[Outcome]:
        async with talking(tmp_path / "s", runtime={"ExecSync": exec_sync}) as client:
            checks = Checks(client)
            commands = (("works",), ("$(X)", "$(Y)"), ("slow", "er"), ("gone",))
            return [
                await checks.run(
                    Probe(exec=ExecAction(command=command), timeout_seconds=3), target(container=container)
                )
                for command in commands
            ]

    assert run(work()) == [
        Outcome(verdict=Verdict.SUCCESS, text="a" * 10240),
        Outcome(verdict=Verdict.FAILURE, text="a" * 10240),
        Outcome(verdict=Verdict.FAILURE, text='command timed out: "slow er" timed out after 3s'),
        Outcome(verdict=Verdict.UNKNOWN, text="no container id"),
    ]
    assert [list(request.cmd) for request in requests[:2]] == [["works"], ["fails", "$(Y)"]]
    assert {request.timeout for request in requests} == {3}


def test_what_a_command_line_should_do_is_in_no_event(tmp_path: Path) -> None:
    """A runtime that is away for a moment is started again by the node, not by those who read events of a pod."""

    async def work() -> Outcome:
        async with CriClient(str(tmp_path / "none"), timeout=1) as client:
            return await Checks(client).run(Probe(exec=ExecAction(command=("true",)), timeout_seconds=1), target())

    outcome = run(work())
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.text.startswith(f"no runtime answers on {tmp_path}")
    assert "podkeep runtime" not in outcome.text


def test_a_probe_without_a_handler() -> None:
    assert run(check(Probe(timeout_seconds=1))) == Outcome(
        verdict=Verdict.UNKNOWN, text="missing probe handler for p_default(u):c"
    )
