"""Classes (KEP-3008) of pods on a node: resize, gates of the agent, an API that is gone."""

from __future__ import annotations

from typing import Any

import pytest
from agent.manifests import FOREVER, pod, shell

from support.api_audit import Audit
from support.class_types import in_force
from support.cri import Pods
from support.running_node import RunningNode


def in_classes(image: str, name: str = "web", pod_classes: dict[str, str] | None = None, **classes: str) -> Any:
    """Return a pod that runs until it is deleted, its container and itself in classes."""
    container = shell(image, FOREVER) | {"resources": {"classes": classes}}
    spec = {} if pod_classes is None else {"resources": {"classes": pod_classes}}
    return pod(container, name=name, restartPolicy="Always", **spec)


def resize(node: RunningNode, name: str, **change: Any) -> None:
    node.patch(name, {"spec": change}, subresource="resize")


def container_id(found: dict[str, Any]) -> str:
    identity: str = found["status"]["containerStatuses"][0]["containerID"]
    return identity.partition("//")[2]


def condition(found: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next((item for item in found["status"].get("conditions", ()) if item["type"] == kind), None)


@pytest.mark.requirement("Q59")
def test_a_resize_changes_classes_of_what_runs(classed: RunningNode, image: str) -> None:
    """Classes of a container and of a pod change in place; of an immutable type they do not, and the status says so."""
    with classed as node, Pods(node.daemon.socket, image) as runtime:
        node.apply(in_classes(image, pod_classes={"share": "small"}, watched="good", bolted="iron"))
        before = container_id(node.running("web"))
        (sandbox,) = [item.id for item in runtime.sandboxes()]

        classes = {"watched": "fine", "bolted": "iron"}
        resize(node, "web", containers=[{"name": "main", "resources": {"classes": classes}}])
        node.until(lambda: in_force(runtime, container=before)["watched"] == "fine", "the container in its class")

        resize(node, "web", resources={"classes": {"share": "big"}})
        node.until(lambda: in_force(runtime, sandbox=sandbox)["share"] == "big", "the pod in its class")
        after = node.pod("web", lambda found: condition(found, "PodResizeInProgress") is None, "resized")
        assert container_id(after) == before

        resize(node, "web", containers=[{"name": "main", "resources": {"classes": classes | {"bolted": "steel"}}}])
        refused = node.pod("web", lambda found: condition(found, "PodResizePending"), "refused")
        said = condition(refused, "PodResizePending")
        assert said is not None
        assert said["reason"] == "Infeasible"
        assert "class resource bolted: the class of container main cannot be changed while it runs" in said["message"]
        assert in_force(runtime, container=before)["bolted"] == "iron"


@pytest.mark.requirement("Q62")
def test_what_failed_with_the_gate_off_has_to_be_made_anew(classed: RunningNode, image: str) -> None:
    """With the agent's gate off a pod that asks for a class fails; on again, it stays so until it is made anew."""
    with classed as node, Pods(node.daemon.socket, image) as runtime:
        node.end_agent()
        on, node.settings = node.settings, ("agent.feature_gates.ClassResources=false",)
        node.start_agent()
        node.apply(in_classes(image, watched="good"))
        failed = node.phase("web", "Failed")
        assert "class resource watched" in failed["status"]["message"]

        node.end_agent()
        node.settings = on
        node.start_agent()
        node.apply(in_classes(image, "other", watched="good"))
        node.running("other")
        still = node.get("web")
        assert still is not None
        assert still["status"]["phase"] == "Failed"

        node.delete("web")
        node.gone("web")
        node.apply(in_classes(image, watched="good"))
        assert in_force(runtime, container=container_id(node.running("web")))["watched"] == "good"


@pytest.mark.requirement("Q26", "Q82")
def test_annotations_over_switching_the_gate_off_and_on(classed: RunningNode, image: str) -> None:
    """With the gate off a container that runs keeps its class, one that is started again has none; on again, it has."""
    with classed as node, Pods(node.daemon.socket, image) as runtime:
        document = in_classes(image)
        document["metadata"]["annotations"] = {"blockio.resources.alpha.kubernetes.io/container.main": "slow"}
        node.apply(document)
        first = container_id(node.running("web"))
        assert in_force(runtime, container=first)["blockio"] == "slow"

        def restart_agent(*settings: str) -> None:
            node.end_agent()
            node.settings = settings
            node.start_agent()

        def started_after(before: str) -> str:
            runtime.stop(before)
            found = node.pod("web", lambda found: container_id(found) != before and running(found), "started again")
            return container_id(found)

        restart_agent("agent.feature_gates.ClassResources=false")
        assert in_force(runtime, container=first)["blockio"] == "slow"
        second = started_after(first)
        assert "blockio" not in in_force(runtime, container=second)

        restart_agent()
        assert container_id(node.running("web")) == second
        assert "blockio" not in in_force(runtime, container=second)
        third = started_after(second)
        assert in_force(runtime, container=third)["blockio"] == "slow"


def running(found: dict[str, Any]) -> bool:
    return "running" in found["status"]["containerStatuses"][0]["state"]


@pytest.mark.requirement("Q61")
def test_a_class_that_a_field_names_over_switching_the_gate_off(classed: RunningNode, image: str) -> None:
    """What runs keeps its class; started again, its container fails, and does not run without what it asks for."""
    with classed as node, Pods(node.daemon.socket, image) as runtime:
        node.apply(in_classes(image, watched="good"))
        first = container_id(node.running("web"))
        node.end_agent()
        node.settings = ("agent.feature_gates.ClassResources=false",)
        node.start_agent()
        assert in_force(runtime, container=first)["watched"] == "good"
        assert container_id(node.running("web")) == first
        runtime.stop(first)

        def why(found: dict[str, Any]) -> dict[str, str]:
            waits: dict[str, str] = found["status"]["containerStatuses"][0]["state"].get("waiting", {})
            return waits

        found = node.pod("web", lambda found: why(found).get("reason") == "CreateContainerConfigError", "its refusal")
        assert "the feature gate ClassResources is off" in why(found)["message"]
        assert found["spec"]["containers"][0]["resources"]["classes"] == {"watched": "good"}
        assert [item.id for item in runtime.containers() if item.state == 1] == []


@pytest.mark.requirement("Q87")
def test_classes_go_on_without_the_api(classed: RunningNode, image: str) -> None:
    """While the API is gone a container keeps its class, and one that ends is started again in it."""
    with classed as node, Pods(node.daemon.socket, image) as runtime:
        node.apply(in_classes(image, watched="good"))
        before = container_id(node.running("web"))
        node.api.stop()
        assert in_force(runtime, container=before)["watched"] == "good"

        runtime.stop(before)

        def again() -> str:
            running = [item.id for item in runtime.containers() if item.id != before and item.state == 1]
            return running[0] if running else ""

        after = node.until(again, "the container started again")
        assert in_force(runtime, container=after)["watched"] == "good"


@pytest.mark.requirement("Q57")
def test_what_the_runtime_refuses_is_an_event_of_the_pod(classed: RunningNode, image: str) -> None:
    """A class that is offered and cannot be enforced fails RunPodSandbox or CreateContainer, each with its event."""
    with classed as node:
        node.apply(
            in_classes(image, "sandbox", pod_classes={"watched": "bad"}),
            in_classes(image, "container", watched="bad"),
        )

        def said(name: str, reason: str) -> bool:
            found = [item["message"] for item in node.events(name) if item["reason"] == reason]
            return any("class resource watched" in message for message in found)

        node.until(lambda: said("sandbox", "FailedCreatePodSandBox"), "event of the sandbox")
        node.until(lambda: said("container", "Failed"), "event of the container")

        def waiting(found: dict[str, Any]) -> dict[str, str]:
            (status,) = found["status"].get("containerStatuses") or [{}]
            state: dict[str, str] = status.get("state", {}).get("waiting", {})
            return state

        node.pod("container", lambda found: waiting(found).get("reason") == "CreateContainerError", "its status")
        node.pod("container", lambda found: "class resource watched" in waiting(found).get("message", ""), "its reason")


@pytest.mark.requirement("Q88")
def test_a_class_is_no_matter_of_the_api(classed: RunningNode, image: str) -> None:
    """From its creation to its end a pod in classes causes the same requests as one without."""
    audit = Audit(classed)
    with classed as node:

        def started(name: str) -> bool:
            return any(event["reason"] == "Started" for event in node.events(name))

        audit.of_a_pods_life(in_classes(image, "first"), started)  # what is read once
        plain = audit.of_a_pods_life(in_classes(image, "plain"), started)
        assert ("patch", "", "v1", "pods", "status") in plain
        asking = in_classes(image, "asking", {"share": "small"}, watched="good")
        asking["metadata"]["annotations"] = {"blockio.resources.alpha.kubernetes.io/default": "slow"}
        assert audit.of_a_pods_life(asking, started) == plain
