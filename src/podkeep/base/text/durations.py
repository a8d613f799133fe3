"""Spans of time for people, as ``kubectl get`` shows them (apimachinery: ``duration.HumanDuration``)."""

from __future__ import annotations


def short(seconds: float) -> str:
    """Return a span of time in its two largest units, the second of them only where it matters.

    ``<invalid>`` is one of two seconds or more below 0: clocks that differ by less are common.
    """
    whole = int(seconds)  # towards 0, as in Go
    minutes, hours = whole // 60, whole // 3600
    days, years = hours // 24, hours // 24 // 365
    if whole < -1:
        return "<invalid>"
    if seconds < 0:
        return "0s"
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    return _two(years, "y", days % 365, "d") if years < 8 else f"{years}y"


def _two(first: int, unit: str, second: int, smaller: str) -> str:
    return f"{first}{unit}{second}{smaller}" if second else f"{first}{unit}"
