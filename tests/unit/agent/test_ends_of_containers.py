"""When containers ended and how long they ran, while the time of day is set."""

from __future__ import annotations

import time

import pytest

from podkeep.agent.observed import ContainerView, Observed, State
from podkeep.agent.pod.ends import Ends
from podkeep.base.concurrency.clock import SteadyClock

STEPS = (7200.0, -7200.0)


class Wall:
    """A time of day that a test sets."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    def nanoseconds(self) -> int:
        return int(self() * 1e9)


def seen(*views: ContainerView) -> Observed:
    return Observed(containers={"a": views})


def attempt(state: State, started: int, finished: int = 0) -> ContainerView:
    return ContainerView(
        id="a0", name="a", sandbox_id="s", attempt=0, state=state, started_at=started, finished_at=finished
    )


@pytest.mark.parametrize("step", STEPS)
def test_one_that_runs_while_the_clock_is_set_runs_no_longer_for_that(step: float) -> None:
    wall = Wall()
    ends, started = Ends(SteadyClock(wall)), wall.nanoseconds()
    ends.note(seen(attempt(State.RUNNING, started)))
    wall.ahead = step
    ends.note(seen(attempt(State.EXITED, started, wall.nanoseconds())))
    assert ends.ran["a0"] == pytest.approx(0, abs=60)


@pytest.mark.parametrize("step", STEPS)
def test_one_that_ended_since_the_last_look_ended_just_now(step: float) -> None:
    wall = Wall()
    clock = SteadyClock(wall)
    ends = Ends(clock)
    before = clock.now()
    ends.note(seen())
    started = wall.nanoseconds()
    finished = wall.nanoseconds()
    wall.ahead = step
    ends.note(seen(attempt(State.EXITED, started, finished)))
    assert before <= ends.at["a0"] <= clock.now()
    assert ends.ran["a0"] == pytest.approx(0, abs=60)


def test_what_ended_before_the_first_look_is_believed() -> None:
    wall = Wall()
    clock = SteadyClock(wall)
    ends, now = Ends(clock), wall.nanoseconds()
    ends.note(seen(attempt(State.EXITED, now - 3000 * 10**9, now - 1000 * 10**9)))
    assert clock.now() - ends.at["a0"] == pytest.approx(1000, abs=60)
    assert ends.ran["a0"] == pytest.approx(2000, abs=1)
    wall.ahead = 7200.0
    ends.note(seen(attempt(State.EXITED, now - 3000 * 10**9, now - 1000 * 10**9)))
    assert clock.now() - ends.at["a0"] == pytest.approx(1000, abs=60)
