"""Streams with two ends on threads of their own."""

from __future__ import annotations

import threading

import pytest

from podkeep.images.layers.stages import Ahead, Aside


def test_pieces_come_in_order_and_the_end_stays_the_end() -> None:
    pieces = iter([b"%d" % number for number in range(100)])
    ahead = Ahead(lambda: next(pieces, b""))

    assert [ahead.pull() for _ in range(100)] == [b"%d" % number for number in range(100)]
    assert [ahead.pull(), ahead.pull()] == [b"", b""]


@pytest.mark.slow
def test_it_stays_only_some_pieces_ahead() -> None:
    made = threading.Semaphore(0)
    count = 0

    def pull() -> bytes:
        nonlocal count
        count += 1
        made.release()
        return b"piece"

    ahead = Ahead(pull)
    for _ in range(9):  # eight that wait, and one that waits for a place
        assert made.acquire(timeout=10)

    assert not made.acquire(timeout=0.1)
    assert count == 9
    assert ahead.pull() == b"piece"
    assert made.acquire(timeout=10)


def test_an_error_comes_after_what_was_before_it_and_once() -> None:
    pieces = iter([b"first"])

    def pull() -> bytes:
        for piece in pieces:
            return piece
        raise ValueError("damaged")

    ahead = Ahead(pull)

    assert ahead.pull() == b"first"
    with pytest.raises(ValueError, match="damaged"):
        ahead.pull()
    assert ahead.pull() == b""


def test_everything_is_taken_before_finish_returns() -> None:
    taken: list[bytes] = []
    aside = Aside(taken.append)
    for number in range(100):
        aside.put(b"%d" % number)

    aside.finish()

    assert taken == [b"%d" % number for number in range(100)]


def test_an_error_is_raised_at_the_end_and_blocks_nobody() -> None:
    def take(piece: bytes) -> None:
        raise OSError(28, "No space left on device")

    aside = Aside(take)

    def put_many() -> None:
        for _ in range(100):
            aside.put(b"piece")

    with pytest.raises(OSError, match="No space left"):
        put_many()
    with pytest.raises(OSError, match="No space left"):
        aside.finish()
