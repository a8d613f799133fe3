"""What a real kubelet asks for, in its order, and the fields of the answers that it reads.

The requests (requests/kubelet_pod.json) have the form of those that a kubelet 1.36 sends for one static pod; names and
values are this test's own. ``{…}`` stands for what only a run knows.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from podkeep.base.errors import NotFound
from podkeep.cri.v1 import api_pb2 as api
from support.artifacts import artifact, directory_part, file_part
from support.cri import Pods, error_of
from support.daemon import Daemon
from support.images import directory, file, tar
from support.registry import Registry
from support.waiting import wait_for

REQUESTS = Path(__file__).with_name("requests") / "kubelet_pod.json"
HOST_ROOT = 655360
"""Where the requests map the pod's root to."""
SETTINGS = artifact(
    [
        file_part("weights.bin", bytes(range(256)), "application/octet-stream"),
        directory_part("dir", tar([directory("dir"), directory("dir/sub"), file("dir/sub/file", "deep")])),
    ]
)


def filled(value: Any, known: dict[str, Any]) -> Any:
    """Return a request with every placeholder replaced."""
    if isinstance(value, str):
        if value == "{pod}":
            return known["pod"]
        for name in (
            "sandbox",
            "image_id",
            "image",
            "artifact_id",
            "artifact",
            "volumes",
            "logs",
            "cgroup_parent",
        ):
            if name in known:
                value = value.replace("{" + name + "}", known[name])
        return value
    if isinstance(value, dict):
        return {key: filled(item, known) for key, item in value.items()}
    return [filled(item, known) for item in value] if isinstance(value, list) else value


class Kubelet:
    """Asks as the kubelet does."""

    def __init__(self, pods: Pods, directory: Path, cgroup_parent: str, artifact: str) -> None:
        self.pods = pods
        self.requests = json.loads(REQUESTS.read_text())
        self.known: dict[str, Any] = {"image": pods.image, "cgroup_parent": cgroup_parent, "artifact": artifact}
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

    def look(self) -> api.Image | None:
        """Ask for the image of the volume."""
        request = ParseDict(filled(self.requests["look"], self.known), api.ImageStatusRequest())
        response = self.pods.call("ImageStatus", request, service="images")
        return response.image if response.HasField("image") else None

    def pull(self) -> None:
        """Pull the image of the volume, which is done when the sandbox is there."""
        request = ParseDict(filled(self.requests["pull"], self.known), api.PullImageRequest())
        self.known["artifact_id"] = self.pods.call("PullImage", request, service="images").image_ref

    def collect(self) -> None:
        """Remove the image of the volume as garbage collection does: by its ID."""
        image = api.ImageSpec(image=self.known["artifact_id"])
        self.pods.call("RemoveImage", api.RemoveImageRequest(image=image), service="images")

    def start(self, name: str) -> str:
        request = ParseDict(filled(self.requests[name], self.known), api.CreateContainerRequest())
        return self.pods.start(str(self.pods.call("CreateContainer", request).container_id))


@pytest.fixture
def kubelet(pods: Pods, daemon: Daemon, registry: Registry, tmp_path: Path) -> Iterator[Kubelet]:
    kubelet = Kubelet(pods, tmp_path, daemon.cgroup_parent, SETTINGS.push(registry, "kubelet/settings:1"))
    yield kubelet
    for sandbox in pods.sandboxes():
        pods.remove(sandbox.id)
    if "artifact_id" in kubelet.known:
        kubelet.collect()


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
    assert status.image.image == status.image.user_specified_image == kubelet.known["image"]
    assert status.image_id == kubelet.known["image_id"]
    assert status.image_ref
    assert status.log_path == f"{kubelet.known['logs']}/{name}/0.log"
    assert 0 < status.created_at <= status.started_at
    return status


def check_volumes(kubelet: Kubelet, status: api.ContainerStatus) -> None:
    mounted = {item.container_path: item for item in status.mounts if item.HasField("image")}
    assert sorted(mounted) == ["/conf", "/img", "/part"]
    # The image's ID is how the kubelet's garbage collection finds out that a volume uses it.
    assert {mounted[path].image.image for path in ("/conf", "/part")} == {SETTINGS.digest}
    assert mounted["/conf"].image.user_specified_image == kubelet.known["artifact"]
    assert (mounted["/conf"].image_sub_path, mounted["/part"].image_sub_path) == ("", "dir/sub")


@pytest.mark.requirement("U1", "V36", "V53")
def test_the_life_of_a_pod(kubelet: Kubelet) -> None:
    pods = kubelet.pods
    sandbox = kubelet.run_pod()
    check_sandbox(kubelet, sandbox, api.SANDBOX_READY)
    assert kubelet.look() is None
    kubelet.pull()
    volume = kubelet.look()
    assert volume is not None
    assert (volume.id, list(volume.repo_tags)) == (SETTINGS.digest, [kubelet.known["artifact"]])

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
    check_volumes(kubelet, status)
    assert pods.exec(main, "test", "-e", "/data/sub/file", timeout=10).exit_code == 0
    assert pods.exec(main, "test", "-e", "/nowhere", timeout=10).exit_code == 1
    assert pods.read(main, "cat /sub/file; grep -c ^root: /img/passwd; hostname") == "init\n1\ntill-node7"
    assert pods.read(main, "cat /part/file; ls /conf/dir/sub; stat -c %s:%u /conf/weights.bin") == "deepfile\n256:0"
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
    kubelet.collect()
    assert kubelet.look() is None
