"""Times as the Kubernetes API writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from podkeep.base.text import rfc3339


def test_a_moment_is_written_in_utc_with_whole_seconds() -> None:
    zone = timezone(timedelta(hours=2))
    assert rfc3339.of(datetime(2024, 5, 1, 14, 0, 0, 999_999, zone)) == "2024-05-01T12:00:00Z"
    assert rfc3339.of(datetime(7, 5, 1, tzinfo=UTC)) == "0007-05-01T00:00:00Z"


def test_seconds_are_rounded_down() -> None:
    assert rfc3339.of_seconds(1_714_564_800.9) == "2024-05-01T12:00:00Z"


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (1_714_564_800_999_999_999, "2024-05-01T12:00:00Z"),
        (0, None),
        (-1, None),
        (253_402_300_800 * 10**9 - 1, "9999-12-31T23:59:59Z"),
        (253_402_300_800 * 10**9, None),
    ],
)
def test_times_of_a_runtime(nanoseconds: int, text: str | None) -> None:
    assert rfc3339.of_nanoseconds(nanoseconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-05-01T12:00:00Z", 1_714_564_800.0),
        ("2024-05-01t12:00:00z", 1_714_564_800.0),
        ("2024-05-01T14:00:00.5+02:00", 1_714_564_800.5),
    ],
)
def test_a_text_is_read(text: str, seconds: float) -> None:
    assert rfc3339.seconds(text) == seconds


def test_what_is_not_a_time() -> None:
    with pytest.raises(ValueError, match="Invalid isoformat string"):
        rfc3339.seconds("not a time")
