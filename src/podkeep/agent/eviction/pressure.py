"""Under which pressure a node is, from one look to the next: grace periods, transitions. Pure.

Rules: pkg/kubelet/eviction (synchronize). Times are seconds of a clock that never jumps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from podkeep.agent.resources.thresholds import CONDITIONS, Condition, Observations, Threshold, met
from podkeep.base.frozen import FrozenStruct

_ORDER: tuple[Condition, ...] = ("MemoryPressure", "DiskPressure", "PIDPressure")


class Pressure(FrozenStruct, kw_only=True):
    """What is remembered from one look to the next."""

    conditions: tuple[Condition, ...] = ()
    """Those that the node reports."""
    due: tuple[Threshold, ...] = ()
    """Thresholds for which something is to be reclaimed now: their grace period is over."""
    first_met: Mapping[Threshold, float] = msgspec.field(default_factory=dict)
    seen: Mapping[Condition, float] = msgspec.field(default_factory=dict)
    """When a condition was observed last."""


def advance(
    before: Pressure, thresholds: Iterable[Threshold], observed: Observations, *, now: float, transition: float
) -> Pressure:
    """Return the pressure after another look.

    :param transition: seconds for which a condition is reported after it was observed last.
    """
    low = dict.fromkeys(met(thresholds, observed))
    # What was acted upon is met until the minimum that is to be reclaimed is free, too.
    low |= dict.fromkeys(met(before.due, observed, with_reclaim=True))
    first_met = {threshold: before.first_met.get(threshold, now) for threshold in low}
    seen = dict(before.seen) | {CONDITIONS[threshold.signal]: now for threshold in low}
    return Pressure(
        conditions=tuple(
            # Also with a transition of 0: a condition that is there at this very look is reported.
            name
            for name in _ORDER
            if name in seen and (now - seen[name] < transition or seen[name] == now)
        ),
        due=tuple(item for item, since in first_met.items() if now - since >= (item.grace or 0.0)),
        first_met=first_met,
        seen=seen,
    )
