"""What of a head is not given to h11."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.http.heads import Head

GOOD = b"GET / HTTP/1.1\r\nHost: x\r\na: b\tc  d\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "well"),
    [
        (GOOD, True),
        (GOOD.replace(b"\r\n", b"\n"), True),
        (GOOD + b"\0 body\n of any\r bytes", True),
        (b"GET / HTTP/1.1\r\na: " + b" " * 5000 + b"\0\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\na: \x0b\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\na: \x0c\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\na: b\rc\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\na: b\r\n c\r\n\r\n", False),
        (b"GET / HTTP/1.1\na:" + b"\n " * 5000 + b"\n \0\r\n\r\n", False),
        (b"\x16\x03\x01\0", False),
    ],
)
def test_heads(data: bytes, well: bool) -> None:
    assert Head().add(data) is well
    one_by_one = Head()
    assert all(one_by_one.add(bytes([byte])) for byte in data) is well


def test_the_end_and_the_size_of_a_head() -> None:
    head = Head()
    assert head.add(GOOD[:-1])
    assert (head.is_whole, head.size) == (False, len(GOOD) - 1)
    assert head.add(GOOD[-1:] + b"rest")
    assert (head.is_whole, head.size) == (True, len(GOOD))


_PARTS = st.sampled_from([b" ", b"\t", b"\0", b"\r", b"\n", b"\r\n", b"a", b"\x0b"])


@pytest.mark.slow
@given(st.lists(_PARTS, max_size=12), st.data())
def test_pieces_do_not_matter(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    head, at_once = Head(), Head()
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert all(head.add(piece) for piece in pieces) is at_once.add(whole)
