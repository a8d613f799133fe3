"""Spans of time as ``kubectl get`` shows them."""

from __future__ import annotations

import pytest

from podkeep.base.text import durations


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-2, "<invalid>"),
        (-1.5, "0s"),
        (0, "0s"),
        (119.9, "119s"),
        (120, "2m"),
        (121, "2m1s"),
        (599, "9m59s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (10_860, "3h1m"),
        (28_800, "8h"),
        (172_799, "47h"),
        (172_800, "2d"),
        (176_400, "2d1h"),
        (691_200, "8d"),
        (86_400 * 729, "729d"),
        (86_400 * 730, "2y"),
        (86_400 * 731, "2y1d"),
        (86_400 * 365 * 8, "8y"),
        (86_400 * 365 * 9 + 86_400, "9y"),
        (185, "3m5s"),
        (3 * 3600 + 720, "3h12m"),
        (9 * 86400, "9d"),
    ],
)
def test_durations(seconds: float, expected: str) -> None:
    assert durations.short(seconds) == expected
