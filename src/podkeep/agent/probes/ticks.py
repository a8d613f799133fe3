"""When a probe runs next. Pure; times in seconds of one clock."""

from __future__ import annotations

import math


def first(now: float, anchor: float, period: float, not_before: float) -> float:
    """Return the first time of the row ``anchor``, ``anchor + period``, ... that is neither past nor too early.

    A kubelet's ticker runs from the pod's first sync on, through all attempts of a container; so does ``anchor``.
    """
    earliest = max(now, not_before)
    return anchor + max(math.ceil((earliest - anchor) / period), 0) * period


def following(now: float, tick: float, period: float) -> tuple[float, float]:
    """Return when a probe that was due at ``tick`` and has ended runs again, and which time of the row that is.

    One that took longer than its period runs again at once, for one missed time however many there were (a ticker of
    Go keeps one).
    """
    if tick + period > now:
        return tick + period, tick + period
    return now, tick + math.floor((now - tick) / period) * period
