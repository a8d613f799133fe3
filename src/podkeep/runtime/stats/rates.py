"""CPU in use (CRI: UsageNanoCores) from two readings of a counter.

Owns: the readings it needs, two per container and sandbox, fed by the sampler (``sampler.py``) and, for what the
sampler has not come to yet, by the first request. Thread-safe. Does not own: reading.

Times are nanoseconds of CLOCK_BOOTTIME, which nobody sets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping

from podkeep.base.frozen import FrozenStruct

WINDOW_NS = 1_000_000_000
"""A rate over less time would show the scheduler's slices rather than the load."""
BIRTH_WINDOW_NS = 100_000_000
"""Since a container's start even less will do: better than nothing."""
MAX_WINDOW_NS = 60_000_000_000
"""A rate over more time, say since before the machine slept, is no present use."""


class Sample(FrozenStruct):
    """CPU time used until ``at``, both in nanoseconds."""

    at: int
    used: int


def now() -> int:
    """Return the time that samples are stamped with."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Rates:
    """The last samples by ID."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: dict[str, tuple[Sample, ...]] = {}

    def add(self, samples: Mapping[str, Sample]) -> None:
        """Note a pass of the sampler, and forget everything that is not in it."""
        with self._lock:
            self._samples = {key: (sample, *self._samples.get(key, ())[:1]) for key, sample in samples.items()}

    def rate(self, key: str, current: Sample, *, born: int | None = None) -> int | None:
        """Return the CPU in use as billionths of a core; None if it cannot be said yet.

        :param born: when the counter was 0, if that is known.
        """
        with self._lock:
            known = self._samples.get(key, ())
            if not known:
                self._samples[key] = (current,)
        for base in known:
            if base.used > current.used:
                return None  # another counter than before
            if WINDOW_NS <= current.at - base.at <= MAX_WINDOW_NS:
                return _rate(base, current)
        if born is not None and BIRTH_WINDOW_NS <= current.at - born <= MAX_WINDOW_NS:
            return _rate(Sample(at=born, used=0), current)
        return None

    def keys(self) -> Collection[str]:
        with self._lock:
            return frozenset(self._samples)


def _rate(base: Sample, current: Sample) -> int:
    return (current.used - base.used) * 1_000_000_000 // (current.at - base.at)
