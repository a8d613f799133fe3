"""What is kept of the newest revisions."""

from __future__ import annotations

from podkeep.apiserver.list_watch.recent import ENTRY_BYTES, Recent


def test_the_oldest_are_given_up_for_new_ones() -> None:
    kept: Recent[int, bytes] = Recent(3 * (ENTRY_BYTES + 10))
    for number in range(5):
        assert kept.put(number, b"x" * 10, 10) == b"x" * 10
    assert [kept.get(number) for number in range(5)] == [None, None, *[b"x" * 10] * 3]
    assert kept.put(5, b"y" * 200, 200) == b"y" * 200
    assert (len(kept), kept.get(5), kept.size <= 3 * (ENTRY_BYTES + 10)) == (2, b"y" * 200, True)


def test_what_is_too_large_is_not_kept_and_takes_no_room_from_others() -> None:
    kept: Recent[str, bytes] = Recent(ENTRY_BYTES + 10)
    kept.put("a", b"1", 1)
    assert kept.put("b", b"2" * 11, 11) == b"2" * 11
    assert (kept.get("a"), kept.get("b"), kept.size) == (b"1", None, ENTRY_BYTES + 1)
    kept.put("a", b"1", 1)
    assert (len(kept), kept.size) == (1, ENTRY_BYTES + 1)
