"""Volumes that the agent mounts: where they are seen, and that they outlive it (seed 002, Goals 1 and 4)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from podkeep.kernel.mount import mountinfo, mounts
from support.daemon import Daemon
from support.propagation import (
    FILE,
    Agent,
    Node,
    kinds_below,
    mount_namespace,
    pod_manifest,
    read_in,
    run_in,
)

SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}, "stringData": {"key": "private"}}
PLUGINS = "volumes/kubernetes.io"


def at(path: str, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "mountPath": path} | more


def with_volumes(name: str, image: str, volume: Path) -> dict[str, Any]:
    """Return a pod with a volume of each kind that the agent mounts."""
    volumes = [
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "token", "secret": {"secretName": "token"}},
        {"name": "disk", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": str(volume)}},
    ]
    mounted = [
        at("/memory", "memory"),
        at("/token", "token"),
        at("/part", "disk", subPath="one/two"),
        at("/of-host", "host", subPath="sub"),
    ]
    return pod_manifest(name, image, mounts=mounted, volumes=volumes)


MOUNTED = {
    f"{PLUGINS}~empty-dir/memory": "tmpfs",
    f"{PLUGINS}~secret/token": "tmpfs",
    "volume-subpaths/disk/main/2": "ext4",
    "volume-subpaths/host/main/3": "ext4",
}
"""What is mounted below the pod's directory; a subPath has its volume's file system."""


def pod_directory(daemon: Daemon, agent: Agent, name: str) -> Path:
    return daemon.base / "kubelet/pods" / agent.uid(name)


@pytest.mark.requirement("M21")
def test_what_the_agent_mounts(node: Node, image: str) -> None:
    (node.volume / "sub").mkdir()
    with Agent(node.daemon, node.pods, SECRET, with_volumes("web", image, node.volume)) as agent:
        directory = pod_directory(node.daemon, agent, "web")
        assert mount_namespace(agent.pid) == mount_namespace(node.runtime)
        assert kinds_below(directory, node.runtime).keys() == MOUNTED.keys()
        assert {kinds_below(directory, node.runtime)[path] for path in MOUNTED if "subpaths" not in path} == {"tmpfs"}
        assert kinds_below(directory) == ({} if node.mode == "hidden" else kinds_below(directory, node.runtime))
        container = agent.containers()["web"]
        written = f"for d in memory part of-host; do echo web >/$d/{FILE}; done; cat /token/key"
        assert node.pods.read(container, written) == "private"
        memory, token = directory / f"{PLUGINS}~empty-dir/memory", directory / f"{PLUGINS}~secret/token"
        assert read_in(agent.pid, memory / FILE) == "web\n"
        assert read_in(agent.pid, token / "key") == "private"
        if node.mode == "hidden":
            assert (os.listdir(memory), os.listdir(token)) == ([], [])
        # What is on a disk is there for everybody; only the mounts are hidden.
        assert (directory / f"{PLUGINS}~empty-dir/disk/one/two" / FILE).read_text() == "web\n"
        assert (node.volume / "sub" / FILE).read_text() == "web\n"
    assert not directory.exists()


@pytest.mark.parametrize(
    ("propagation", "end"),
    [("HostToContainer", signal.SIGINT), ("Bidirectional", signal.SIGINT), ("Bidirectional", signal.SIGKILL)],
    ids=["inward", "both ways", "both ways, agent killed"],
)
@pytest.mark.requirement("M31")
def test_a_sub_path_passes_mounts_on(node: Node, image: str, propagation: str, end: signal.Signals) -> None:
    """And what was mounted below it before and afterwards stays when the pod goes."""
    early, late = node.volume / "sub/early", node.volume / "sub/late"
    for path in (early, late):
        path.mkdir(parents=True)
    mounts.tmpfs(early)
    try:
        (early / FILE).write_text("early\n")
        volumes = [{"name": "host", "hostPath": {"path": str(node.volume)}}]
        mount = at("/volume", "host", subPath="sub", mountPropagation=propagation)
        with Agent(node.daemon, node.pods, pod_manifest("web", image, mounts=[mount], volumes=volumes)) as agent:
            mounts.tmpfs(late)
            (late / FILE).write_text("late\n")
            container = agent.containers()["web"]
            assert node.pods.read(container, f"cat /volume/early/{FILE} /volume/late/{FILE}") == "early\nlate"
            if propagation == "Bidirectional":
                (node.volume / "sub/inner").mkdir()
                node.pods.read(container, f"mount -t tmpfs inner /volume/inner && echo inner >/volume/inner/{FILE}")
                assert read_in(agent.pid, node.volume / "sub/inner" / FILE) == "inner\n"
            agent.end(end)
            if end is signal.SIGKILL:
                node.daemon.run("rm", "--grace-period", "0", "web", check=True)
        for path in (early, late):
            assert read_in(node.runtime, path / FILE) == f"{path.name}\n"
            assert (path / FILE).read_text() == f"{path.name}\n"
        if propagation == "Bidirectional":
            # A mount of a container's own outlives it, as on every node.
            assert read_in(node.runtime, node.volume / "sub/inner" / FILE) == "inner\n"
            assert run_in(node.runtime, "umount", node.volume / "sub/inner").returncode == 0
    finally:
        for path in (early, late):
            mounts.unmount(path)


@pytest.mark.parametrize("who", ["host", "container"])
def test_what_is_mounted_right_at_a_sub_path_outlives_its_pod(node: Node, image: str, who: str) -> None:
    """It covers what the container's mount was made of, on the node as well."""
    path = node.volume / "sub"
    path.mkdir()
    volumes = [{"name": "host", "hostPath": {"path": str(node.volume)}}]
    mount = at("/volume", "host", subPath="sub", mountPropagation="Bidirectional")
    try:
        with Agent(node.daemon, node.pods, pod_manifest("web", image, mounts=[mount], volumes=volumes)) as agent:
            if who == "host":
                mounts.tmpfs(path)
                (path / FILE).write_text("later\n")
            else:
                container = agent.containers()["web"]
                node.pods.read(container, f"mount -t tmpfs later /volume && cd /volume && echo later >{FILE}")
            assert read_in(node.runtime, path / FILE) == "later\n"
        assert read_in(node.runtime, path / FILE) == "later\n"
    finally:
        run_in(node.runtime, "umount", path)
        mounts.unmount(path)


