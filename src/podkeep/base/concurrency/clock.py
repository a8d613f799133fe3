"""The time of day, which may be set at any moment, and a steady clock.

What waits (a back-off, a deadline) waits by :class:`SteadyClock`, or by timers of asyncio, which nobody sets either.
What is good until a time of day (a token, a certificate) goes by ``time.time``. Whoever compares two times of day asks
:class:`TimeOfDay` whether it was set between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class TimeOfDay:
    """Tells whether the time of day was set, which is also so when the machine slept.

    :param tolerance: seconds; a smaller step counts as none.
    """

    def __init__(self, tolerance: float, now: Callable[[], float] = time.time) -> None:
        self._tolerance = tolerance
        self._now = now
        self.note()

    def note(self) -> None:
        """Tell from now on whether it was set since now."""
        self._ahead = self._now() - time.monotonic()

    def was_set(self) -> bool:
        return abs(self._now() - time.monotonic() - self._ahead) > self._tolerance


class SteadyClock:
    """Seconds since 1970 as it was when this was made, and from then on whatever is done to the time of day."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._ahead = now() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._ahead

    def of(self, moment: float) -> float:
        """Return by this clock a time of day that has just been learned of; one that is still to come counts as now."""
        return self.now() - max(self._now() - moment, 0.0)
