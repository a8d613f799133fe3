"""Paths of requests, and what a refusal says."""

from __future__ import annotations

import asyncio
import socket

import pytest

from podkeep.base.errors import InvalidArgument, Unavailable
from podkeep.client.connection import Connection, server_address, warning_texts
from podkeep.client.errors import refusal, status_error
from podkeep.client.resources import LEASES, NODES, PODS


def test_paths() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("default", "web", "status") == "/api/v1/namespaces/default/pods/web/status"
    assert NODES.path("ignored", "n1") == "/api/v1/nodes/n1"
    assert LEASES.path("a", "b") == "/apis/coordination.k8s.io/v1/namespaces/a/leases/b"
    assert PODS.path(query={"fieldSelector": "spec.nodeName=n", "limit": ""}) == (
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dn"
    )


def test_a_name_leads_nowhere_else() -> None:
    assert PODS.path("a/b", "../x?y") == "/api/v1/namespaces/a%2Fb/pods/..%2Fx%3Fy"


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "prefix"),
    [
        ("https://192.0.2.1:6443", "192.0.2.1", 6443, "", ""),
        ("https://api.example/k8s/", "api.example", 443, "", "/k8s"),
        ("http://[::1]:8080", "::1", 8080, "", ""),
        ("unix:///run/api.sock", "", 0, "/run/api.sock", ""),
    ],
)
def test_where_a_server_is(url: str, host: str, port: int, path: str, prefix: str) -> None:
    found = server_address(url)
    assert (found.host, found.port, found.path, found.prefix) == (host, port, path, prefix)


@pytest.mark.parametrize(
    "url", ["", "192.0.2.1:6443", "ftp://x", "https://", "https://x:port", "unix://x", "https://[x"]
)
def test_what_is_no_server(url: str) -> None:
    with pytest.raises(InvalidArgument):
        server_address(url)


@pytest.mark.parametrize(
    ("header", "texts"),
    [
        (b'299 - "old"', ["old"]),
        (b'299 - "a \\"b\\" \\\\ c"', ['a "b" \\ c']),
        (b'299 - "one", 299 kube "two, 299 - three" "Sun, 06 Nov 1994 08:49:37 GMT"', ["one", "two, 299 - three"]),
        (b'110 - "Response is Stale"', []),
        (b'299 - "no end', []),
        (b'299 - "\xff"', ["\ufffd"]),
        (b"", []),
    ],
)
def test_what_a_server_warns_of(header: bytes, texts: list[str]) -> None:
    assert warning_texts(header) == texts


def test_a_status_is_an_error() -> None:
    data = b'{"kind":"Status","status":"Failure","message":"pods \\"w\\" not found","reason":"NotFound","code":404}'
    error = refusal(404, data)
    assert (error.not_found, error.reason, str(error)) == (True, "NotFound", 'pods "w" not found')


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "HTTP status 502: Bad Gateway"),
        (b"<html>", "HTTP status 502: <html>"),
        (b'{"kind":"Pod"}', 'HTTP status 502: {"kind":"Pod"}'),
        (b'{"kind":"Status","message":7}', 'HTTP status 502: {"kind":"Status","message":7}'),
        (b"\xff" * 5000, "HTTP status 502: " + "\ufffd" * 1024),
    ],
)
def test_what_is_no_status(data: bytes, said: str) -> None:
    assert str(refusal(502, data)) == said


def test_kinds_of_conflict() -> None:
    made = status_error({"code": 409, "reason": "AlreadyExists", "message": "m"})
    assert (made.already_exists, made.conflict) == (True, False)
    stale = status_error({"code": 409, "reason": "Conflict", "message": "m"})
    assert (stale.already_exists, stale.conflict) == (False, True)
    assert status_error({"code": 410, "reason": "Expired", "message": "m"}).gone
    assert status_error({"nonsense": 1}).code == 500


def test_a_server_that_refuses_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = server_address(f"http://127.0.0.1:{taken.getsockname()[1]}")
    with pytest.raises(Unavailable) as caught:
        asyncio.run(Connection.open(where, None))
    assert caught.value.message == f"the API at {where} cannot be reached: Connection refused"


def test_a_server_that_ends_within_an_answer() -> None:
    async def asked() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            where = server_address(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            connection = await Connection.open(where, None)
            try:
                await connection.ask("GET", "/", [])
                with pytest.raises(Unavailable) as caught:
                    await connection.body(1024)
            finally:
                connection.abort()
        assert caught.value.message == f"the API at {where} broke off its answer: it closed the connection"

    asyncio.run(asked())
