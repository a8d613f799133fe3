"""Runtime and agent end and come back, in any order and any way: nobody's view of mounts changes (seed 002, Goal 4)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mounts
from podkeep.kernel.namespace.namespaces import NamespaceKind
from podkeep.mountns.pin import pinned
from support import scratch
from support.cri import BLOCK, Pods, bind, namespaces, pod, userns
from support.daemon import Daemon
from support.mortal import Mortal
from support.propagation import (
    FILE,
    SEEN,
    Agent,
    Mode,
    launch,
    launch_with,
    mode_daemon,
    mount_namespace,
    pod_manifest,
    read_in,
    run_in,
    table,
)

ENDS = pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
SEED = 20220117
"""Of the order of restarts."""
RESTARTS = 10


@pytest.fixture
def mortal(mode: Mode, open_directory: Path, image: str) -> Iterator[Mortal]:
    """A daemon of the test's own in each mode, not started; afterwards the host has the mounts that it had."""
    scratch.detach_unified()  # as a daemon that shows its mounts has it, once for all tests
    yield from cleared(Mortal(mode_daemon(mode, open_directory / os.urandom(4).hex(), image), image))


@pytest.fixture
def hidden(open_directory: Path, image: str) -> Iterator[Mortal]:
    """The same with hidden mounts only."""
    yield from cleared(Mortal(mode_daemon("hidden", open_directory / os.urandom(4).hex(), image), image))


def cleared(mortal: Mortal) -> Iterator[Mortal]:
    before = table()
    yield mortal
    mortal.close()
    left = [line for line in table() if line not in before]
    if [line.split()[4] for line in left] == ["/run/netns"]:
        # It goes with the last namespace that is pinned on the host, and other tests' daemons have theirs.
        subprocess.run(["umount", "/run/netns"], check=True)
    assert table() == before


def end(daemon: Daemon, how: signal.Signals) -> None:
    assert daemon.process is not None
    daemon.process.send_signal(how)
    daemon.process.wait(timeout=60)


@ENDS
@pytest.mark.requirement("M27")
def test_a_runtime_that_comes_back(mode: Mode, mortal: Mortal, image: str, how: signal.Signals) -> None:
    """Its pods see and show what they did, new mounts as well as old ones, and new pods join in."""
    pods = mortal.start()
    before = mortal.daemon.resources()
    namespace = mount_namespace(mortal.daemon.pid)
    volume = mortal.daemon.base / "volume"
    volume.mkdir()
    volumes = [{"name": "cache", "emptyDir": {"medium": "Memory"}}]
    manifest = pod_manifest("agent", image, mounts=[{"name": "cache", "mountPath": "/cache"}], volumes=volumes)
    with Agent(mortal.daemon, pods, manifest) as agent:
        pods.read(agent.containers()["agent"], f"echo agent >/cache/{FILE}")
        cache = mortal.daemon.base / "kubelet/pods" / agent.uid("agent") / "volumes/kubernetes.io~empty-dir/cache"
        scene = launch(pods, volume)
        scene.mount()
        end(mortal.daemon, how)
        pods = mortal.start()
        scene = scene.served_by(pods)
        assert mount_namespace(mortal.daemon.pid) == namespace == mount_namespace(agent.pid)
        observers = {"runtime": mortal.daemon.pid, "agent": agent.pid}
        expected = SEEN[mode] | {"agent": SEEN[mode]["runtime"]}
        assert scene.seen(**observers) == expected
        scene.unmount()
        with scene.mounted():
            assert scene.seen(**observers) == expected
            mount = bind(mortal.daemon.base, "/base", propagation=api.PROPAGATION_HOST_TO_CONTAINER)
            later = launch_with(pods, mount, "later")
            paths = [f"/base/{path.relative_to(mortal.daemon.base)}" for path in (volume / "master", cache)]
            assert pods.read(later, f"cat {paths[0]}/{FILE} {paths[1]}/{FILE}") == "master\nagent"
        for sandbox in pods.sandboxes():
            if sandbox.metadata.name != "agent":
                pods.remove(sandbox.id)
    assert mortal.daemon.resources() == before


@dataclass
class Loop:
    """A runtime and an agent that are ended and started again, each agent with a pod of its own."""

    mortal: Mortal
    image: str
    pods: Pods = field(init=False)
    agents: list[Agent] = field(default_factory=list)

    def start(self) -> None:
        self.pods = self.mortal.start()
        self.next_agent()

    def next_agent(self) -> None:
        volumes = [{"name": "cache", "emptyDir": {"medium": "Memory"}}]
        mounts = [{"name": "cache", "mountPath": "/cache"}]
        name = f"agent-{len(self.agents)}"
        self.agents.append(
            Agent(self.mortal.daemon, self.pods, pod_manifest(name, self.image, mounts=mounts, volumes=volumes))
        )
        self.agents[-1].start()

    def restart_runtime(self, how: signal.Signals) -> None:
        end(self.mortal.daemon, how)
        self.pods = self.mortal.start()
        for agent in self.agents:
            agent.pods = self.pods

    def restart_agent(self, how: signal.Signals) -> None:
        self.agents[-1].end(how)
        self.next_agent()

    def namespaces(self) -> set[int | None]:
        """Return what is pinned and where the daemons are: all the same."""
        pin = self.mortal.daemon.base / "mountns/mnt"
        return {pinned(pin), mount_namespace(self.mortal.daemon.pid), mount_namespace(self.agents[-1].pid)}


