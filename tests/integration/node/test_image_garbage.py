"""Images that no pod needs are removed by a node with a full disk; those of pods stay (KEP-4639, kubelet)."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent.test_run_image_volumes import push
from node.test_image_volume_gate import reader, reasons

from support.registry import Registry
from support.running_node import RunningNode

FULL = (
    "agent.image_gc_high_threshold_percent=1",
    "agent.image_gc_low_threshold_percent=0",
    "agent.image_minimum_gc_age=0.0",
)


def names(node: RunningNode) -> str:
    """Return what the runtime says of its images."""
    return node.daemon.run("image", "ls", "-o", "json", check=True).stdout


def tag(reference: str) -> str:
    return reference.partition("/")[2]


@pytest.mark.requirement("V80", "V83")
def test_a_full_disk(own_node: RunningNode, image: str, registry: Registry, tmp_path: Path) -> None:
    """The image and the volume of a pod stay, an image that nobody needs goes, and the node says it was not enough."""
    volume = push(registry, tmp_path / "volume", "garbage-volume:1", "volume")
    unused = push(registry, tmp_path / "unused", "garbage-unused:1", "unused")
    with own_node as node:
        node.apply(reader(image, volume, "web"))
        node.running("web")
        node.daemon.run("image", "pull", unused, check=True)
        assert tag(unused) in names(node)
        node.end_agent()
        node.settings = FULL
        node.start_agent()
        node.until(lambda: tag(unused) not in names(node), "the unused image gone")
        assert tag(volume) in names(node)
        assert tag(image) in names(node)
        node.until(lambda: "FreeDiskSpaceFailed" in reasons(node, node.name), "FreeDiskSpaceFailed")
        node.delete("web")
        node.gone("web")
