"""A node whose machine is booted again, in order and by a loss of power: in the end what is wanted is what is there.

Between the boots: applies, edits, deletions and killed daemons at random (support/chaos.py, which says what makes a run
longer). Whatever was acknowledged is there, pods run again, and nothing is left of those that were deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support import chaos
from support.chaos import Chaos
from support.images import busybox_layout
from support.nested.machine import Machine
from support.nested.node import NestedNode

IMAGE = "localhost/busybox:nested"
STEPS = 10
WRITES = 10
"""Before the power is cut."""
MOST_PODS = 8


@pytest.mark.skipif(
    not chaos.seconds(),
    reason="many minutes of emulation: PODKEEP_CHAOS_SECONDS says how many (CONTRIBUTING.md, Chaos)",
)
@pytest.mark.timeout(7200)
def test_desired_is_actual_over_reboots_and_losses_of_power(boot: Callable[..., Machine], tmp_path: Path) -> None:
    end = time.monotonic() + chaos.seconds()
    node = NestedNode(boot())
    node.start(busybox_layout(tmp_path / "busybox", name=IMAGE))
    before = node.holding()
    running = Chaos(node, IMAGE, chaos.seed(), most_pods=MOST_PODS)
    while True:
        running.steps(STEPS)
        running.settle()
        node.reboot()
        running.booted()
        running.settle()
        running.steps(STEPS // 2)
        running.writes_until(node.cut_power, WRITES)
        running.booted()
        running.settle()
        if time.monotonic() >= end:
            break
    assert node.emptied() == before
