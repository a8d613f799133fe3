"""How long a server that says "later" is believed."""

from __future__ import annotations

import socket

import pytest

from podkeep.images.registry.http1 import Answer, Connection
from podkeep.images.registry.retry import TRIES, RetryPolicy, pause


def answer(status: int, later: str = "") -> Answer:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        header = f"Retry-After: {later}\r\n" if later else ""
        theirs.sendall(f"HTTP/1.1 {status} X\r\n{header}Content-Length: 0\r\n\r\n".encode())
        return Connection(ours, timeout=5).exchange("GET", "/", {"Host": "x"})


@pytest.mark.parametrize(
    ("status", "later", "least", "most"),
    [
        (429, "3", 3, 3.1),
        (503, "0", 0, 0.1),
        (503, "", 0.1, 0.4),
        (500, "Fri, 31 Dec 1999 23:59:59 GMT", 0.1, 0.4),
        (502, "-5", 0.1, 0.4),
        (429, "20", 20, 20.1),
    ],
)
def test_seconds(status: int, later: str, least: float, most: float) -> None:
    seconds = RetryPolicy().seconds_to_wait(answer(status, later), 1)
    assert seconds is not None
    assert least <= seconds <= most


@pytest.mark.parametrize(
    ("status", "later", "attempt"), [(200, "", 1), (404, "1", 1), (501, "1", 1), (429, "21", 1), (429, "1", TRIES)]
)
def test_no_use_in_waiting(status: int, later: str, attempt: int) -> None:
    assert RetryPolicy().seconds_to_wait(answer(status, later), attempt) is None


def test_pauses_grow_and_differ() -> None:
    assert len({pause(1) for _ in range(20)}) > 10
    for attempt in range(1, 5):
        assert all(0.125 * 2 ** (attempt - 1) <= pause(attempt) <= 0.25 * 2 ** (attempt - 1) for _ in range(100))


def test_a_wait_is_told_and_a_place_that_is_one_of_several_is_asked_once() -> None:
    told: list[tuple[str, int]] = []
    policy = RetryPolicy(on_wait=lambda what, status, seconds: told.append((what, status)))
    assert policy.wait(answer(503, "0"), 1, "manifest latest")
    assert not policy.wait(answer(404), 1, "manifest latest")
    assert not RetryPolicy(tries=1).wait(answer(503, "0"), 1, "manifest latest")
    assert told == [("manifest latest", 503)]