@pytest.mark.requirement("M28", "M29")
def test_restarts_in_any_order(hidden: Mortal, image: str) -> None:
    chosen, daemon = random.Random(SEED), hidden.daemon
    loop = Loop(mortal=hidden, image=image)
    with ExitStack() as closing:
        loop.start()
        closing.callback(lambda: daemon.run("rm", "--grace-period", "0", *left_by(loop), check=True))
        closing.callback(lambda: loop.agents[-1].end())
        first = loop.namespaces()
        assert len(first) == 1
        cache = next((daemon.base / "kubelet/pods").glob("*/volumes/kubernetes.io~empty-dir/cache"))
        loop.pods.read(loop.agents[0].containers()["agent-0"], f"echo first >/cache/{FILE}")
        # The first agent's pod stays, and with it what the agent mounted.
        loop.restart_agent(signal.SIGKILL)
        for _ in range(RESTARTS):
            restart = chosen.choice((loop.restart_runtime, loop.restart_agent))
            restart(chosen.choice((signal.SIGTERM, signal.SIGKILL)))
            assert loop.namespaces() == first
            for pid in (daemon.pid, loop.agents[-1].pid):
                assert read_in(pid, cache / FILE) == "first\n"


def left_by(loop: Loop) -> list[str]:
    """Return the names of the pods that killed agents left."""
    return [item.metadata.name for item in loop.pods.sandboxes()]


@ENDS
@pytest.mark.requirement("M32")
def test_pins_of_a_pod_outlive_the_runtime(hidden: Mortal, how: signal.Signals) -> None:
    """For the runtime that comes back, and for tools that enter its mount namespace first."""
    pods = hidden.start()
    sandbox = pods.run(pod(options=namespaces(user=userns(BLOCK))))
    container = pods.launch(sandbox)
    address = pods.address(sandbox)
    end(hidden.daemon, how)
    pods = hidden.start()
    daemon = hidden.daemon
    assert pods.read(container, "cat /proc/self/uid_map").split() == ["0", "65536", "65536"]
    pin = {kind: daemon.layout.run / "sandboxes" / sandbox / "ns" / kind.value for kind in NamespaceKind}
    for tool in (entering(daemon.pid), by_podkeep(daemon)):
        shown = tool("nsenter", f"--net={pin[NamespaceKind.NET]}", "ip", "-o", "-4", "address")
        assert f" {address}/" in shown
        mapped = tool("nsenter", f"--user={pin[NamespaceKind.USER]}", "cat", "/proc/self/uid_map")
        assert mapped.split() == ["0", "65536", "65536"]
        for kind in (NamespaceKind.NET, NamespaceKind.USER, NamespaceKind.IPC):
            inode = tool("nsenter", f"--{kind.value}={pin[kind]}", "stat", "-Lc", "%i", f"/proc/self/ns/{kind.value}")
            assert int(inode) == os.stat(f"/proc/{pods.host_pid(container)}/ns/{kind.value}").st_ino


Tool = Callable[..., str]


def entering(pid: int) -> Tool:
    """Return how a tool is run beside process ``pid``."""

    def run(*command: str) -> str:
        done = run_in(pid, *command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def by_podkeep(daemon: Daemon) -> Tool:
    """Return how a tool is run by ``podkeep mountns exec``."""

    def run(*command: str) -> str:
        done = daemon.run("mountns", "exec", "--", *command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def fresh_run() -> Iterator[None]:
    """A /run in which nobody has made a network namespace yet."""
    scratch.cover_run()
    yield
    mounts.unmount("/run", lazy=True)


@pytest.mark.requirement("M32")
def test_namespaces_that_the_host_names_later_cover_nothing(fresh_run: None, hidden: Mortal) -> None:
    """The first ``ip netns add`` mounts over /run/netns, which propagates: what is pinned there must not vanish."""
    inside, outside = "inside", "outside"
    assert not Path("/run/netns").exists()
    hidden.start()
    tool = by_podkeep(hidden.daemon)
    try:
        tool("ip", "netns", "add", inside)
        subprocess.run(["ip", "netns", "add", outside], check=True)
        for name in (inside, outside):
            assert "lo" in tool("ip", "netns", "exec", name, "ip", "-o", "link")
        on_the_host = subprocess.run(["ip", "netns", "exec", inside, "true"], capture_output=True, check=False)
        assert on_the_host.returncode != 0
        assert subprocess.run(["ip", "netns", "exec", outside, "true"], check=False).returncode == 0
    finally:
        subprocess.run(["ip", "netns", "delete", outside], check=True)
        tool("ip", "netns", "delete", inside)
