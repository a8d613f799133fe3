"""The classes of the node's runtime in the Node object (KEP-3008)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.class_types import ClassTypes
from support.container_mounts import ContainerMounts
from support.daemon import Daemon
from support.running_node import RunningNode, own_base

SOON = "agent.node_status_update_frequency=0.5"
BOLTED = {"name": "bolted", "classes": ["iron", "steel"], "immutable": True}
OOM = {"name": "oom", "classes": ["high", "low"]}


def classes(node: RunningNode) -> dict[str, Any]:
    """Return both lists of the Node, as far as they are there."""
    status = node.ask("GET", f"/api/v1/nodes/{node.name}")["status"]
    return {name: status[name] for name in ("podClassResources", "containerClassResources") if name in status}


def offered(node: RunningNode, name: str) -> bool:
    """Say whether the Node has a type for containers."""
    return any(info["name"] == name for info in classes(node).get("containerClassResources", ()))


@pytest.mark.requirement("Q64", "Q65", "Q91")
def test_the_node_has_the_classes_of_its_runtime(
    open_directory: Path, tmp_path: Path, mounts_of_containers: ContainerMounts
) -> None:
    """They are the runtime's, follow it while the agent runs, and are cleared when the gate is off."""
    types = ClassTypes.make(tmp_path)
    daemon = Daemon(own_base(open_directory), extra=types.toml(), mounts=mounts_of_containers)
    with RunningNode(daemon, settings=(SOON,)) as node:
        found = node.until(lambda: classes(node), "classes")
        assert BOLTED in found["podClassResources"]
        assert BOLTED in found["containerClassResources"]
        assert OOM in found["containerClassResources"]
        assert OOM not in found["podClassResources"]
        assert not offered(node, "extra")
        extra = f'[class_resources.types.extra]\nhook = "{types.hook}"\n[class_resources.types.extra.classes.one]\n'
        daemon.extra = types.toml() + extra
        daemon.write()
        daemon.stop()
        daemon.start()
        node.until(lambda: offered(node, "extra"), "the class that came")
        node.end_agent()
        node.settings = (SOON, "agent.feature_gates.ClassResources=false")
        node.start_agent()
        node.until(lambda: classes(node) == {}, "cleared")
        node.end_agent()
        node.settings = (SOON,)
        node.start_agent()
        node.until(lambda: offered(node, "extra"), "back again")
