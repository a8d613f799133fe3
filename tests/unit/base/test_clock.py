"""A steady clock, and noticing that the time of day was set."""

from __future__ import annotations

import time

import pytest

from podkeep.base.concurrency.clock import SteadyClock, TimeOfDay

HOUR, YEAR = 3600.0, 365 * 24 * 3600.0


class SetTime:
    """The time of day, and what is added to it."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.mark.parametrize("change", [HOUR, -HOUR, YEAR, -YEAR])
def test_a_steady_clock_goes_on_when_the_time_of_day_is_set(change: float) -> None:
    now = SetTime()
    clock = SteadyClock(now)
    before = clock.now()
    assert before == pytest.approx(time.time(), abs=5)
    now.ahead = change
    assert 0 <= clock.now() - before < 5


@pytest.mark.parametrize("change", [HOUR, -HOUR])
def test_what_is_learned_after_the_clock_was_set_is_as_long_ago_as_its_time_says(change: float) -> None:
    now = SetTime()
    clock = SteadyClock(now)
    now.ahead = change
    assert clock.of(now() - 10) == pytest.approx(clock.now() - 10, abs=5)


def test_what_is_still_to_come_counts_as_now() -> None:
    """It was told before the clock was set back: nothing waits for as long as that was."""
    clock = SteadyClock()
    assert clock.of(time.time() + HOUR) == pytest.approx(clock.now(), abs=5)


@pytest.mark.parametrize("change", [HOUR, -HOUR])
def test_a_clock_that_is_set_is_noticed_until_that_is_noted(change: float) -> None:
    now = SetTime()
    clock = TimeOfDay(1.0, now)
    now.ahead = 0.5
    assert not clock.was_set()
    now.ahead = change
    assert clock.was_set()
    assert clock.was_set()
    clock.note()
    assert not clock.was_set()
