"""What kubelets are asked for, and passing requests on to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import pytest

from podkeep.apiserver.endpoints import kubelets
from podkeep.apiserver.endpoints.query import Query
from podkeep.apiserver.endpoints.relay import Place, relay
from podkeep.apiserver.meta.status import StatusError
from podkeep.http.budget import Account, Pool
from podkeep.http.connection import Limits
from podkeep.http.listener import tcp_socket
from podkeep.http.messages import Body, Peer, Request, Response, Upgrade
from podkeep.http.server import Server
from podkeep.http.transport import Transport

POD = {
    "metadata": {"name": "p"},
    "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "a"}, {"name": "b"}]},
}
LIMITS = Limits(idle_timeout=5.0)


def test_the_container_must_be_known() -> None:
    assert kubelets.container_of(POD, "i") == "i"
    with pytest.raises(StatusError, match=r"a container name must be specified for pod p, choose one of: \[i a b\]"):
        kubelets.container_of(POD, "")
    with pytest.raises(StatusError, match="container x is not valid for pod p"):
        kubelets.container_of(POD, "x")
    assert kubelets.container_of({"metadata": {"name": "q"}, "spec": {"containers": [{"name": "only"}]}}, "") == "only"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("follow=true&tailLines=3", [("follow", "true"), ("tailLines", "3")]),
        (
            "previous&limitBytes=1&sinceTime=2026-01-01T00:00:00Z",
            [("previous", "true"), ("limitBytes", "1"), ("sinceTime", "2026-01-01T00:00:00Z")],
        ),
        ("stream=Stdout", [("stream", "Stdout")]),
    ],
)
def test_options_of_logs(text: str, expected: list[tuple[str, str]]) -> None:
    assert kubelets.log_parameters(Query(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tailLines=-1", "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
        ("sinceSeconds=1&sinceTime=x", "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"),
        ("stream=Both", 'stream: Unsupported value: "Both": supported values: "All", "Stderr", "Stdout"'),
    ],
)
def test_options_of_logs_that_make_no_sense(text: str, expected: str) -> None:
    with pytest.raises(StatusError) as refused:
        kubelets.log_parameters(Query(text))
    assert refused.value.message == f'PodLogOptions "" is invalid: {expected}'


def test_streams_have_the_kubelets_names() -> None:
    asked = Query("stdin=true&stdout=1&tty=true&command=sh&command=-c&stderr=false")
    expected = [("input", "1"), ("output", "1"), ("tty", "1"), ("command", "sh"), ("command", "-c")]
    assert kubelets.stream_parameters(asked, command=True) == expected
    with pytest.raises(StatusError, match="command: Required value"):
        kubelets.stream_parameters(Query("stdout=1"), command=True)


def test_a_node_says_where_its_kubelet_is() -> None:
    addresses = [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "192.0.2.7"}]
    status: dict[str, Any] = {"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": 10255}}}
    assert kubelets.address_of({"status": status}) == ("192.0.2.7", 10255)
    with pytest.raises(StatusError, match="no preferred addresses found"):
        kubelets.address_of({})


def _run(backend: Callable[[Request], Awaitable[Response | Upgrade]], sent: bytes, *, until: bytes) -> bytes:
    """Send bytes to a server that passes requests on to a backend; return what comes up to ``until``."""

    async def test() -> bytes:
        behind, front = Server("backend", backend, LIMITS), Server("front", passing, LIMITS)
        sockets = [tcp_socket("127.0.0.1", 0), tcp_socket("127.0.0.1", 0)]
        ports.extend(sock.getsockname()[1] for sock in sockets)
        behind.start(sockets[:1])
        front.start(sockets[1:])
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[1])
        writer.write(sent)
        async with asyncio.timeout(20):
            found = await reader.readuntil(until)
        writer.close()
        await front.close()
        await behind.close()
        return found

    ports: list[int] = []

    async def passing(request: Request) -> Response | Upgrade:
        return await relay(request, Place(host="127.0.0.1", port=ports[0], target="/there?x=1"))

    return asyncio.run(test())


def test_an_answer_is_passed_on_as_it_comes() -> None:
    seen: dict[str, Any] = {}

    async def backend(request: Request) -> Response:
        seen.update(request.headers)
        seen["target"] = request.target
        seen["body"] = await request.body.read(100)

        async def lines() -> AsyncGenerator[bytes, None]:
            yield b"one\n"
            await asyncio.sleep(0)
            yield b"two\n"

        return Response(status=200, headers=[("Content-Type", "text/x")], body=lines())

    sent = b"POST /x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer t\r\nContent-Length: 2\r\nX-A: b\r\n\r\nhi"
    answer = _run(backend, sent, until=b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"content-type: text/x" in answer
    assert b"one\n" in answer
    assert b"two\n" in answer
    assert (seen["target"], seen["body"], seen["x-a"]) == ("/there?x=1", b"hi", ["b"])
    assert "authorization" not in seen


def test_an_upgraded_connection_is_passed_on_both_ways() -> None:
    async def backend(request: Request) -> Upgrade:
        assert request.upgrade == "spdy/3.1"

        async def echo(transport: Transport) -> None:
            while data := await transport.receive():
                await transport.send(data.upper())

        return Upgrade(headers=[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")], session=echo, idle_timeout=5)

    sent = b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nearly bytes."
    answer = _run(backend, sent, until=b".")
    # The first full stop is that of the version.
    assert answer == b"HTTP/1."
    answer = _run(backend, sent, until=b"EARLY BYTES.")
    assert answer.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"upgrade: SPDY/3.1" in answer


def test_a_refused_upgrade_is_told_to_the_client() -> None:
    async def backend(request: Request) -> Response:
        assert request.upgrade
        return Response(status=403, body=b"not here")

    sent = b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert _run(backend, sent, until=b"not here").startswith(b"HTTP/1.1 403 Forbidden")


async def _nothing() -> bytes:
    return b""


def test_a_kubelet_that_does_not_answer_is_an_error() -> None:
    async def test() -> None:
        with tcp_socket("127.0.0.1", 0) as sock:
            port = sock.getsockname()[1]
        request = Request(
            method="GET",
            target="/",
            body=Body(_nothing, 0, Account(Pool()), 1.0),
            peer=Peer(),
            stopping=asyncio.Event(),
            at_end=ExitStack(),
            admit=lambda: None,
        )
        with pytest.raises(StatusError, match="error dialing backend") as refused:
            await relay(request, Place(host="127.0.0.1", port=port, target="/"))
        assert refused.value.code == 500

    asyncio.run(test())
