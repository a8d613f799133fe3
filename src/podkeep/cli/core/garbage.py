"""How often Python looks for garbage (objects that only refer to each other): rarely in a program that starts or ends.

What is imported and made by then is hardly ever garbage, and to look through it takes a fifth of the time of a verb.
"""

from __future__ import annotations

import atexit
import gc

_MANY = 50_000
"""Allocations less deallocations at which the collector runs (gc.set_threshold): the verbs with the most imports stay
just below it, and it is a few megabytes.
"""
_USUAL = gc.get_threshold()


def rarely() -> None:
    """Look when many objects were made, and not at the end of the process, with which all of them go."""
    gc.set_threshold(_MANY)
    atexit.register(gc.freeze)


def as_usual() -> None:
    """Look as Python does by itself: this process goes on for long."""
    gc.set_threshold(*_USUAL)
