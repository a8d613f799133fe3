"""Spans of time as Kubernetes writes them in its messages: ``1m2.5s``, ``850ms``. Pure."""

from __future__ import annotations


def text(seconds: float) -> str:
    """Return ``seconds`` as Go writes a duration, cut to milliseconds."""
    milliseconds = int(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    last = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{last}"
    return f"{minutes}m{last}" if minutes else last
