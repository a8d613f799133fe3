"""Under which pressure a node is over several looks."""

from __future__ import annotations

from podkeep.agent.eviction.pressure import Pressure, advance
from podkeep.agent.resources.thresholds import Observation, Threshold, Value

HARD = Threshold(signal="memory.available", value=Value(text="100"))
SOFT = Threshold(signal="memory.available", value=Value(text="200"), grace=30.0)
DISK = Threshold(signal="nodefs.available", value=Value(text="100"), reclaim=Value(text="50"))


def look(before: Pressure, now: float, memory: int = 1000, disk: int = 1000) -> Pressure:
    observed = {
        "memory.available": Observation(available=memory, capacity=1000),
        "nodefs.available": Observation(available=disk, capacity=1000),
    }
    return advance(before, (HARD, SOFT, DISK), observed, now=now, transition=60.0)


def test_a_hard_threshold_is_due_at_once_and_its_condition_stays_for_the_transition_period() -> None:
    low = look(Pressure(), 100.0, memory=99)
    assert low.due == (HARD,)
    assert low.conditions == ("MemoryPressure",)

    over = look(low, 110.0)
    assert over.due == ()
    assert over.conditions == ("MemoryPressure",)
    assert look(over, 159.0).conditions == ("MemoryPressure",)
    assert look(over, 160.0).conditions == ()


def test_a_soft_threshold_is_due_once_it_was_met_all_the_time() -> None:
    first = look(Pressure(), 100.0, memory=150)
    assert first.due == ()
    assert first.conditions == ("MemoryPressure",)
    assert look(first, 129.0, memory=150).due == ()
    assert look(first, 130.0, memory=150).due == (SOFT,)

    again = look(look(first, 120.0), 125.0, memory=150)
    assert look(again, 135.0, memory=150).due == ()


def test_what_is_to_be_reclaimed_beyond_the_threshold() -> None:
    low = look(Pressure(), 100.0, disk=99)
    assert low.due == (DISK,)

    assert look(low, 110.0, disk=149).due == (DISK,)
    assert look(low, 110.0, disk=150).due == ()
    # Above the threshold there is nothing to reclaim unless it was met.
    assert look(Pressure(), 110.0, disk=120).due == ()


def test_conditions_are_in_one_order() -> None:
    assert look(look(Pressure(), 100.0, disk=1), 110.0, memory=1).conditions == ("MemoryPressure", "DiskPressure")


def test_a_condition_without_a_transition_period_holds_while_it_is_seen() -> None:
    observed = {"memory.available": Observation(available=1, capacity=10)}

    found = advance(Pressure(), (HARD,), observed, now=5.0, transition=0.0)

    assert found.conditions == ("MemoryPressure",)
    assert advance(found, (HARD,), {}, now=6.0, transition=0.0).conditions == ()
