"""What the parts of the daemon report to whoever counts it.

This one counts nothing: it is in place when no metrics are asked for, so that their library is not loaded (40 ms and
4 MB). The other one is ``metrics.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Counting:
    """Every report is welcome and forgotten."""

    @contextmanager
    def operation(self, name: str, *, streams: bool) -> Iterator[None]:
        """Report one request of the RPC ``name``, with what it raises."""
        yield

    def event_dropped(self) -> None:
        """Report an event that a slow reader lost."""

    def rootfs_made(self, variant: str, seconds: float) -> None:
        """Report that an image was given the owners of a pod, in one way."""

    def rootfs_waited(self, seconds: float) -> None:
        """Report that the request that is being answered waited for that; it is no part of the request's time."""

    def stats_pass(self, seconds: float) -> None:
        """Report a pass of the statistics' sampler."""
