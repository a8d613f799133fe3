"""Nodes for tests: runtime, API and agent, with directories of their own inside the scratch machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.class_types import ClassTypes
from support.container_mounts import ContainerMounts
from support.daemon import Daemon
from support.registry import Registry
from support.running_node import RunningNode, own_base


@pytest.fixture
def own_node(open_directory: Path, registry: Registry, mounts_of_containers: ContainerMounts) -> Iterator[RunningNode]:
    """A node of the test's own, not started; a test starts it with ``with``."""
    extra = f'[registries."{registry.host}"]\ninsecure = true\n'
    node = RunningNode(Daemon(own_base(open_directory), extra=extra, mounts=mounts_of_containers))
    yield node
    node.end()


@pytest.fixture
def node(own_node: RunningNode) -> Iterator[RunningNode]:
    """A node that runs; fails a test that leaves something of a pod on it."""
    with own_node as running:
        before = running.daemon.resources().after_a_restart()
        yield running
        running.require_nothing_left(before)


@pytest.fixture
def classed(open_directory: Path, registry: Registry, mounts_of_containers: ContainerMounts) -> Iterator[RunningNode]:
    """A node whose runtime offers the types of support/class_types.py; not started."""
    base = own_base(open_directory)
    disk = base / "blockio.yaml"
    disk.write_text('Classes:\n  slow:\n  - Devices: ["/dev/nosuch-*"]\n    ThrottleReadBps: "1M"\n')
    types = ClassTypes.make(base).toml(more=f'blockio_config = "{disk}"')
    extra = f'[registries."{registry.host}"]\ninsecure = true\n{types}'
    node = RunningNode(Daemon(base, extra=extra, mounts=mounts_of_containers))
    yield node
    node.end()
