"""How long to wait before the next attempt: 10 seconds, doubling up to 300, as the kubelet waits. Pure."""

from __future__ import annotations

INITIAL = 10.0
MAXIMUM = 300.0
HEALTHY_AFTER = 2 * MAXIMUM
"""Seconds of running after which a container counts as healthy again."""


class BackOff:
    """Delays per key. Times are seconds since 1970 and come from the caller."""

    def __init__(self) -> None:
        self._delays: dict[str, float] = {}

    def delay(self, key: str) -> float:
        """Return the seconds to wait after the last failure of ``key``; 0 before the first."""
        return self._delays.get(key, 0.0)

    def failed(self, key: str) -> float:
        """Note that ``key`` is tried again after a failure and return the delay that the next failure will cost."""
        self._delays[key] = min(max(self.delay(key) * 2, INITIAL), MAXIMUM)
        return self._delays[key]

    def succeeded(self, key: str) -> None:
        """Forget the failures of ``key``."""
        self._delays.pop(key, None)

    def restarted(self, key: str, ran: float) -> None:
        """Note that a container is started again after it ran for ``ran`` seconds."""
        if ran >= HEALTHY_AFTER:
            self.succeeded(key)
        self.failed(key)
