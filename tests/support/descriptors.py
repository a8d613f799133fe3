"""The open descriptors of the process that runs the tests, counted before and after."""

from __future__ import annotations

import gc
import os


def open_descriptors() -> list[str]:
    """Return their numbers; what an earlier test left in objects that refer to each other is closed first."""
    found: list[str] = []
    while True:
        # Again, until nothing more is closed: what is collected may let go of other such objects.
        gc.collect()
        before, found = found, sorted(os.listdir("/proc/self/fd"))
        if found == before:
            return found
