"""Everyone who mounts, and everyone who looks: runtime, OCI hooks, agent, containers, host (seed 002, Goals 1 to 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mounts
from support.cdi import Spec, hook
from support.cri import Pods, bind, pod
from support.daemon import Daemon
from support.propagation import FILE, Agent, Mode, launch_with, pod_manifest, read_in, table

OBSERVERS = ("host", "runtime", "hook", "agent", "slave", "later slave", "master")
"""``slave`` is a container with HostToContainer, ``master`` one with Bidirectional propagation; both were there before
anything was mounted, but ``later slave``."""
TARGET = "/base"
ALL = set(OBSERVERS)
SEEN_BY: dict[Mode, dict[str, set[str]]] = {
    "hidden": {
        "host": ALL,
        "runtime": ALL - {"host"},
        "hook": ALL - {"host"},
        "agent": ALL - {"host"},
        "master": ALL - {"host"},
    },
    "shown": {"host": ALL, "runtime": ALL, "hook": ALL, "agent": ALL, "master": ALL},
}
"""Who mounts, and who sees it."""


class Stage:
    """One mount of each producer, below the daemon's directory, which all containers have at /base."""

    def __init__(self, daemon: Daemon, pods: Pods, agent: Agent) -> None:
        self._daemon, self._pods, self._agent = daemon, pods, agent
        self.places: dict[str, Path] = {}
        """Producer to the directory that it mounted on."""

    def observer(self, name: str, propagation: api.MountPropagation) -> str:
        """Run a container that has everything."""
        return launch_with(self._pods, bind(self._daemon.base, TARGET, propagation=propagation), name)

    def by_host(self, place: Path) -> None:
        mounts.tmpfs(place)
        (place / FILE).write_text("host\n")

    def by_runtime(self) -> None:
        """Have it mount the shared memory of a new pod."""
        sandbox = self._pods.run(pod("runtime"))
        self._pods.read(self._pods.launch(sandbox), f"echo runtime >/dev/shm/{FILE}")
        self.places["runtime"] = self._daemon.layout.run / "sandboxes" / sandbox / "shm"

    def by_hook(self, place: Path) -> None:
        script = f"mount -t tmpfs hook {place} && echo hook >{place}/{FILE}"
        with Spec(self._daemon.base / "cdi", hook("createRuntime", script)) as device:
            self._pods.launch(self._pods.run(pod("hook")), CDI_devices=[device])

    def by_agent(self) -> None:
        """Take the volume in memory of its pod."""
        container = self._agent.containers()["agent"]
        self._pods.read(container, f"echo agent >/cache/{FILE}")
        directory = self._daemon.base / "kubelet/pods" / self._agent.uid("agent")
        self.places["agent"] = directory / "volumes/kubernetes.io~empty-dir/cache"

    def by_master(self, container: str, place: Path) -> None:
        inside = f"{TARGET}/{place.relative_to(self._daemon.base)}"
        self._pods.read(container, f"mount -t tmpfs master {inside} && echo master >{inside}/{FILE}")

    def mount(self, master: str, volume: Path) -> None:
        """Mount everything."""
        for name in ("host", "hook", "master"):
            self.places[name] = volume / name
            self.places[name].mkdir()
        self.by_host(self.places["host"])
        self.by_hook(self.places["hook"])
        self.by_master(master, self.places["master"])
        self.by_runtime()
        self.by_agent()

    def unmount(self, master: str) -> None:
        """Unmount what does not go with its pod."""
        for name in ("hook", "master"):
            path = self.places[name].relative_to(self._daemon.base)
            self._pods.read(master, f"umount {TARGET}/{path}")
        mounts.unmount(self.places["host"])

    def seen_by_process(self, pid: int) -> set[str]:
        return {name for name, path in self.places.items() if read_in(pid, path / FILE) == f"{name}\n"}

    def seen_by_container(self, container: str) -> set[str]:
        paths = " ".join(f"{TARGET}/{path.relative_to(self._daemon.base)}/{FILE}" for path in self.places.values())
        return set(self._pods.read(container, f"cat {paths} 2>/dev/null; true").split())

    def seen_by_hook(self, notes: Path) -> set[str]:
        paths = " ".join(str(path / FILE) for path in self.places.values())
        with Spec(
            self._daemon.base / "cdi", hook("createRuntime", f"cat {paths} 2>/dev/null >{notes}; true")
        ) as device:
            self._pods.launch(self._pods.run(pod("looking")), CDI_devices=[device])
        return set(notes.read_text().split())


@pytest.fixture(scope="module")
def seen(mode: Mode, mode_runtime: Daemon, image: str) -> Iterator[Mapping[str, set[str]]]:
    """Whose mounts each observer sees; afterwards daemon and host hold what they held before."""
    volume = mode_runtime.base / "producers"
    volume.mkdir()
    before = (mode_runtime.resources(), table())
    volumes = [{"name": "cache", "emptyDir": {"medium": "Memory"}}]
    manifest = pod_manifest("agent", image, mounts=[{"name": "cache", "mountPath": "/cache"}], volumes=volumes)
    with Pods(mode_runtime.socket, image) as pods, Agent(mode_runtime, pods, manifest) as agent:
        stage = Stage(mode_runtime, pods, agent)
        master = stage.observer("master", api.PROPAGATION_BIDIRECTIONAL)
        slave = stage.observer("slave", api.PROPAGATION_HOST_TO_CONTAINER)
        stage.mount(master, volume)
        later = stage.observer("later-slave", api.PROPAGATION_HOST_TO_CONTAINER)
        yield {
            "host": {name for name, path in stage.places.items() if (path / FILE).exists()},
            "runtime": stage.seen_by_process(mode_runtime.pid),
            "agent": stage.seen_by_process(agent.pid),
            "hook": stage.seen_by_hook(volume / "notes"),
            "slave": stage.seen_by_container(slave),
            "later slave": stage.seen_by_container(later),
            "master": stage.seen_by_container(master),
        }
        stage.unmount(master)
    assert (mode_runtime.resources(), table()) == before


@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize("producer", ["host", "runtime", "hook", "agent", "master"])
@pytest.mark.requirement("M19", "M20", "M21", "M22", "M23", "M24")
def test_who_sees_what(mode: Mode, seen: Mapping[str, set[str]], producer: str, observer: str) -> None:
    assert (producer in seen[observer]) is (observer in SEEN_BY[mode][producer])
