"""Ephemeral containers of a pod on a node: what the pod has, they have too (KEP-277)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from agent.manifests import FOREVER, image_volume, mount, pod, shell
from agent.test_run_image_volumes import push
from node.test_user_namespace_gate import is_block

from support.class_types import in_force
from support.cri import Pods
from support.registry import Registry
from support.running_node import RunningNode

BLOCKIO = "blockio.resources.alpha.kubernetes.io"


def debug(node: RunningNode, pod_name: str, *containers: dict[str, Any]) -> None:
    """Add ephemeral containers to a pod, as ``kubectl debug`` does."""
    node.patch(pod_name, {"spec": {"ephemeralContainers": list(containers)}}, subresource="ephemeralcontainers")


def statuses(found: dict[str, Any], group: str = "ephemeralContainerStatuses") -> dict[str, dict[str, Any]]:
    """Return the statuses of containers by name."""
    return {item["name"]: item for item in found["status"].get(group, ())}


def runs(found: dict[str, Any], name: str) -> bool:
    return "running" in statuses(found).get(name, {}).get("state", {})


def identity(status: dict[str, Any]) -> str:
    """Return the ID of a container as the runtime has it."""
    text: str = status["containerID"]
    return text.rpartition("/")[2]


@pytest.mark.requirement("U2", "V7")
def test_namespace_and_volumes_are_the_pods(
    own_node: RunningNode, image: str, registry: Registry, tmp_path: Path
) -> None:
    """It is in the user namespace of its pod and of no other, and mounts an image volume, twice."""
    data = push(registry, tmp_path / "data", "debugged:1", "data")
    volume = {"volumes": [image_volume(data)]}
    with own_node as node, Pods(node.daemon.socket, image) as runtime:
        for name in ("web", "other"):
            main = shell(image, FOREVER, volumeMounts=[mount()])
            node.apply(pod(main, name=name, restartPolicy="Always", hostUsers=False, **volume))
            node.running(name)
        mounts = [mount("/all"), mount("/part", readOnly=True)]
        debug(node, "web", shell(image, FOREVER, "debug", volumeMounts=mounts))
        found = node.pod("web", lambda item: runs(item, "debug"), "the debugger")
        main = identity(statuses(found, "containerStatuses")["main"])
        debugger = identity(statuses(found)["debug"])
        elsewhere = identity(statuses(node.running("other"), "containerStatuses")["main"])
        pids = (runtime.host_pid(main), runtime.host_pid(debugger), runtime.host_pid(elsewhere), "self")
        inside, same, *others = (os.readlink(f"/proc/{pid}/ns/user") for pid in pids)
        assert inside == same
        assert len({inside, *others}) == 3
        assert is_block(runtime.read(debugger, "cat /proc/self/uid_map").split())
        assert runtime.read(debugger, "cat /all/file /part/dir/file; stat -c %u /all/file") == "data\ndata in dir\n0"


def test_an_image_volume_that_no_other_container_mounts(
    own_node: RunningNode, image: str, registry: Registry, tmp_path: Path
) -> None:
    data = push(registry, tmp_path / "data", "debugged:2", "data")
    with own_node as node, Pods(node.daemon.socket, image) as runtime:
        node.apply(pod(shell(image, FOREVER), restartPolicy="Always", volumes=[image_volume(data)]))
        node.running("web")
        debug(node, "web", shell(image, FOREVER, "debug", volumeMounts=[mount("/all")]))
        found = node.pod("web", lambda item: runs(item, "debug"), "the debugger")
        assert runtime.read(identity(statuses(found)["debug"]), "cat /all/file") == "data"


@pytest.mark.requirement("Q23", "Q31")
def test_classes_come_of_the_annotation_for_all_containers(classed: RunningNode, image: str) -> None:
    """None other can: a field is refused, and so is an annotation that names a container before it is there."""
    document = pod(shell(image, FOREVER), restartPolicy="Always")
    document["metadata"]["annotations"] = {f"{BLOCKIO}/default": "slow"}
    early = pod(shell(image, FOREVER), name="early")
    early["metadata"]["annotations"] = {f"{BLOCKIO}/container.debug": "slow"}
    with classed as node, Pods(node.daemon.socket, image) as runtime:
        with pytest.raises(AssertionError, match=r'container\.debug\]: Not found: "debug"'):
            node.apply(early)
        node.apply(document)
        before = node.running("web")
        wrong = shell(image, FOREVER, "debug", resources={"classes": {"blockio": "nosuch"}})
        with pytest.raises(AssertionError, match="resources: Forbidden: cannot be set for an Ephemeral Container"):
            debug(node, "web", wrong)
        debug(node, "web", shell(image, FOREVER, "debug"))
        found = node.pod("web", lambda item: runs(item, "debug"), "the debugger")
        assert in_force(runtime, container=identity(statuses(found)["debug"]))["blockio"] == "slow"
        assert found["status"]["containerStatuses"] == before["status"]["containerStatuses"]
