"""How long to wait after a failure: twice as long each time, up to a limit."""

from __future__ import annotations

import math
import random
import time

FIRST_WAIT_S, MAX_WAIT_S = 0.8, 30.0
_FORGET_S = 120.0


class Backoff:
    """The waits of one loop, in seconds; by default those of client-go's reflector.

    :param forget: seconds without a failure, after which the first wait is the first again.
    :param jitter: share of a wait that is added to it at most, at random.
    """

    def __init__(
        self, first: float = FIRST_WAIT_S, most: float = MAX_WAIT_S, forget: float = _FORGET_S, jitter: float = 1.0
    ) -> None:
        self._first, self._most, self._forget, self._jitter = first, most, forget, jitter
        self._next, self._last = first, float("-inf")

    def next(self) -> float:
        """Return the seconds to wait now."""
        now = time.monotonic()
        if now - self._last > self._forget:
            self._next = self._first
        self._last = now
        wait, self._next = self._next, min(self._next * 2, self._most)
        # The random part keeps those that failed together from coming back together.
        return wait * (1 + random.random() * self._jitter)


def doubling(first: float, most: float) -> Backoff:
    """Return waits without a random part for a loop that ends with its first success."""
    return Backoff(first, most, forget=math.inf, jitter=0.0)
