"""Where requests may go, and what a server's answer may look like."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address

import pytest

from podkeep.base.errors import FailedPrecondition
from podkeep.images.registry.client import Client, parse_url
from podkeep.images.registry.dialing import Allowed, forbidden
from podkeep.images.registry.endpoint import Tls
from podkeep.images.registry.http1 import (
    Answer,
    BadAnswer,
    BrokenOff,
    Connection,
    Stalled,
    TransferError,
)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
ANYBODY = Allowed(loopback=False, link_local=False)


@pytest.mark.parametrize(
    ("text", "shown", "origin"),
    [
        ("https://r.example", "https://r.example/", ("https", "r.example", 443)),
        ("HTTPS://R.Example:443/a?sig=secret", "https://r.example/a", ("https", "r.example", 443)),
        ("http://r.example:5000/v2/", "http://r.example:5000/v2/", ("http", "r.example", 5000)),
        ("http://[fd00::1]:5000/", "http://[fd00::1]:5000/", ("http", "fd00::1", 5000)),
        ("https://r.example/a b\u00e9", "https://r.example/a%20b%C3%A9", ("https", "r.example", 443)),
        ("https://r.example/%2e%2f?a=%20", "https://r.example/%2e%2f", ("https", "r.example", 443)),
    ],
)
def test_urls(text: str, shown: str, origin: tuple[str, str, int]) -> None:
    url = parse_url(text)
    assert str(url) == shown
    assert url.origin == origin


@pytest.mark.parametrize(
    "text",
    [
        "",
        "r.example",
        "//r.example/x",
        "file:///etc/shadow",
        "ftp://r.example/x",
        "data:text/plain,x",
        "unix:/run/docker.sock",
        "https://",
        "https://user:secret@r.example/",
        "https://r.example:0/",
        "https://r.example:99999/",
        "https://[::1/",
        "https://[fe80::1%25eth0]/",
        "https://r example/",
        "https://r.ex\u00e4mple/",
        "https://r.example HTTP1.1/",
        "https://r.example/" + "a" * 20_000,
    ],
)
def test_urls_that_are_refused(text: str) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        parse_url(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "allowed", "refused"),
    [
        ("10.0.0.1", ANYBODY, False),
        ("fd00::1", ANYBODY, False),
        ("2001:db8::1", ANYBODY, False),
        ("169.254.169.254", ANYBODY, True),
        ("169.254.0.1", ANYBODY, True),
        ("169.255.0.1", ANYBODY, False),
        ("::ffff:169.254.169.254", ANYBODY, True),
        ("64:ff9b::169.254.169.254", ANYBODY, True),
        ("fe80::1", ANYBODY, True),
        ("febf::1", ANYBODY, True),
        ("fec0::1", ANYBODY, False),
        ("fd00:ec2::254", ANYBODY, True),
        ("168.63.129.16", ANYBODY, True),
        ("::ffff:100.100.100.200", ANYBODY, True),
        ("169.254.169.254", Allowed(loopback=False, link_local=True), False),
        ("127.0.0.1", ANYBODY, True),
        ("127.255.255.254", ANYBODY, True),
        ("0.0.0.0", ANYBODY, True),
        ("::1", ANYBODY, True),
        ("::", ANYBODY, True),
        ("::ffff:127.0.0.1", ANYBODY, True),
        ("127.0.0.1", Allowed(loopback=True, link_local=False), False),
        ("::ffff:127.0.0.1", Allowed(loopback=True, link_local=False), False),
        ("169.254.169.254", Allowed(loopback=True, link_local=False), True),
    ],
)
def test_which_addresses_are_forbidden(address: str, allowed: Allowed, refused: bool) -> None:
    assert bool(forbidden(ip_address(address), allowed)) == refused


@contextmanager
def answering(*data: bytes, timeout: float = 5.0, stay: bool = False) -> Iterator[Connection]:
    """Yield a connection whose peer answers anything with ``data``, and then closes unless told to ``stay``."""
    ours, theirs = socket.socketpair()
    done = threading.Event()

    def serve() -> None:
        try:
            theirs.recv(65536)
            for piece in data:
                theirs.sendall(piece)
        except OSError:
            pass  # the client had enough
        if not stay:
            theirs.close()
        done.wait(30)

    thread = threading.Thread(target=serve)
    thread.start()
    connection = Connection(ours, timeout=timeout)
    try:
        yield connection
    finally:
        connection.close()
        theirs.close()
        done.set()
        thread.join()


def ask(connection: Connection) -> Answer:
    return connection.exchange("GET", "/", {"Host": "x"})


def body(answer: Answer) -> bytes:
    found = b""
    while piece := answer.piece():
        found += piece
    return found


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200\r\ncontent-length:5\r\n\r\nhello and more", b"hello"),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (
            CHUNKED + b"2;x=y\r\nhe\r\n003\r\nllo\r\n0\r\nT: x\r\n\r\n",
            b"hello",
        ),
        (
            CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\n") + b"5\r\nhello\r\n0\r\n\r\n",
            b"hello",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n", b""),
        (CHUNKED + b"0\r\n\r\n", b""),
    ],
)
@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
def test_bodies(data: bytes, expected: bytes, torn: bool) -> None:
    pieces = [data[index : index + 1] for index in range(len(data))] if torn else [data]
    with answering(*pieces) as connection:
        answer = ask(connection)
        assert body(answer) == expected
        answer.close()


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (b"", BrokenOff, "closed without an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-", BrokenOff, "in the middle of an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", BadAnswer, "does not speak HTTP/1"),
        (b"HTTP/2 200\r\n\r\n", BadAnswer, "does not speak HTTP/1"),
        (b"\x00" * 100_000, BadAnswer, "does not speak HTTP/1"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, BadAnswer, "of more than 32768 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n", BadAnswer, "more than 200 headers"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000, BadAnswer, "of more than 32768 bytes"),
        (b"HTTP/1.1 101 Now Something Else\r\n\r\n", BadAnswer, "does not keep to HTTP"),
        (b"HTTP/1.1 007 OK\r\n\r\n", BadAnswer, "does not keep to HTTP"),
        (b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", BadAnswer, "illegal header line"),
        (b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n", BadAnswer, "folded line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", BadAnswer, "bad Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", BadAnswer, "conflicting Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999999\r\n\r\n", BadAnswer, "bad Content-Length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", BadAnswer, "Transfer-Encoding"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100, BadAnswer, "too many 1xx informational responses"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", BrokenOff, "closed 4 bytes early"),
        (CHUNKED + b"rubbish\r\n", BadAnswer, "illegal chunk header"),
        (CHUNKED + b"-5\r\nhello", BadAnswer, "illegal chunk header"),
        (
            CHUNKED + b"2\r\nhello\r\n",
            BadAnswer,
            "malformed chunk footer",
        ),
        (CHUNKED + b"5\r\nhello\r\n", BrokenOff, "middle of an answer"),
        (
            CHUNKED + b"" + (b"1;" + b"x" * 4000 + b"\r\nx\r\n") * 1000,
            BadAnswer,
            "more framing than content",
        ),
        (
            CHUNKED + b"0\r\n" + b"X: y\r\n" * 100_000,
            BadAnswer,
            "of more than 32768 bytes",
        ),
    ],
)
def test_answers_that_are_none(data: bytes, kind: type[TransferError], text: str) -> None:
    with answering(data) as connection, pytest.raises(kind, match=text):
        body(ask(connection))


@pytest.mark.slow
def test_a_silent_server_and_one_that_drips_are_given_up() -> None:
    with answering(stay=True, timeout=0.2) as connection, pytest.raises(Stalled, match="it sent nothing"):
        ask(connection)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
    with answering(head + b"abc", stay=True, timeout=0.2) as connection:
        answer = ask(connection)
        with pytest.raises(Stalled, match=r"it sent \d+ bytes in 0\.2 s"):
            body(answer)


@pytest.mark.slow
@pytest.mark.parametrize("stay", [False, True], ids=["closes", "stops to read"])
def test_an_upload_that_is_refused_before_its_end_has_an_answer(stay: bool) -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!"
    with answering(refusal, timeout=0.5, stay=stay) as connection:
        released: list[bool] = []
        connection.on_release = lambda: released.append(True)
        headers = {"Host": "x", "Content-Length": str(64 << 20)}
        answer = connection.exchange("PATCH", "/", headers, iter([bytes(1 << 20)] * 64))
        assert (answer.status, body(answer)) == (413, b"no!")
        answer.close()
        assert released == []


@pytest.mark.slow
def test_a_server_that_takes_nothing_is_given_up() -> None:
    with answering(stay=True, timeout=0.2) as connection, pytest.raises(Stalled, match=r"takes nothing for 0\.2 s"):
        connection.exchange("PATCH", "/", {"Host": "x", "Content-Length": str(64 << 20)}, iter([bytes(1 << 20)] * 64))


def test_a_connection_is_given_back_only_in_a_known_state() -> None:
    def given_back(data: bytes, read: Callable[[Answer], object]) -> int:
        count = 0

        def note() -> None:
            nonlocal count
            count += 1

        with answering(data, stay=True) as connection:
            connection.on_release = note
            answer = ask(connection)
            read(answer)
            answer.close()
            answer.close()
        return count

    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    assert given_back(whole, body) == 1
    assert given_back(whole, lambda _: None) == 0
    assert given_back(whole + b"!", body) == 0
    assert given_back(whole.replace(b"OK", b"OK\r\nConnection: Close"), body) == 0
    assert given_back(whole.replace(b"1.1", b"1.0"), body) == 0
    assert given_back(CHUNKED + b"1\r\nx\r\n0\r\n\r\n", body) == 1


@pytest.mark.parametrize("value", ["x\r\nEvil: 1", "x\ny", "x\x00", "\u00e9"])
def test_nothing_gets_into_a_request_by_a_header(value: str) -> None:
    with answering() as connection, pytest.raises(BadAnswer, match="characters that HTTP does not allow"):
        connection.exchange("GET", "/", {"Host": "x", "Authorization": value})


@pytest.mark.slow
def test_a_registry_elsewhere_cannot_send_us_to_this_machine() -> None:
    client = Client("registry.example", tls={"registry.example": Tls()}, trusted=True, timeout=1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "localhost", "0.0.0.0", "127.1", "0x7f000001", "[::ffff:127.0.0.1]"):
            with pytest.raises(FailedPrecondition, match="an address of this machine itself, which is refused"):
                client.send("GET", parse_url(f"http://{host}:{port}/"), {})
        with pytest.raises(TimeoutError):
            listener.accept()


def test_a_connection_that_was_closed_meanwhile_is_not_used_again() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", stay=True) as connection:
        answer = ask(connection)
        assert body(answer) == b""
        assert not connection.dropped()
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as connection:
        assert body(ask(connection)) == b""
        deadline = time.monotonic() + 10
        while not connection.dropped():
            assert time.monotonic() < deadline


def test_whose_certificate_is_checked_and_who_sees_ours() -> None:
    ours = Tls(verify=False, ca_file="/ca.pem", cert_file="/cert.pem")
    other = Tls(verify=False)
    client = Client("R.example:443", tls={"R.example:443": ours, "auth.example": other}, trusted=True, timeout=1.0)
    found = {
        host: client._tls_of(parse_url(f"https://{host}/"))
        for host in ("r.example", "auth.example", "r.example:8443", "cdn.example")
    }
    assert found == {
        "r.example": ours,
        "auth.example": other,
        "r.example:8443": Tls(verify=False, ca_file="/ca.pem"),
        "cdn.example": Tls(verify=True, ca_file="/ca.pem"),
    }


@pytest.mark.parametrize("home", ["[fd00::1]:443", "[fd00::1]", "[FD00::1]:443"])
def test_a_registry_by_address_may_name_the_usual_port(home: str) -> None:
    ours = Tls(ca_file="/ca.pem", cert_file="/cert.pem")
    client = Client(home, tls={home: ours}, trusted=True, timeout=1.0)
    url = parse_url("https://[fd00::1]/v2/")
    assert (client._is_home(url), client._is_configured(url), client._tls_of(url)) == (True, True, ours)


def test_a_registry_that_nobody_named_has_nothing_done_by_our_certificate() -> None:
    """Where it leads to has its own, for those who are meant to ask there."""
    ours = Tls(ca_file="/ca.pem", cert_file="/cert.pem", key_file="/key.pem")
    for trusted, shown in ((False, Tls(ca_file="/ca.pem")), (True, ours)):
        client = Client("r.example", tls={"r.example": Tls(), "private.example": ours}, trusted=trusted, timeout=1.0)
        assert client._tls_of(parse_url("https://private.example/v2/secret/blobs/x")) == shown


@pytest.mark.parametrize(
    "location", ["//[x", "//x]?sig=[", "https://cdn.example//[x", "https://cdn.example//[?" + "s" * 20]
)
def test_any_location_leads_somewhere_or_is_refused(location: str) -> None:
    client = Client("r.example", tls={"r.example": Tls()}, trusted=False, timeout=1.0)
    with suppress(FailedPrecondition):
        assert client._redirected(parse_url("https://r.example/v2/"), location).host == "cdn.example"
