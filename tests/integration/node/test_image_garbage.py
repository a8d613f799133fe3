"""Images that no pod needs are removed by a node with a full disk; those of pods stay (KEP-4639, kubelet)."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent.manifests import pod, shell
from agent.test_run_image_volumes import push
from node.test_image_volume_gate import OFF, reader, reasons, restart

from support.artifacts import artifact, file_part
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


@pytest.mark.requirement("V80", "V82", "V83")
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


@pytest.mark.requirement("V84")
def test_without_the_gate_the_images_of_volumes_are_unused(
    own_node: RunningNode, image: str, registry: Registry, tmp_path: Path
) -> None:
    """Also that of a pod that names it: it waits, and will until the gate is on again. A container's image stays."""
    volume = push(registry, tmp_path / "volume", "garbage-gate:1", "volume")
    with own_node as node:
        node.apply(reader(image, volume, "first"))
        node.running("first")
        node.delete("first")
        node.gone("first")
        restart(node, OFF)
        node.apply(reader(image, volume, "web"), pod(shell(image, "sleep 1000"), name="plain", restartPolicy="Always"))
        node.running("plain")
        node.until(lambda: "FailedMount" in reasons(node, "web"), "FailedMount")
        assert tag(volume) in names(node), "not at once"
        restart(node, (*FULL, *OFF))
        node.until(lambda: tag(volume) not in names(node), "the image of the volume gone")
        assert tag(image) in names(node)
        restart(node, ())
        node.running("web")
        for name in ("web", "plain"):
            node.delete(name)
            node.gone(name)


@pytest.mark.requirement("V85")
def test_pressure_of_the_disk_removes_an_artifact(own_node: RunningNode, image: str, registry: Registry) -> None:
    """The disk of images is the one that is low, and an artifact that nobody mounts is the first to go."""
    reference = artifact([file_part("bulk", b"x" * 4096, "application/octet-stream")]).push(registry, "pressed:v1")
    with own_node as node:
        node.daemon.run("image", "pull", reference, check=True)
        assert tag(reference) in names(node)
        node.end_agent()
        node.settings = ('agent.eviction_hard={"imagefs.available" = "99%"}', "agent.image_minimum_gc_age=0.0")
        node.start_agent()
        node.until(lambda: tag(reference) not in names(node), "the artifact gone")
        node.until(lambda: pressed(node), "DiskPressure")


def pressed(node: RunningNode) -> bool:
    """Return whether the node says that its disk is low."""
    conditions = node.ask("GET", f"/api/v1/nodes/{node.name}")["status"].get("conditions", ())
    return any(item["type"] == "DiskPressure" and item["status"] == "True" for item in conditions)
