"""Namespaces of pods and containers: POD, CONTAINER, NODE, TARGET, and what cannot be asked for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2 as api
from support.cri import mappings, namespaces, pod, userns
from support.endpoint import Node

BLOCK = (0, 1_000_000, 65536)


def inside(node: Node, container: str, kind: str) -> str:
    """Return the namespace of a container's first process."""
    return os.readlink(f"/proc/{node.host_pid(container)}/ns/{kind}")


def outside(kind: str) -> str:
    """Return the namespace of the machine."""
    return os.readlink(f"/proc/self/ns/{kind}")


@pytest.mark.parametrize("kind", ["mnt", "uts", "ipc", "net", "pid"])
def test_pods_are_apart(node: Node, kind: str) -> None:
    containers = [node.launch(node.run(pod(name))) for name in ("one", "two")]
    found = {inside(node, container, kind) for container in containers} | {outside(kind)}
    assert len(found) == 3


@pytest.mark.parametrize(("kind", "shared"), [("ipc", True), ("net", True), ("uts", True), ("mnt", False)])
def test_containers_of_a_pod(node: Node, kind: str, shared: bool) -> None:
    sandbox = node.run()
    containers = [node.launch(sandbox, name=name) for name in ("one", "two")]
    found = {inside(node, container, kind) for container in containers}
    assert len(found) == (1 if shared else 2)


def test_pid_namespace_of_a_container(node: Node) -> None:
    sandbox = node.run(pod(options=namespaces(pid=api.CONTAINER)))
    one, two = (node.launch(sandbox, "sleep", f"100{name}", name=name) for name in ("1", "2"))
    assert inside(node, one, "pid") != inside(node, two, "pid")
    assert node.read(node.executed(one), "tr '\\0' ' ' </proc/1/cmdline").strip() == "sleep 1001"
    assert "1002" not in node.read(one, "ps -o args")


def test_pid_namespace_of_a_pod(node: Node) -> None:
    sandbox = node.run(pod(options=namespaces(pid=api.POD)))
    one, two = (node.launch(sandbox, "sleep", f"100{name}", name=name) for name in ("1", "2"))
    assert inside(node, one, "pid") == inside(node, two, "pid") != outside("pid")
    assert "sleep" not in node.read(one, "cat /proc/1/cmdline")
    seen = node.read(one, "ps -o args")
    assert "sleep 1001" in seen
    assert "sleep 1002" in seen


def test_pid_namespace_of_a_pod_reaps_orphans(node: Node) -> None:
    container = node.launch(node.run(pod(options=namespaces(pid=api.POD))))
    node.read(container, "(sleep 0.1 &) ; sleep 0.3")
    assert " Z " not in node.read(container, "ps -o stat,args")


def test_pid_namespace_of_the_node(node: Node) -> None:
    container = node.launch(node.run(pod(options=namespaces(pid=api.NODE))))
    assert inside(node, container, "pid") == outside("pid")
    assert node.read(container, f"cat /proc/{os.getpid()}/comm") == Path("/proc/self/comm").read_text().strip()


def test_pid_namespace_of_another_container(node: Node) -> None:
    sandbox = node.run()
    target = node.launch(sandbox, "sleep", "1234", name="target")
    options = namespaces(pid=api.TARGET, target_id=target)
    debugger = node.launch(sandbox, name="debugger", options=options)
    assert inside(node, debugger, "pid") == inside(node, target, "pid")
    node.executed(target)
    assert node.read(debugger, "tr '\\0' ' ' </proc/1/cmdline").strip() == "sleep 1234"


def test_target_that_is_not_there(node: Node) -> None:
    sandbox = node.run()
    options = namespaces(pid=api.TARGET, target_id="0" * 64)
    node.refused(lambda: node.launch(sandbox, options=options), NotFound, InvalidArgument)


