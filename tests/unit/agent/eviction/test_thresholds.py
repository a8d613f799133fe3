"""Thresholds of node pressure: how they are read, when they are met, what a signal of containers' file system means."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.agent.resources import thresholds
from podkeep.agent.resources.thresholds import Observation, Threshold, Value
from podkeep.base.config import AgentConfig
from podkeep.base.errors import InvalidArgument

MI = 1 << 20


def read(**fields: Any) -> dict[tuple[str, float | None], Threshold]:
    found = thresholds.read(AgentConfig(**({"eviction_hard": {}} | fields)))
    return {(item.signal, item.grace): item for item in found}


def test_hard_and_soft_thresholds_with_their_grace_and_minimum_reclaim() -> None:
    found = read(
        eviction_hard={"memory.available": "100Mi"},
        eviction_soft={"nodefs.available": "15%"},
        eviction_soft_grace_period={"nodefs.available": 90.0},
        eviction_minimum_reclaim={"nodefs.available": "1Gi"},
    )

    assert found[("memory.available", None)].is_hard
    assert found[("nodefs.available", 90.0)] == Threshold(
        signal="nodefs.available", value=Value(part=0.15), grace=90.0, reclaim=Value(text="1Gi")
    )
    # All pods together have a limit, for which the machine's hard threshold holds, too.
    assert found[("allocatableMemory.available", None)].value == Value(text="100Mi")
    assert len(found) == 3


def test_pods_that_are_not_held_to_the_allocatable_have_no_threshold_of_their_own() -> None:
    found = read(eviction_hard={"memory.available": "100Mi"}, enforce_node_allocatable=("none",))

    assert list(found) == [("memory.available", None)]


@pytest.mark.parametrize("text", ["0%", "100%"])
def test_a_threshold_that_is_switched_off(text: str) -> None:
    assert read(eviction_hard={"nodefs.available": text}) == {}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"eviction_hard": {"memory.free": "1Gi"}}, "eviction_hard: unsupported eviction signal memory.free"),
        ({"eviction_hard": {"allocatableMemory.available": "1Gi"}}, "unsupported eviction signal"),
        ({"eviction_hard": {"memory.available": "lots"}}, "eviction_hard: memory.available: 'lots' is not a quantity"),
        ({"eviction_hard": {"memory.available": "-1Gi"}}, "memory.available must be positive"),
        ({"eviction_hard": {"memory.available": "0"}}, "memory.available must be positive"),
        ({"eviction_hard": {"nodefs.available": "101%"}}, "is not between 0% and 100%"),
        ({"eviction_hard": {"nodefs.available": "x%"}}, "nodefs.available: could not convert"),
        ({"eviction_soft": {"memory.available": "1Gi"}}, "grace period must be specified for the soft eviction thres"),
        ({"eviction_minimum_reclaim": {"pid.free": "1"}}, "eviction_minimum_reclaim: unsupported eviction signal"),
    ],
)
def test_what_cannot_be_read(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        read(**settings)


@pytest.mark.parametrize(
    ("value", "available", "with_reclaim", "met"),
    [
        (Value(text="100Mi"), 100 * MI, False, False),
        (Value(text="100Mi"), 100 * MI - 1, False, True),
        (Value(part=0.1), 102 * MI, False, True),
        (Value(part=0.1), 103 * MI, False, False),
        # What is to be reclaimed beyond the threshold counts once it was met.
        (Value(text="100Mi"), 110 * MI, True, True),
        (Value(text="100Mi"), 150 * MI, True, False),
    ],
)
def test_met(value: Value, available: int, with_reclaim: bool, met: bool) -> None:
    threshold = Threshold(signal="memory.available", value=value, reclaim=Value(text="50Mi"))
    observed = {"memory.available": Observation(available=available, capacity=1024 * MI)}

    assert bool(thresholds.met([threshold], observed, with_reclaim=with_reclaim)) is met


def test_a_signal_that_was_not_observed_is_not_low() -> None:
    assert thresholds.met([Threshold(signal="pid.available", value=Value(text="10"))], {}) == ()


@pytest.mark.parametrize(
    ("images_apart", "layers_apart", "source"),
    [(False, False, "10%"), (True, False, "15%"), (True, True, "10%")],
)
def test_containers_file_system(images_apart: bool, layers_apart: bool, source: str) -> None:
    hard = {"nodefs.available": "10%", "imagefs.available": "15%", "containerfs.available": "1%"}
    given = thresholds.read(AgentConfig(eviction_hard=hard))

    found = thresholds.for_filesystems(given, images_apart=images_apart, layers_apart=layers_apart)

    values = [item.value for item in found if item.signal == "containerfs.available"]
    assert values == [Value(part=float(source[:-1]) / 100)]


@pytest.mark.parametrize(
    ("value", "signal", "text"),
    [
        (Value(text="100Mi"), "memory.available", "100Mi"),
        (Value(text="104857600"), "memory.available", "104857600"),
        (Value(part=0.25), "memory.available", "256Mi"),
        (Value(part=0.1), "memory.available", "107374182"),
        (Value(part=0.5), "nodefs.inodesFree", "536870912"),
    ],
)
def test_how_an_amount_is_shown(value: Value, signal: str, text: str) -> None:
    assert value.shown(signal, 1024 * MI) == text