@pytest.mark.requirement("M28")
def test_an_agent_after_one_that_was_killed(node: Node, image: str) -> None:
    """It sees the volumes, once each, and whoever removes the pod unmounts them."""
    (node.volume / "sub").mkdir()
    first = Agent(node.daemon, node.pods, SECRET, with_volumes("first", image, node.volume)).start()
    directory = pod_directory(node.daemon, first, "first")
    container = first.containers()["first"]
    first.end(signal.SIGKILL)
    with Agent(node.daemon, node.pods, SECRET, with_volumes("second", image, node.volume)) as second:
        assert mount_namespace(second.pid) == mount_namespace(node.runtime)
        node.pods.read(container, f"echo first >/memory/{FILE}")
        memory = directory / f"{PLUGINS}~empty-dir/memory"
        assert read_in(second.pid, memory / FILE) == "first\n"
        for mine in (directory, pod_directory(node.daemon, second, "second")):
            below = [entry.mount_point for entry in mountinfo.under(mine, second.pid)]
            assert sorted(os.path.relpath(path, mine) for path in below) == sorted(MOUNTED)
        assert run_in(second.pid, "umount", memory).returncode == 0
        assert read_in(second.pid, memory / FILE) is None
        done = node.daemon.run("rm", "--grace-period", "0", "first")
        assert done.returncode == 0, done.stderr
        assert kinds_below(directory, node.runtime) == {}
        assert not directory.exists()


@pytest.mark.requirement("M28")
def test_what_a_killed_agent_left_half_made_is_unmounted_by_the_next(node: Node, image: str) -> None:
    """A pod without a sandbox is nobody's: the next agent takes its mounts away."""
    (node.volume / "sub").mkdir()
    killed = Agent(node.daemon, node.pods, SECRET, with_volumes("killed", image, node.volume))
    assert killed.run_to_the_end(PODKEEP_FAILPOINTS="agent.volumes.ready=kill") == -signal.SIGKILL
    (directory,) = (node.daemon.base / "kubelet/pods").iterdir()
    assert set(kinds_below(directory, node.runtime).values()) == {"tmpfs"}
    with Agent(node.daemon, node.pods, pod_manifest("next", image)) as agent:
        assert pod_directory(node.daemon, agent, "next") != directory
        assert kinds_below(directory, node.runtime) == {}
        assert not directory.exists()
