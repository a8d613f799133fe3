"""The feature gate ImageVolume of an agent: off, on, off again, with pods that wait and pods that run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent.manifests import image_volume, mount, pod, shell
from agent.test_run_image_volumes import push
from node.test_pod_volumes import log_of

from support.cri import Pods
from support.older import IMAGE_VOLUME, without
from support.registry import Registry
from support.running_node import RunningNode

OFF = ("agent.feature_gates.ImageVolume=false",)
NO_PLUGIN = 'for volume "volume" err=no volume plugin matched'


def reader(image: str, data: str, name: str) -> dict[str, Any]:
    """Return a pod that says what is in an image volume, and runs on."""
    container = shell(image, "cat /volume/file; sleep 1000", volumeMounts=[mount()])
    return pod(container, name=name, volumes=[image_volume(data)], restartPolicy="Always")


def reasons(node: RunningNode, name: str) -> dict[str, str]:
    """Return the last message of each reason among a pod's events."""
    return {event["reason"]: event["message"] for event in node.events(name)}


def container_of(node: RunningNode, name: str) -> tuple[str, int]:
    status = node.running(name)["status"]["containerStatuses"][0]
    return status["containerID"], status["restartCount"]


def restart(node: RunningNode, settings: tuple[str, ...]) -> None:
    node.end_agent()
    node.settings = settings
    node.start_agent()


@pytest.mark.requirement("V86", "V87", "V89", "V93")
def test_up_down_up(own_node: RunningNode, image: str, registry: Registry, tmp_path: Path) -> None:
    """Off: nothing is pulled and the pod waits. On: it starts as it is. Off again: it runs on, new ones wait."""
    data = push(registry, tmp_path / "data", "gate-volume:1", "data")
    own_node.settings = OFF
    with own_node as node:
        node.apply(reader(image, data, "first"))
        node.until(lambda: "FailedMount" in reasons(node, "first"), "FailedMount")
        assert reasons(node, "first")["FailedMount"].endswith(NO_PLUGIN)
        assert "Pulling" not in reasons(node, "first")
        restart(node, ())
        first = container_of(node, "first")
        node.until(lambda: log_of(node, "first") == "data", "the volume's content")
        restart(node, OFF)
        node.apply(reader(image, data, "second"))
        node.until(lambda: "FailedMount" in reasons(node, "second"), "FailedMount")
        assert container_of(node, "first") == first
        restart(node, ())
        node.running("second")
        assert container_of(node, "first") == first
        for name in ("first", "second"):
            node.delete(name)
            node.gone(name)
        assert node.left_behind() == []


@pytest.mark.requirement("V88", "V89")
def test_an_agent_that_does_not_know_the_source(
    own_node: RunningNode, image: str, registry: Registry, tmp_path: Path
) -> None:
    """It is older than image volumes: no container starts, and none with an empty directory. A newer one starts it."""
    data = push(registry, tmp_path / "data", "older-agent:1", "data")
    own_node.environment = without(IMAGE_VOLUME, own_node.daemon.base)
    with own_node as node:
        node.apply(reader(image, data, "web"))
        node.until(lambda: "FailedMount" in reasons(node, "web"), "FailedMount")
        assert reasons(node, "web")["FailedMount"].endswith(NO_PLUGIN)
        found = node.get("web")
        assert found is not None
        (status,) = found["status"]["containerStatuses"]
        assert status["state"]["waiting"]["reason"] == "ContainerCreating"
        node.end_agent()
        node.environment = {}
        node.start_agent()
        node.running("web")
        node.until(lambda: log_of(node, "web") == "data", "the volume's content")


@pytest.mark.requirement("V102", "V22")
def test_volumes_go_on_without_the_api(own_node: RunningNode, image: str, registry: Registry, tmp_path: Path) -> None:
    """Nothing new can be made; who runs keeps its content, then and over a restart of the agent."""
    data = push(registry, tmp_path / "old", "moves:1", "old")

    def content(name: str) -> str:
        with Pods(node.daemon.socket, image) as client:
            (container,) = (item.id for item in client.containers() if item.labels["io.kubernetes.pod.name"] == name)
            return client.read(container, "cat /volume/file")

    with own_node as node:
        node.apply(reader(image, data, "first"))
        first = container_of(node, "first")
        node.api.stop()
        push(registry, tmp_path / "new", "moves:1", "new")
        refused = node.api.kubectl("run", "late", f"--image={image}", status=1)
        assert "refused" in refused
        assert content("first") == "old"
        node.api.start()
        restart(node, ())
        assert container_of(node, "first") == first
        assert content("first") == "old"
        later = reader(image, data, "later")
        later["spec"]["volumes"] = [image_volume(data, pullPolicy="Always")]
        node.apply(later)
        node.running("later")
        assert content("later") == "new"
        assert content("first") == "old"
