"""Shares of memory: bounded together, whatever runs side by side."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from podkeep.images.worker.assembly import WHOLE, tree_shares

ENTRY = 300
"""Bytes of a tree per file, about."""


@given(sizes=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=40), parallel=st.integers(1, 10))
def test_what_runs_side_by_side_stays_within_the_whole(sizes: list[int], parallel: int) -> None:
    found = tree_shares(sizes, parallel)
    together = sum(sorted(found, reverse=True)[:parallel])
    beside = min(parallel, len(sizes))
    assert together <= max(WHOLE - 32_000_000 * (beside + 1), 16_000_000)
    assert sorted(found) == [share for _, share in sorted(zip(sizes, found, strict=True))]


def test_a_large_layer_alone_has_room_for_a_quarter_of_a_million_files() -> None:
    assert tree_shares([1 << 30], 3)[0] > 250_000 * ENTRY
    assert tree_shares([30 << 20, 500 << 20, 5 << 20], 3)[1] > 60_000 * ENTRY


def test_empty_layers_get_equal_shares() -> None:
    assert tree_shares([], 3) == []
    assert len(set(tree_shares([0, 0, 0], 3))) == 1
