"""What h11 is not given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.http.blanks import MAX_BLANKS, Blanks

MANY = b" " * MAX_BLANKS


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"a: b\r\n\r\n", False),
        (b"a:" + MANY + b"b" + MANY + b"\r\n", False),
        (b"a:" + MANY + b"\0", True),
        (b"a:" + b"\t " * MAX_BLANKS + b"\x0b\r\n", True),
        (b"a:" + MANY + b"\x0c", True),
        (b"a:" + MANY + b"\rb", True),
        (b"a:" + MANY[1:] + b"\0", False),
        (b"\0" + MANY + b"b", False),
        (MANY + b"\r", False),
    ],
)
def test_places(data: bytes, found: bool) -> None:
    assert Blanks().found_in(data) is found
    one_by_one = Blanks()
    assert any(one_by_one.found_in(bytes([byte])) for byte in data) is found


@given(
    st.lists(st.sampled_from([b" ", b"\t", MANY, MANY * 3, b"\0", b"\r", b"\n", b"a", b"\x0b"]), max_size=12), st.data()
)
def test_pieces_do_not_matter(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    pieces, blanks = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)], Blanks()
    assert any(blanks.found_in(piece) for piece in pieces) is Blanks().found_in(whole)


def test_a_megabyte_of_blanks_is_read_once() -> None:
    blanks = Blanks()
    assert not blanks.found_in(b" " * (1 << 20))
    assert blanks.found_in(b"\0")
