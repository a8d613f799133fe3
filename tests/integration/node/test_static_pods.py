"""Static pods: run from files, shown in the API as mirror pods."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.manifests import FOREVER, pod, shell

from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from podkeep.kernel.mount import mounts
from support import powerloss
from support.node_client import is_ready
from support.running_node import RunningNode

NAME = "web-node-1"
HASH, MIRROR, SOURCE = (f"kubernetes.io/config.{word}" for word in ("hash", "mirror", "source"))


@pytest.fixture
def manifests(own_node: RunningNode) -> Path:
    """The directory of static pods of a node that is not started yet."""
    directory = own_node.daemon.base / "manifests"
    directory.mkdir()
    own_node.settings += (f"agent.static_pod_path={directory}",)
    return directory


@pytest.fixture
def static_node(own_node: RunningNode, manifests: Path) -> Iterator[RunningNode]:
    """A node that runs with that directory; fails a test that leaves something of a pod on it."""
    with own_node as running:
        yield running
        for file in manifests.iterdir():
            file.unlink()
        running.until(lambda: running.left_behind() == [], "nothing left")
        running.until(lambda: not running.ask("GET", "/api/v1/pods")["items"], "no mirror left")


def manifest(image: str, **environment: str) -> str:
    """Return a manifest of a pod that runs until it is removed."""
    env = [{"name": name, "value": value} for name, value in environment.items()]
    return json.dumps(pod(shell(image, FOREVER, env=env), restartPolicy="Always"))


def annotations(found: dict[str, Any]) -> dict[str, str]:
    """Return the annotations of an object."""
    value: dict[str, str] = found["metadata"]["annotations"]
    return value


def test_names_of_files_that_are_no_text(own_node: RunningNode, manifests: Path, image: str) -> None:
    """A file whose name is no UTF-8 is a static pod as any other, or left out; pods of the API run beside it."""
    directory = os.fsencode(manifests)
    Path(os.fsdecode(directory + b"/\xff.json")).write_text(manifest(image))
    Path(os.fsdecode(directory + b"/\xfe.json")).write_text("kind: Pod\nspec: [")
    with own_node as node:
        node.apply(pod(shell(image, "sleep 1000"), name="of-the-api"))
        node.running("of-the-api")
        assert annotations(node.running(NAME))[SOURCE] == "file"

        def told() -> list[str]:
            events = node.ask("GET", "/api/v1/namespaces/default/events")["items"]
            return [event["message"] for event in events if event["reason"] == "InvalidStaticPod"]

        (message,) = node.until(told, "the event of the file that is left out")
        assert message.startswith(rf"static pod {manifests}/\udcfe.json is left out")


def test_a_static_pod_runs_and_is_mirrored(static_node: RunningNode, manifests: Path, image: str) -> None:
    """A file is a pod, its mirror has its status and comes back; another content is another pod; no file, no pod."""
    node = static_node
    (manifests / ".web.json.swp").write_text(manifest(image))
    (manifests / "broken.yaml").write_text("kind: Pod\nspec: [")
    (manifests / "web.json").write_text(manifest(image))
    first = node.running(NAME)
    assert annotations(first)[HASH] == annotations(first)[MIRROR]
    assert annotations(first)[SOURCE] == "file"
    (owner,) = first["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Node", "node-1")
    assert [item["metadata"]["name"] for item in node.ask("GET", "/api/v1/pods")["items"]] == [NAME]

    node.delete(NAME)
    again = node.pod(NAME, lambda found: is_ready(found) and differs(found, first), "mirrored again")
    assert again["status"]["containerStatuses"] == first["status"]["containerStatuses"]

    (manifests / "web.json").write_text(manifest(image, SEEN="later"))
    changed = node.pod(NAME, lambda found: is_ready(found) and annotations(found)[HASH] != annotations(first)[HASH], "")
    assert container(changed) != container(first)
    (manifests / "web.json").unlink()
    node.gone(NAME)
    node.until(lambda: node.left_behind() == [], "nothing left")


@pytest.mark.requirement("Q52")
def test_a_static_pod_has_resources_as_a_whole(static_node: RunningNode, manifests: Path, image: str) -> None:
    """As one of the API: its class follows from them, and they are in force."""
    limits = {"cpu": "500m", "memory": "64Mi"}
    whole = pod(shell(image, FOREVER), restartPolicy="Always", resources={"limits": limits})
    (manifests / "web.json").write_text(json.dumps(whole))
    found = static_node.running(NAME)
    assert found["spec"]["resources"] == {"limits": limits, "requests": limits}
    assert found["status"]["qosClass"] == "Guaranteed"
    uid = annotations(found)[HASH]
    parent = static_node.daemon.cgroup_parent
    held = [
        file.read_text().strip()
        for hierarchy in ("memory", "")
        for name in ("memory.limit_in_bytes", "memory.max")
        for file in Path("/sys/fs/cgroup", hierarchy).glob(f"{parent.strip('/')}/pod{uid}/{name}")
    ]
    assert held == [str(64 << 20)]


def test_static_pods_need_no_api(own_node: RunningNode, manifests: Path, image: str) -> None:
    """They run while the API is away, over a restart of the agent too, and are shown when it is there."""
    node = own_node
    (manifests / "web.json").write_text(manifest(image))
    with node:
        before = container(node.running(NAME))
        node.end_agent()
        node.api.stop()
        node.start_agent(serves="its containers run")
        node.api.start()
        assert container(node.running(NAME)) == before
        (manifests / "web.json").unlink()
        node.until(lambda: node.left_behind() == [], "nothing left")


def test_a_mirror_that_somebody_else_made_gets_no_status_and_takes_none_away(
    static_node: RunningNode, manifests: Path, image: str
) -> None:
    """Who may create pods may give them the annotation of a mirror; the pod's own mirror is still told of."""
    node = static_node
    (manifests / "web.json").write_text(manifest(image))
    first = node.running(NAME)
    false = pod(shell(image, "true"), name="false", nodeName=node.name)
    false["metadata"]["annotations"] = {MIRROR: annotations(first)[MIRROR]}
    node.apply(false)
    node.gone("false")
    (row,) = json.loads(node.daemon.run("ps", "-o", "json", check=True).stdout)

    async def stop() -> None:
        async with CriClient(node.daemon.socket) as client:
            await client.runtime.StopPodSandbox(api_pb2.StopPodSandboxRequest(pod_sandbox_id=row["id"]))

    asyncio.run(stop())
    after = node.pod(NAME, lambda found: is_ready(found) and container(found) != container(first), "told of")
    assert after["metadata"]["uid"] == first["metadata"]["uid"]


def container(found: dict[str, Any]) -> str:
    """Return the ID of a pod's container."""
    value: str = found["status"]["containerStatuses"][0]["containerID"]
    return value


def differs(found: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether an object is another one of the same name."""
    return bool(found["metadata"]["uid"] != other["metadata"]["uid"])


def test_an_agent_ends_though_a_file_system_a_runtime_and_an_api_do_not_answer(own_node: RunningNode) -> None:
    """What waits for them cannot be interrupted; the process that was told to end is gone all the same."""
    directory, control = own_node.daemon.base / "manifests", own_node.daemon.base / "fusectl"
    directory.mkdir()
    control.mkdir()
    own_node.settings += (f"agent.static_pod_path={directory}",)
    mounts.mount("fusectl", str(control), fstype="fusectl")
    try:
        with powerloss.mounted(directory) as disk, own_node as node:
            waiting = control / str(os.minor(directory.stat().st_dev)) / "waiting"
            stopped = [disk.pid, node.daemon.pid, node.api.pid]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            try:
                node.until(lambda: int(waiting.read_text()) > 0, "the agent waits for the file system")
                node.end_agent()
            finally:
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
            assert "something that it waits for does not answer" in "".join(node.log)
    finally:
        mounts.unmount(control)
