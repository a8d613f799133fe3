"""Who is ended when a machine shuts down, and in what time."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.agent.eviction import shutdown_plan
from podkeep.api.pod import Pod
from podkeep.base.config import AgentConfig, ShutdownGracePeriod
from support.pods import pod

CRITICAL = 2_000_000_000


def of(priority: int | None, **spec: Any) -> Pod:
    return pod(name=f"p{priority}", **({} if priority is None else {"priority": priority}), **spec)


def named(groups: list[shutdown_plan.Group]) -> list[tuple[float, list[str]]]:
    return [(group.seconds, [one.metadata.name for one in group.pods]) for group in groups]


def test_critical_pods_are_ended_last() -> None:
    given = shutdown_plan.periods(AgentConfig(shutdown_grace_period=30.0, shutdown_grace_period_critical_pods=10.0))

    found = shutdown_plan.groups(given, [of(CRITICAL), of(None), of(5), of(-1), of(CRITICAL + 1)])

    assert named(found) == [(20.0, ["pNone", "p5", "p-1"]), (10.0, [f"p{CRITICAL}", f"p{CRITICAL + 1}"])]
    assert shutdown_plan.total(given) == 30.0


@pytest.mark.parametrize(
    ("priority", "seconds"), [(-5, 10.0), (0, 10.0), (99, 10.0), (100, 20.0), (150, 20.0), (200, 30.0), (999, 30.0)]
)
def test_a_pod_belongs_to_the_highest_priority_that_is_not_above_its_own(priority: int, seconds: float) -> None:
    ranges = tuple(
        ShutdownGracePeriod(priority=low, seconds=time) for low, time in ((200, 30.0), (0, 10.0), (100, 20.0))
    )
    given = shutdown_plan.periods(AgentConfig(shutdown_grace_period_by_pod_priority=ranges))

    (group,) = shutdown_plan.groups(given, [of(priority)])

    assert group.seconds == seconds


def test_without_a_grace_period_nobody_waits() -> None:
    assert shutdown_plan.periods(AgentConfig()) == ()
    assert shutdown_plan.total(()) == 0


@pytest.mark.parametrize(("own", "grace"), [(5, 5), (60, 20), (None, 20)])
def test_a_pod_has_its_own_grace_period_if_that_is_shorter(own: int | None, grace: int) -> None:
    group = shutdown_plan.Group(priority=0, seconds=20.0, pods=())

    found = shutdown_plan.ending(of(0, terminationGracePeriodSeconds=own), group)

    assert (found.grace, found.reason) == (grace, "Terminated")
    assert found.message == "Pod was terminated in response to imminent node shutdown."
