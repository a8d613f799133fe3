"""How tests wait for what must happen: for how long, and how often they look.

Machines are busy: with ten times too much to do, pods that take a second take half a minute. What looks all the time
keeps what it waits for from the processor, so the looks become seldom: a wait ends some tenth later than it could.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

TIMEOUT_S = 240.0
"""A limit against hanging, and no measure of speed. Below ``faulthandler_timeout``, so that a test fails with what it
says itself."""
_LEAST_S = 0.01
_MOST_S = 0.2
_SHARE = 0.1
"""Of the time that it has waited, until the next look."""


def wait_for(
    condition: Callable[[], Result],
    what: str | Callable[[], str],
    timeout: float = TIMEOUT_S,
    *,
    least: float = _LEAST_S,
) -> Result:
    """Return the first true value of ``condition``.

    :param what: is waited for; what it returns, of a function, is said with the failure.
    :param least: seconds between two looks.
    :raises AssertionError: if it did not come within ``timeout`` seconds.
    """
    begun = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - begun
        if waited > timeout:
            raise AssertionError(f"waited {timeout:g} s in vain: {what if isinstance(what, str) else what()}")
        time.sleep(max(least, min(waited * _SHARE, _MOST_S)))
    return value