@pytest.mark.parametrize("mode", [api.POD, api.NODE])
def test_ipc_namespace(node: Node, mode: int) -> None:
    made = subprocess.run(["ipcmk", "-M", "4096"], check=True, capture_output=True, text=True).stdout
    segment = made.rsplit(" ", 1)[1].strip()
    try:
        container = node.launch(node.run(pod(options=namespaces(ipc=mode))))
        assert (inside(node, container, "ipc") == outside("ipc")) is (mode == api.NODE)
        seen = [line.split()[1] for line in node.read(container, "cat /proc/sysvipc/shm").splitlines()[1:]]
        assert (segment in seen) is (mode == api.NODE)
    finally:
        subprocess.run(["ipcrm", "-m", segment], check=True)


def test_shared_memory_is_the_pods(node: Node) -> None:
    sandbox = node.run()
    one, two = (node.launch(sandbox, name=name) for name in ("one", "two"))
    node.read(one, "echo shared >/dev/shm/file")
    assert node.read(two, "cat /dev/shm/file") == "shared"


def test_options_are_shown(node: Node) -> None:
    sandbox = node.run(pod(options=namespaces(pid=api.NODE, ipc=api.NODE, network=api.NODE)))
    options = node.pod_status(sandbox).status.linux.namespaces.options
    assert (options.network, options.pid, options.ipc) == (api.NODE, api.NODE, api.NODE)


# user namespaces: containerd has them from 1.7 on

unsupported = pytest.mark.reference(unsupported="no user namespaces")


@unsupported
def test_user_namespace_of_a_pod(node: Node) -> None:
    sandbox = node.run(pod(options=namespaces(user=BLOCK)))
    one, two = (node.launch(sandbox, name=name) for name in ("one", "two"))
    assert inside(node, one, "user") == inside(node, two, "user") != outside("user")
    assert node.read(one, "cat /proc/self/uid_map; cat /proc/self/gid_map").split() == [str(n) for n in BLOCK] * 2
    assert node.read(one, "touch /tmp/file; stat -c %u:%g /tmp/file /bin/busybox") == "0:0\n0:0"
    assert Path(f"/proc/{node.host_pid(one)}").stat().st_uid == BLOCK[1]


@unsupported
def test_user_namespace_of_the_node(node: Node) -> None:
    options = api.NamespaceOption(pid=api.CONTAINER, userns_options=api.UserNamespace(mode=api.NODE))
    container = node.launch(node.run(pod(options=options)))
    assert inside(node, container, "user") == outside("user")


def test_no_user_namespace_unless_asked_for(node: Node) -> None:
    assert inside(node, node.launch(node.run()), "user") == outside("user")


@unsupported
@pytest.mark.parametrize(
    "options",
    [
        userns(BLOCK, (0, 2_000_000, 65536)),
        userns((1, 1_000_000, 65536)),
        userns(mode=api.CONTAINER),
        userns(mode=api.TARGET),
        userns(BLOCK, mode=api.NODE),
        userns(),
        api.UserNamespace(mode=api.POD, uids=mappings(BLOCK)),
        userns((0, 1_000_000, 0)),
    ],
    ids=["overlap", "no root", "container", "target", "node with mappings", "none", "no gids", "length 0"],
)
def test_user_namespace_that_cannot_be(node: Node, options: api.UserNamespace) -> None:
    node.refused(lambda: node.run(pod(options=namespaces(user=options))), InvalidArgument)
    assert node.sandboxes() == []


@unsupported
def test_volume_of_a_pod_with_a_user_namespace(node: Node, host_directory: Path) -> None:
    (host_directory / "file").write_text("content")
    sandbox = node.run(pod(options=namespaces(user=BLOCK)))
    mount = api.Mount(
        host_path=str(host_directory),
        container_path="/volume",
        uidMappings=mappings(BLOCK),
        gidMappings=mappings(BLOCK),
    )
    container = node.launch(sandbox, mounts=[mount])
    assert node.read(container, "stat -c %u /volume/file; echo new >/volume/new") == "0"
    assert (host_directory / "new").stat().st_uid == 0
