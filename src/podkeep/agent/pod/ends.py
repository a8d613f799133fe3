"""When the containers of a pod ended, and how long they ran, by a steady clock: what their next start waits for.

The runtime says when they started and ended as times of day. These are believed when they are seen first; if the clock
is set later, they are as long ago as before. What was not there at one look has not happened before it, wherever the
clock was set to meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from podkeep.agent.observed import ContainerView, Observed, State
from podkeep.base.concurrency.clock import SteadyClock

_NS = 1e9


class Ends:
    """Of one pod, for its worker."""

    def __init__(self, clock: SteadyClock) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}
        self._at: dict[str, float] = {}
        self._looked = 0.0

    @property
    def at(self) -> Mapping[str, float]:
        """When the attempts ended that have, by the ID of each, in seconds of the clock."""
        return self._at

    @property
    def ran(self) -> Mapping[str, float]:
        """For how many seconds these ran."""
        return {identity: max(at - self._began.get(identity, at), 0.0) for identity, at in self._at.items()}

    def note(self, observed: Observed) -> None:
        """Take in what was seen just now."""
        views = [view for attempts in observed.containers.values() for view in attempts]
        self._began = {view.id: self._moment(self._began, view, view.started_at) for view in views if view.started_at}
        ended = [view for view in views if view.state is State.EXITED]
        self._at = {view.id: self._moment(self._at, view, view.finished_at) for view in ended}
        self._looked = self._clock.now()

    def _moment(self, known: Mapping[str, float], view: ContainerView, stamp: int) -> float:
        return known[view.id] if view.id in known else max(self._clock.of(stamp / _NS), self._looked)
