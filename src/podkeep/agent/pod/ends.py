"""When the containers of a pod ended, by a steady clock: what their next start waits for counts from there.

The runtime says it as a time of day. That is believed when an end is seen first; if the clock is set later, the end is
as long ago as before.
"""

from __future__ import annotations

from collections.abc import Mapping

from podkeep.agent.observed import Observed, State
from podkeep.base.concurrency.clock import SteadyClock

_NS = 1e9


class Ends:
    """Of one pod, for its worker."""

    def __init__(self, clock: SteadyClock) -> None:
        self._clock = clock
        self._at: dict[str, float] = {}

    def note(self, observed: Observed) -> Mapping[str, float]:
        """Return when the attempts ended that have, by the ID of each, in seconds of the clock."""
        ended = [view for views in observed.containers.values() for view in views if view.state is State.EXITED]
        self._at = {
            view.id: self._at[view.id] if view.id in self._at else self._clock.of(view.finished_at / _NS)
            for view in ended
        }
        return self._at
