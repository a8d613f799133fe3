"""The feature gate UserNamespacesSupport of agent and API over the life of pods: on, off and on again (KEP-127)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent.manifests import FOREVER, pod, shell
from node.test_image_volume_gate import container_of, reasons, restart

from support.api_audit import Audit
from support.cri import Pods
from support.kubelet_client import Kubelet
from support.running_node import RunningNode
from support.waiting import TIMEOUT_S

ON, OFF = (f"agent.feature_gates.UserNamespacesSupport={value}" for value in ("true", "false"))
API_ON, API_OFF = (("--set", f"api.feature_gates.UserNamespacesSupport={value}") for value in ("true", "false"))
IDENTITY = ["0", "0", "4294967295"]
REFUSED = (
    'Failed to create pod sandbox: the feature gate "UserNamespacesSupport" is disabled: can\'t set spec.HostUsers'
)


def runs(image: str, name: str, **spec: Any) -> dict[str, Any]:
    """Return a pod that runs until it is removed."""
    return pod(shell(image, FOREVER), name=name, **{"restartPolicy": "Always"} | spec)


def mapping(node: RunningNode, image: str, container: str) -> list[str]:
    """Return the map of user IDs in a container. The runtime is asked: it answers also while there is no API."""
    with Pods(node.daemon.socket, image) as client:
        return client.read(container.rpartition("/")[2], "cat /proc/self/uid_map").split()


def mapping_of(node: RunningNode, image: str, name: str) -> list[str]:
    """Return the map of user IDs of a pod that runs."""
    return mapping(node, image, container_of(node, name)[0])


def is_block(found: list[str]) -> bool:
    """Return whether a map of user IDs is that of a block of a pod's own."""
    inside, outside, length = map(int, found)
    return (inside, length) == (0, 65536) and outside >= 65536 and outside % 65536 == 0


def restart_api(node: RunningNode, options: tuple[str, ...]) -> None:
    """Start the API again, with other options; the agent finds it by itself."""
    node.api.stop()
    node.api.options = options
    node.api.start()


def recreate(node: RunningNode, document: dict[str, Any]) -> None:
    """Remove a pod and make it from the same manifest, as the controller of a workload does."""
    name = document["metadata"]["name"]
    node.delete(name)
    node.gone(name)
    node.apply(document)
    node.running(name)


@pytest.mark.requirement("U34", "U91", "U92", "U99", "U100", "U103", "U107")
def test_off_and_on_in_the_agent(own_node: RunningNode, image: str, tmp_path: Path) -> None:
    """Who runs keeps what it has, also when its container starts again; a new pod waits and is told why.

    What the gate being on makes, the agent with the gate off removes: nothing of it stays.
    """
    own_node.settings, own_node.api.options = (ON,), API_ON
    with own_node as node:
        empty = node.daemon.resources().after_a_restart()
        for name, spec in (("plain", {}), ("own", {"hostUsers": False}), ("second", {"hostUsers": False})):
            node.apply(runs(image, name, **spec))
        before = {name: container_of(node, name) for name in ("plain", "own", "second")}
        maps = {name: mapping_of(node, image, name) for name in before}
        assert maps["plain"] == IDENTITY
        assert is_block(maps["own"])
        assert is_block(maps["second"])
        assert maps["own"] != maps["second"]
        assert Kubelet(node, tmp_path, user="admin", groups=("system:masters",)).ask("/healthz") == (200, "ok")

        restart(node, (OFF,))
        node.apply(runs(image, "late", hostUsers=False))
        node.until(lambda: "FailedCreatePodSandBox" in reasons(node, "late"), "the event")
        assert reasons(node, "late")["FailedCreatePodSandBox"] == REFUSED
        late = node.get("late")
        assert late is not None
        assert late["spec"]["hostUsers"] is False, "who reads the pod sees the field"
        assert late["status"]["phase"] == "Pending"
        assert "ContainerCreating" in node.api.kubectl("get", "pod", "late")
        assert {name: container_of(node, name) for name in before} == before
        assert {name: mapping_of(node, image, name) for name in before} == maps
        stop_container(node, image, before["second"][0])
        node.until(lambda: container_of(node, "second")[1] == 1, "started again")
        assert mapping_of(node, image, "second") == maps["second"]

        for name in ("own", "second", "late"):
            node.delete(name)
            node.gone(name)
        plain = before.pop("plain")
        assert container_of(node, "plain") == plain
        node.delete("plain")
        node.gone("plain")
        node.until(lambda: node.left_behind() == [], "nothing left")
        assert node.daemon.resources().after_a_restart() == empty
        restart(node, (ON,))
        node.apply(runs(image, "own", hostUsers=False))
        node.running("own")
        assert is_block(mapping_of(node, image, "own"))


