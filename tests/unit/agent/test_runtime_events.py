"""Which workers a relist wakes."""

from __future__ import annotations

import pytest

from podkeep.agent.manager.runtime_events import Picture, changed, pictured
from podkeep.cri.v1 import api_pb2

RUNS, ENDED = frozenset({("c1", 1)}), frozenset({("c1", 2)})


@pytest.mark.parametrize(
    ("before", "now", "woken"),
    [
        ({}, {}, set()),
        ({}, {"a": RUNS}, {"a"}),
        ({"a": RUNS}, {}, {"a"}),
        ({"a": RUNS, "b": RUNS}, {"a": ENDED, "b": RUNS}, {"a"}),
        ({"a": RUNS}, {"a": frozenset({("c2", 1)})}, {"a"}),
    ],
)
def test_pods_that_look_otherwise_than_before(before: Picture, now: Picture, woken: set[str]) -> None:
    assert set(changed(before, now)) == woken


def test_a_relist_that_shows_a_pod_as_its_event_did_wakes_nobody() -> None:
    event = api_pb2.ContainerEventResponse(
        pod_sandbox_status=api_pb2.PodSandboxStatus(id="s1", state=api_pb2.SANDBOX_READY),
        containers_statuses=[api_pb2.ContainerStatus(id="c1", state=api_pb2.CONTAINER_RUNNING)],
    )
    listed = frozenset({("s1", api_pb2.SANDBOX_READY), ("c1", api_pb2.CONTAINER_RUNNING)})
    assert changed({"a": pictured(event)}, {"a": listed}) == []
    assert changed({"a": pictured(event)}, {"a": listed | {("c2", api_pb2.CONTAINER_CREATED)}}) == ["a"]
