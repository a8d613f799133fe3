"""Which workers a relist wakes."""

from __future__ import annotations

import pytest

from podkeep.agent.manager.runtime_events import Picture, changed

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