def stop_container(node: RunningNode, image: str, container: str) -> None:
    """End a container as a failure of its program does."""
    with Pods(node.daemon.socket, image) as client:
        client.stop(container.rpartition("/")[2], timeout=30)


@pytest.mark.requirement("U5", "U6", "U9", "U101", "U102", "U103", "U91")
def test_a_workload_over_on_off_and_on(own_node: RunningNode, image: str) -> None:
    """Its manifest never changes: each pod that is made anew has what both gates give by then, and no other changes."""
    workload = runs(image, "workload", hostUsers=False)
    with own_node as node:
        node.apply(runs(image, "plain"), workload)
        plain = container_of(node, "plain")
        node.running("workload")
        first = mapping_of(node, image, "workload")
        assert is_block(first)

        restart_api(node, API_OFF)
        restart(node, (OFF,))
        node.running("workload")
        assert mapping_of(node, image, "workload") == first
        node.patch("workload", {"metadata": {"labels": {"new": "label"}}})
        kept = node.get("workload")
        assert kept is not None
        assert kept["metadata"]["labels"] == {"new": "label"}
        assert kept["spec"]["hostUsers"] is False, "what is stored keeps the field"
        with pytest.raises(AssertionError, match="pod updates may not change fields other than"):
            node.patch("workload", {"spec": {"hostUsers": True}})
        recreate(node, workload)
        found = node.get("workload")
        assert found is not None
        assert "hostUsers" not in found["spec"]
        assert mapping_of(node, image, "workload") == IDENTITY

        without = container_of(node, "workload")
        restart_api(node, ())
        restart(node, ())
        assert container_of(node, "workload") == without
        assert mapping_of(node, image, "workload") == IDENTITY
        recreate(node, workload)
        assert is_block(mapping_of(node, image, "workload"))
        assert container_of(node, "plain") == plain
        assert mapping_of(node, image, "plain") == IDENTITY


@pytest.fixture
def static(own_node: RunningNode, image: str) -> Path:
    """The directory of static pods of a node, with one pod that asks for a user namespace."""
    directory = own_node.daemon.base / "manifests"
    directory.mkdir()
    own_node.settings += (f"agent.static_pod_path={directory}",)
    (directory / "web.json").write_text(json.dumps(runs(image, "static", hostUsers=False)))
    return directory


def containers(node: RunningNode, image: str) -> dict[str, str]:
    """Return the containers that run by the names of their pods, as the runtime lists them."""
    with Pods(node.daemon.socket, image) as client:
        return {item.labels["io.kubernetes.pod.name"]: item.id for item in client.containers() if item.state == 1}


@pytest.mark.requirement("U93")
def test_a_static_pod_needs_only_the_gate_of_the_agent(own_node: RunningNode, static: Path, image: str) -> None:
    """No API is there at all, and with the gate off in the one that comes, the pod stays as it is."""
    node = own_node
    node.settings += (ON,)
    node.api.options = API_OFF
    with node:
        node.end_agent()
        node.api.stop()
        node.start_agent(serves="its containers run")
        node.until(lambda: containers(node, image), "the static pod")
        (container,) = containers(node, image).values()
        assert is_block(mapping(node, image, container))
        node.api.start()
        found = node.running("static-node-1")
        assert "hostUsers" not in found["spec"], "the mirror: the API's gate is off"
        assert container_of(node, "static-node-1")[0].endswith(container)
        assert is_block(mapping(node, image, container))
        (static / "web.json").unlink()
        node.until(lambda: node.left_behind() == [], "nothing left")


