"""Measured times and their summary: what was timed, how often, median and 95th percentile, in milliseconds.

Owns no clock beyond :func:`time.perf_counter`. Used by every measurement of the package.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Median and 95th percentile (nearest rank) of ``n`` times, in milliseconds."""

    p50: float
    p95: float
    n: int

    @classmethod
    def of(cls, values: list[float]) -> Summary:
        """:raises ValueError: if there are no values."""
        if not values:
            raise ValueError("no samples")
        rank = math.ceil(0.95 * len(values)) - 1
        return cls(p50=statistics.median(values), p95=sorted(values)[rank], n=len(values))

    def as_json(self) -> dict[str, float]:
        return {name: round(value, 2) for name, value in asdict(self).items()}


class Samples:
    """Named lists of times in milliseconds; threads may add at once."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time the block under ``name``; a block that raises leaves no sample."""
        start = time.perf_counter()
        yield
        self.add(name, (time.perf_counter() - start) * 1e3)

    def add(self, name: str, milliseconds: float) -> None:
        with self._lock:
            self._values.setdefault(name, []).append(milliseconds)

    def merge(self, other: Samples) -> None:
        for name, values in other._values.items():
            for value in values:
                self.add(name, value)

    def summaries(self) -> dict[str, Summary]:
        return {name: Summary.of(values) for name, values in self._values.items()}

    def values(self, name: str) -> list[float]:
        """What was measured, in its order."""
        return list(self._values.get(name, []))

    def summary(self, name: str) -> Summary:
        return Summary.of(self._values.get(name, []))
