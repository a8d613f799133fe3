"""What pods can have of a machine: capacity, reserves, what eviction keeps free."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.agent.resources import allocatable
from podkeep.base.config import AgentConfig
from podkeep.base.errors import InvalidArgument

GI = 1 << 30
CAPACITY = {
    "cpu": 4000,
    "memory": 16 * GI,
    "ephemeral-storage": 100 * GI,
    "pods": 110,
    "pid": 32768,
    "hugepages-2Mi": GI,
}


def agent(**fields: Any) -> AgentConfig:
    return AgentConfig(**({"eviction_hard": {}} | fields))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (agent(), {"cpu": "4", "memory": "15Gi", "ephemeral-storage": "100Gi", "pods": "110", "hugepages-2Mi": "1Gi"}),
        (AgentConfig(), {"memory": "15260Mi", "ephemeral-storage": "90Gi"}),
        (
            agent(
                kube_reserved={"cpu": "100m", "memory": "1Gi", "pid": "1000"},
                system_reserved={"cpu": "400m", "ephemeral-storage": "10Gi"},
            ),
            {"cpu": "3500m", "memory": "14Gi", "ephemeral-storage": "90Gi"},
        ),
        (agent(eviction_hard={"memory.available": "25%", "pid.available": "10%"}), {"memory": "11Gi"}),
        # A soft threshold keeps nothing free.
        (
            agent(eviction_soft={"memory.available": "1Gi"}, eviction_soft_grace_period={"memory.available": 60.0}),
            {"memory": "15Gi"},
        ),
    ],
)
def test_allocatable(settings: AgentConfig, expected: dict[str, str]) -> None:
    found = allocatable.texts(allocatable.allocatable(CAPACITY, settings))

    assert {name: found[name] for name in expected} == expected
    assert "pid" not in found


def test_more_reserved_than_there_is() -> None:
    with pytest.raises(InvalidArgument, match=r'Resource "cpu" has a reservation of 5 but capacity of 4\.'):
        allocatable.allocatable(CAPACITY, agent(kube_reserved={"cpu": "5"}))


def test_pods_are_held_to_what_is_left_by_the_reserves_and_not_by_eviction() -> None:
    settings = AgentConfig(kube_reserved={"memory": "1Gi", "pid": "768"})

    assert allocatable.enforced(CAPACITY, settings)["memory"] == 15 * GI
    assert allocatable.enforced(CAPACITY, settings)["pid"] == 32000


def test_pods_that_are_not_held_to_it_have_the_whole_machine() -> None:
    settings = agent(kube_reserved={"memory": "1Gi"}, enforce_node_allocatable=("none",))

    assert allocatable.enforced(CAPACITY, settings) == CAPACITY