@pytest.mark.requirement("U105")
def test_without_the_api_pods_keep_their_user_namespaces(own_node: RunningNode, static: Path, image: str) -> None:
    """Over a restart of the agent too; a static pod whose sandbox is lost is made again with the block it had."""
    with own_node as node:
        node.apply(runs(image, "own", hostUsers=False))
        node.running("own")
        node.running("static-node-1")
        before = containers(node, image)
        maps = {name: mapping(node, image, container) for name, container in before.items()}
        assert all(map(is_block, maps.values()))
        node.end_agent()
        node.api.stop()
        node.start_agent(serves="its containers run")
        assert containers(node, image) == before
        with Pods(node.daemon.socket, image) as client:
            for sandbox in client.sandboxes():
                if sandbox.metadata.name == "static-node-1":
                    client.stop_pod(sandbox.id)

        def again() -> bool:
            now = containers(node, image)
            return now.keys() == before.keys() and now["static-node-1"] != before["static-node-1"]

        node.until(again, "the static pod again")
        now = containers(node, image)
        assert now["own"] == before["own"]
        assert {name: mapping(node, image, container) for name, container in now.items()} == maps
        node.api.start()
        (static / "web.json").unlink()
        node.delete("own")
        node.gone("own")
        node.until(lambda: node.left_behind() == [], "nothing left")


@pytest.mark.requirement("U109", "U43")
def test_a_record_that_cannot_be_read_keeps_the_agent_from_starting(own_node: RunningNode, image: str) -> None:
    """It names the pod; with the gate off the records are not read."""
    with own_node as node:
        node.apply(runs(image, "plain"), runs(image, "own", hostUsers=False))
        plain = container_of(node, "plain")
        found = node.running("own")
        node.end_agent()
        record = node.daemon.base / "kubelet" / "pods" / found["metadata"]["uid"] / "userns"
        content = record.read_bytes()
        record.write_bytes(b"{garbage")
        with pytest.raises(AssertionError) as caught:
            node.start_agent()
        assert f"user namespace of pod {found['metadata']['uid']}: {record}: invalid user namespace" in str(
            caught.value
        )
        assert node.agent is not None
        assert node.agent.wait(TIMEOUT_S) != 0
        node.settings = (OFF,)
        node.start_agent()
        assert container_of(node, "plain") == plain
        node.end_agent()
        record.write_bytes(content)
        node.settings = (ON,)
        node.start_agent()
        assert container_of(node, "own")[1] == 0


@pytest.mark.requirement("U109")
def test_a_range_that_does_not_fit_keeps_the_agent_from_starting(own_node: RunningNode, image: str) -> None:
    """It says which setting is to be lowered; then pods run."""
    with own_node as node:
        with pytest.raises(AssertionError, match=r"do not fit into 32 bits[^$]*set agent.max_pods to at most 65534"):
            restart(node, ("agent.max_pods=65535",))
        restart(node, ("agent.max_pods=65534",))
        node.apply(runs(image, "own", hostUsers=False))
        assert is_block(mapping_of(node, image, "own"))


@pytest.mark.requirement("U13")
def test_a_user_namespace_is_no_matter_of_the_api(own_node: RunningNode, image: str) -> None:
    """From its creation to its end a pod with one causes the same requests as one without."""
    audit = Audit(own_node)
    with own_node as node:

        def requests(name: str, **spec: Any) -> set[tuple[str, ...]]:
            return audit.of_a_pods_life(runs(image, name, **spec), lambda name: "Started" in reasons(node, name))

        requests("first")  # what is read once
        plain = requests("plain")
        assert ("create", "", "v1", "pods", "") in plain
        assert ("patch", "", "v1", "pods", "status") in plain
        assert requests("own", hostUsers=False) == plain
