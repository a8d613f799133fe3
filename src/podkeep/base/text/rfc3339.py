"""Times as the Kubernetes API writes them: RFC 3339, in UTC, with whole seconds (``metav1.Time``)."""

from __future__ import annotations

from datetime import UTC, datetime

_LATEST_S = 253_402_300_799
"""The last second that RFC 3339 can say, which a runtime's clock may be beyond: the end of the year 9999."""


def of(moment: datetime) -> str:
    """Return a moment, which knows its time zone, as ``2024-05-01T12:00:00Z``."""
    moment = moment.astimezone(UTC)
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}Z"  # %Y is not padded


def of_seconds(seconds: float) -> str:
    """Return a time in seconds since 1970.

    :raises ValueError: if it is beyond the year 9999.
    """
    return of(datetime.fromtimestamp(int(seconds), UTC))


def of_nanoseconds(nanoseconds: int) -> str | None:
    """Return a time in nanoseconds since 1970; ``None`` for 0, which CRI says for never, and for what has no text."""
    seconds = nanoseconds // 10**9
    return of_seconds(seconds) if nanoseconds > 0 and seconds <= _LATEST_S else None


def seconds(text: str) -> float:
    """Return what a text says in seconds since 1970, with its fraction.

    :raises ValueError: if it is no such time.
    """
    return datetime.fromisoformat(text.upper()).timestamp()
