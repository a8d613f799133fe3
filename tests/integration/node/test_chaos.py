"""Applies, edits, deletions and killed daemons, at random: in the end what is wanted is what is there.

With reboots and power that is cut: tests/nested/test_node_reboots.py. What a longer run needs: support/chaos.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import chaos
from support.chaos import Chaos
from support.container_mounts import ContainerMounts
from support.registry import Registry
from support.running_node import RunningNode, own_base
from support.supervised_node import SupervisedDaemon, SupervisedNode

STEPS = 40
"""Of a short run; the seed is in the test's output when it fails."""
ROUND = 60
"""Steps after which a long run looks whether all is as it is to be."""


@pytest.fixture
def supervised(
    open_directory: Path, registry: Registry, mounts_of_containers: ContainerMounts
) -> Iterator[SupervisedNode]:
    """A ``podkeep node``; fails a test that leaves something of a pod on it."""
    daemon = SupervisedDaemon.of(own_base(open_directory), registry.host, mounts_of_containers)
    with SupervisedNode(daemon) as running:
        before = daemon.resources().after_a_restart()
        yield running
        running.require_nothing_left(before)


@pytest.mark.timeout(3600)
def test_desired_is_actual_whatever_is_killed_under_a_supervisor(supervised: SupervisedNode, image: str) -> None:
    """The same under ``podkeep node``, which starts its daemons again by itself; it is killed, too."""
    shake(supervised, image)


@pytest.mark.timeout(3600)
def test_desired_is_actual_whatever_happened(node: RunningNode, image: str) -> None:
    """After random steps every pod is as it is to be; the fixture sees that nothing is left when they are deleted."""
    shake(node, image)


def shake(node: RunningNode, image: str) -> None:
    """Take random steps, and wait until every pod is as it is to be."""
    end = time.monotonic() + chaos.seconds()
    running = Chaos(node, image, chaos.seed())
    running.steps(STEPS)
    while time.monotonic() < end:
        running.steps(ROUND)
        running.settle()
    running.settle()
