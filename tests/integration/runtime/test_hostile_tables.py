"""Texts of pods in the kernel's own tables: names of mounts and interfaces, command lines, and links to odd names."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel import libc
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.network.netdev import MAX_INTERFACES
from support import processes
from support.cri import BLOCK, Pods, bind, error_of, namespaces, pod
from support.daemon import Daemon
from support.images import busybox_layout, directory, file, symlink
from support.registry import Registry
from support.waiting import wait_for

NOBODY = {
    "run_as_user": api.Int64Value(value=1000),
    "no_new_privs": True,
    "capabilities": api.Capability(drop_capabilities=["ALL"]),
    "seccomp": api.SecurityProfile(profile_type=api.SecurityProfile.RuntimeDefault),
}
_SIOCBRADDBR = 0x89A0
USERS = pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])


def make_bridges(pid: int, *names: bytes) -> None:
    """Make interfaces in the network of a pod's process, as one in it with CAP_NET_ADMIN may."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    failed: list[BaseException] = []

    def make() -> None:
        try:
            libc.setns(network, CloneFlag.NEWNET)
            with socket.socket(socket.AF_INET) as control:
                for name in names:
                    fcntl.ioctl(control, _SIOCBRADDBR, name + b"\0")
        except BaseException as error:  # noqa: BLE001 - of a thread: told by the caller
            failed.append(error)

    thread = threading.Thread(target=make)  # it ends in the pod's network
    thread.start()
    thread.join()
    os.close(network)
    assert failed == []


@pytest.mark.parametrize("name", [b"x\x1cy", b"\xff", b"\xc2\x85"])
@USERS
def test_no_name_of_an_interface_takes_the_statistics_of_others(
    pods: Pods, name: bytes, user: tuple[int, int, int] | None
) -> None:
    other = pods.run(pod("other"))
    sandbox = pods.run(pod(options=namespaces(user=user)))
    make_bridges(pods.host_pid(pods.launch(sandbox)), name, b"plain")
    stats = {
        item.attributes.id: item.linux.network
        for item in pods.call("ListPodSandboxStats", api.ListPodSandboxStatsRequest()).stats
    }
    assert stats[other].default_interface.name == stats[sandbox].default_interface.name == "eth0"
    assert [item.name for item in stats[sandbox].interfaces] == ["eth0", "plain"]
    assert pods.call("ListPodSandboxMetrics", api.ListPodSandboxMetricsRequest()).pod_metrics


def test_no_number_of_interfaces_fills_the_message_of_all(pods: Pods) -> None:
    process = pods.host_pid(pods.launch(pods.run(pod(options=namespaces(user=BLOCK)))))

    def size() -> int:
        answer = pods.call("ListPodSandboxMetrics", api.ListPodSandboxMetricsRequest())
        return int(answer.ByteSize())

    before = size()
    make_bridges(process, *(b"b%d" % number for number in range(500)))
    assert size() - before < 2500 * MAX_INTERFACES
    (stats,) = pods.call("ListPodSandboxStats", api.ListPodSandboxStatsRequest()).stats
    assert stats.linux.network.default_interface.name == "eth0"


def test_a_pod_that_looks_like_what_a_killed_daemon_left_is_not_taken_for_it(own_daemon: Daemon, image: str) -> None:
    own_daemon.start()
    with Pods(own_daemon.socket, image) as client:
        client.pull()
        root = f"--root={own_daemon.layout.run}/handlers/crun"
        loop = f"(while :; do sh -c 'echo up; sleep 1000; :' probe-crun {root}; done) & wait"
        container = client.launch(client.run(pod("attacker")), "sh", "-c", loop, security=NOBODY)
        cgroup = client.host_pid(container)
        wait_for(lambda: b"probe-crun" in _command_lines(cgroup), "the process that looks like a probe")
        own_daemon.stop()
        own_daemon.start()
        assert client.run(pod("after", options=namespaces(user=BLOCK)))
        assert client.status(container).state == api.CONTAINER_RUNNING
        assert b"probe-crun" in _command_lines(cgroup)


def _command_lines(leader: int) -> bytes:
    """Return the command lines of a process and of what it started."""
    children = [leader]
    for pid in children:
        children += processes.children(pid)
    return b"".join(map(processes.command_line, children))


@pytest.mark.parametrize("name", [b"\xff", b"a\rb", b"a\x1cb"])
@USERS
def test_a_link_to_an_odd_name(
    pods: Pods, daemon: Daemon, open_directory: Path, name: bytes, user: tuple[int, int, int] | None
) -> None:
    top = open_directory / os.urandom(3).hex()
    (Path(os.fsdecode(os.fsencode(top) + b"/" + name))).mkdir(parents=True)
    (top / "x").symlink_to(os.fsdecode(name))
    before = daemon.resources()
    sandbox = pods.run(pod(options=namespaces(user=user)))
    mounts = [bind(top / "x", "/v", user)] if user else [bind(top / "x", "/v")]
    if name == b"\xff":
        assert "is not UTF-8 text" in error_of(lambda: pods.create(sandbox, mounts=mounts), InvalidArgument)
    else:
        container = pods.launch(sandbox, mounts=mounts)
        assert pods.read(container, "ls -d /v") == "/v"
    pods.call("Status", api.StatusRequest())
    pods.remove(sandbox)
    assert daemon.resources() == before


def test_links_of_an_image_multiply_no_content(pods: Pods, daemon: Daemon, registry: Registry, tmp_path: Path) -> None:
    """A hundred VOLUMEs were links to one directory, and each got a copy of it; one was below another."""
    content = os.urandom(1 << 20).hex()
    links = (symlink(f"v{number}", "/big") for number in range(100))
    members = [directory("big"), directory("big/below"), file("big/below/file", content), *links]
    volumes = {**{f"/v{number}": {} for number in range(100)}, "/big/below": {}}
    layout = busybox_layout(tmp_path / "layout", layers=[members], config={"Volumes": volumes})
    name = registry.push(layout, f"amplify:{os.urandom(3).hex()}")
    pods.pull(name)
    container = pods.launch(pods.run(), image=name)
    made = sorted(path.name for path in daemon.layout.volumes(container).iterdir())  # type: ignore[arg-type]
    assert made == ["0"]
    script = "echo new >/v7/below/file; cat /big/below/file /v99/below/file; mount | grep -c ' /big'"
    assert pods.read(container, script).split() == ["new", "new", "1"]
