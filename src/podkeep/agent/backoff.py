"""How long to wait before the next attempt: 10 seconds, doubling up to 300, as the kubelet waits. Pure."""

from __future__ import annotations

from podkeep.agent import durations
from podkeep.base.frozen import FrozenStruct

INITIAL = 10.0
MAXIMUM = 300.0
HEALTHY_AFTER = 600.0
"""Seconds of running after which a container counts as healthy again (kubelet: crashLoopBackOff.HasExpiredFunc)."""


CRASH_LOOP = "CrashLoopBackOff"
EVENT = "BackOff"


def waiting_message(delay: float, container: str, pod: str) -> str:
    """Return what the status of a container that is started again later says (kubelet).

    :param delay: seconds.
    :param pod: its name, namespace and UID as messages have them.
    """
    return f"back-off {durations.text(delay)} restarting failed container={container} pod={pod}"


def event_message(container: str, pod: str) -> str:
    """Return what the event of a container that is started again later says (kubelet)."""
    return f"Back-off restarting failed container {container} in pod {pod}"


class BackOff:
    """Delays per key. Times are seconds since 1970 and come from the caller.

    :param maximum: the longest delay in seconds (kubelet: ``crashLoopBackOff.maxContainerRestartPeriod``).
    """

    def __init__(self, maximum: float = MAXIMUM) -> None:
        self._delays: dict[str, float] = {}
        self._maximum = maximum

    def delay(self, key: str) -> float:
        """Return the seconds to wait after the last failure of ``key``; 0 before the first."""
        return self._delays.get(key, 0.0)

    def failed(self, key: str) -> float:
        """Note that ``key`` is tried again after a failure and return the delay that the next failure will cost."""
        self._delays[key] = min(max(self.delay(key) * 2, INITIAL), self._maximum)
        return self._delays[key]

    def succeeded(self, key: str) -> None:
        self._delays.pop(key, None)

    def restarted(self, key: str, ran: float) -> None:
        """Note that a container is started again after it ran for ``ran`` seconds."""
        if ran > HEALTHY_AFTER:
            self.succeeded(key)
        self.failed(key)


class _Failed(FrozenStruct, kw_only=True):
    at: float
    delay: float
    why: str


class PullBackOff:
    """When to pull an image for a pod again, and why it failed last. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._failed: dict[str, _Failed] = {}

    def left(self, key: str, now: float) -> float:
        """Return the seconds before ``key`` may be tried again; 0 if it may now."""
        failed = self._failed.get(key)
        return 0.0 if failed is None else max(failed.at + failed.delay - now, 0.0)

    def why(self, key: str) -> str:
        """Return why ``key`` failed last; empty if it did not."""
        failed = self._failed.get(key)
        return "" if failed is None else failed.why

    def failed(self, key: str, now: float, why: str) -> None:
        """Note a failure. One that was not tried again for long is forgotten, as are those of pods that are gone."""
        # Nobody says when a pod is gone: what is old is dropped here, or the table would grow for ever.
        kept = {other: item for other, item in self._failed.items() if now - item.at <= HEALTHY_AFTER}
        last = kept.get(key)
        delay = INITIAL if last is None else min(last.delay * 2, MAXIMUM)
        self._failed = kept | {key: _Failed(at=now, delay=delay, why=why)}

    def succeeded(self, key: str) -> None:
        self._failed.pop(key, None)
