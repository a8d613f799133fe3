"""What a real kubelet asks for, in its order, and the fields of the answers that it reads.

The requests (requests/kubelet_pod.json) have the form of those that a kubelet 1.36 sends for one static pod; names and
values are this test's own. ``{…}`` stands for what only a run knows.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from podkeep.base.errors import NotFound
from podkeep.cri.v1 import api_pb2 as api
from support.cri import Pods, error_of, wait_for
from support.daemon import Daemon

REQUESTS = Path(__file__).with_name("requests") / "kubelet_pod.json"
HOST_ROOT = 655360
"""Where the requests map the pod's root to."""


def filled(value: Any, known: dict[str, Any]) -> Any:
    """Return a request with every placeholder replaced."""
    if isinstance(value, str):
        if value == "{pod}":
            return known["pod"]
        for name in ("sandbox", "image_id", "image", "volumes", "logs", "cgroup_parent"):
            if name in known:
                value = value.replace("{" + name + "}", known[name])
        return value
    if isinstance(value, dict):
        return {key: filled(item, known) for key, item in value.items()}
    return [filled(item, known) for item in value] if isinstance(value, list) else value


class Kubelet:
    """Asks as the kubelet does."""

    def __init__(self, pods: Pods, directory: Path, cgroup_parent: str) -> None:
        self.pods = pods
        self.requests = json.loads(REQUESTS.read_text())
        self.known: dict[str, Any] = {"image": pods.image, "cgroup_parent": cgroup_parent}
        for name in ("logs", "volumes"):
            (directory / name).mkdir()
            self.known[name] = str(directory / name)
        data, files = directory / "volumes/data", directory / "volumes/containers"
        data.mkdir()
        files.mkdir()
        for path in (directory / "volumes/etc-hosts", files / "first", files / "main"):
            path.touch()
            path.chmod(0o666)
        # An emptyDir of the kubelet belongs to fsGroup, in the IDs of the pod: its mounts are idmapped.
        os.chown(data, 0, 3000)
        data.chmod(0o2777)

    def run_pod(self) -> str:
        image = api.ImageSpec(image=self.known["image"])
        status = self.pods.call("ImageStatus", api.ImageStatusRequest(image=image), service="images").image
        self.known["image_id"] = status.id
        self.known["pod"] = filled(self.requests["pod"], self.known)
        config = ParseDict(self.known["pod"], api.PodSandboxConfig())
        self.known["sandbox"] = self.pods.run(config)
        return str(self.known["sandbox"])

    def start(self, name: str) -> str:
        request = ParseDict(filled(self.requests[name], self.known), api.CreateContainerRequest())
        return self.pods.start(str(self.pods.call("CreateContainer", request).container_id))


@pytest.fixture
def kubelet(pods: Pods, daemon: Daemon, tmp_path: Path) -> Kubelet:
    return Kubelet(pods, tmp_path, daemon.cgroup_parent)


def check_sandbox(kubelet: Kubelet, sandbox: str, state: int) -> None:
    answer = kubelet.pods.pod_status(sandbox)
    status, asked = answer.status, kubelet.known["pod"]
    assert (status.id, status.state, status.metadata.uid) == (sandbox, state, asked["metadata"]["uid"])
    assert (dict(status.labels), dict(status.annotations)) == (asked["labels"], asked["annotations"])
    assert status.created_at > 0
    assert answer.timestamp >= status.created_at
    options = status.linux.namespaces.options
    assert [item.host_id for item in options.userns_options.uids] == [HOST_ROOT]
    if state == api.SANDBOX_READY:
        assert socket.inet_aton(status.network.ip)


def check_container(kubelet: Kubelet, container: str, name: str) -> api.ContainerStatus:
    status, asked = kubelet.pods.status(container), kubelet.requests[name]["config"]
    assert (status.id, status.metadata.name, status.metadata.attempt) == (container, name, 0)
    assert (dict(status.labels), dict(status.annotations)) == (asked["labels"], asked["annotations"])
    assert status.image.user_specified_image == kubelet.known["image"]
    assert status.image_id == kubelet.known["image_id"]
    assert status.image_ref
    assert status.log_path == f"{kubelet.known['logs']}/{name}/0.log"
    assert 0 < status.created_at <= status.started_at
    return status


@pytest.mark.requirement("U1", "V36")
def test_the_life_of_a_pod(kubelet: Kubelet) -> None:
    pods = kubelet.pods
    sandbox = kubelet.run_pod()
    check_sandbox(kubelet, sandbox, api.SANDBOX_READY)

    first = kubelet.start("first")
    pods.exited(first)
    status = check_container(kubelet, first, "first")
    assert (status.state, status.exit_code, status.reason) == (api.CONTAINER_EXITED, 0, "Completed")
    assert status.finished_at >= status.started_at
    assert (Path(kubelet.known["volumes"]) / "containers/first").read_text() == "made\n"
    assert (Path(kubelet.known["volumes"]) / "data/sub/file").stat().st_uid == 0

    main = kubelet.start("main")
    status = check_container(kubelet, main, "main")
    assert (status.state, status.finished_at, status.reason) == (api.CONTAINER_RUNNING, 0, "")
    user = status.user.linux
    assert (user.uid, {3000, 4000} <= set(user.supplemental_groups)) == (1000, True)
    resources = status.resources.linux
    assert (resources.cpu_quota, resources.cpu_period, resources.cpu_shares) == (50000, 100000, 51)
    assert resources.memory_limit_in_bytes == 64 << 20
    assert [item.container_path for item in status.mounts if item.HasField("image")] == ["/img"]
    assert pods.exec(main, "test", "-e", "/data/sub/file", timeout=10).exit_code == 0
    assert pods.exec(main, "test", "-e", "/nowhere", timeout=10).exit_code == 1
    assert pods.read(main, "cat /sub/file; grep -c ^root: /img/passwd; hostname") == "init\n1\ntill-node7"
    log = Path(kubelet.known["logs"]) / "main/0.log"
    wait_for(lambda: "stdout F started" in log.read_text(), "the log")

    listed = {item.id: item for item in pods.containers()}
    assert {listed[first].state, listed[main].state} == {api.CONTAINER_EXITED, api.CONTAINER_RUNNING}
    assert listed[main].pod_sandbox_id == sandbox
    found = pods.call("ListContainerStats", api.ListContainerStatsRequest(filter=api.ContainerStatsFilter())).stats
    stats = {item.attributes.id: item for item in found}
    assert stats[main].attributes.labels["io.kubernetes.container.name"] == "main"
    assert stats[main].memory.working_set_bytes.value > 0
    assert stats[main].cpu.usage_core_nano_seconds.value > 0

    pods.stop(main, timeout=3)
    assert pods.status(main).exit_code == 0
    for _ in range(2):
        pods.stop_pod(sandbox)
    check_sandbox(kubelet, sandbox, api.SANDBOX_NOTREADY)
    for container in (main, first, main):
        pods.remove_container(container)
    error_of(lambda: pods.status(main), NotFound)
    pods.remove(sandbox)
    error_of(lambda: pods.pod_status(sandbox), NotFound)
    assert pods.sandboxes(label_selector={"app": "till"}) == []
