"""Who sees whose mounts: containers that share a directory of the host, where each of them and the host mount.

The containers are those of Kubernetes' end-to-end test "Mount propagation should propagate mounts within defined
scopes": ``master`` has the directory with Bidirectional propagation, ``slave`` with HostToContainer, ``private`` with
None, and ``default`` does not say. The host is the process of the tests (``scratch``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mountinfo, mounts
from support import forked
from support.container_mounts import ContainerMounts
from support.cri import Pods, Triple, bind, namespaces, pod
from support.daemon import Daemon
from support.waiting import wait_for

Mode = Literal["hidden", "shown"]
"""Whether the runtime's mounts are hidden from the host."""
MODES: tuple[Mode, ...] = ("hidden", "shown")
PROPAGATIONS: Mapping[str, api.MountPropagation] = {
    "master": api.PROPAGATION_BIDIRECTIONAL,
    "slave": api.PROPAGATION_HOST_TO_CONTAINER,
    "private": api.PROPAGATION_PRIVATE,
    "default": api.PROPAGATION_PRIVATE,
}
"""CRI has no word for a propagation that was not given: a kubelet sends PRIVATE."""
SEEN_BY_CONTAINERS: Mapping[str, set[str]] = {
    "master": {"master", "host"},
    "slave": {"master", "slave", "host"},
    "private": {"private"},
    "default": {"default"},
}
SEEN: Mapping[Mode, dict[str, set[str]]] = {
    "hidden": {**SEEN_BY_CONTAINERS, "runtime": {"master", "host"}, "host": {"host"}},
    "shown": {**SEEN_BY_CONTAINERS, "runtime": {"master", "host"}, "host": {"master", "host"}},
}
"""Observers, and whose mounts they see. The agent is where the runtime is."""
TARGET = "/mnt/test"
"""Where containers have the directory."""
FILE = "file"


# --------------------------------------------------------------------------------------------------------- the node


@dataclass(frozen=True, kw_only=True)
class Node:
    """A running daemon, a client of it, and an empty directory of the host below ``daemon.base``."""

    mode: Mode
    daemon: Daemon
    pods: Pods
    volume: Path

    @property
    def runtime(self) -> int:
        """The runtime's process."""
        return self.daemon.pid


def mode_daemon(mode: Mode, base: Path, image: str) -> Daemon:
    """Return a daemon of ``mode``, not started; its CDI spec files are in ``base/cdi``."""
    (base / "cdi").mkdir(parents=True)
    host = image.partition("/")[0]
    settings = (f"runtime.cdi_spec_dirs={json.dumps([str(base / 'cdi')])}",)
    extra = f'[registries."{host}"]\ninsecure = true\n'
    return Daemon(base, extra=extra, settings=settings, mounts=ContainerMounts(mode))


# -------------------------------------------------------------------------------------------------------- the scene


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The directory ``volume`` of the host and the containers that have it, by name."""

    pods: Pods
    volume: Path
    containers: Mapping[str, str]

    def served_by(self, pods: Pods) -> Scene:
        """Return the same scene with another client, after the runtime was started again."""
        return replace(self, pods=pods)

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Have every container, and last of all the host, mount a tmpfs at the directory of its name."""
        self.mount()
        try:
            yield
        finally:
            self.unmount()

    def mount(self) -> None:
        """Mount in every container and on the host."""
        for name in (*self.containers, "host"):
            (self.volume / name).mkdir(exist_ok=True)
        for name, container in self.containers.items():
            place = f"{TARGET}/{name}"
            self.pods.read(container, f"mount -t tmpfs {name} {place} && echo {name} >{place}/{FILE}")
        mounts.tmpfs(self.volume / "host")
        (self.volume / "host" / FILE).write_text("host\n")

    def unmount(self) -> None:
        """Unmount what :meth:`mount` mounted."""
        mounts.unmount(self.volume / "host")
        for name, container in self.containers.items():
            self.pods.exec(container, "umount", f"{TARGET}/{name}")

    def seen(self, **processes: int) -> dict[str, set[str]]:
        """Return whose file each observer sees: the containers, the host, and ``processes`` by their IDs."""
        names = (*self.containers, "host")
        script = f"for name in {' '.join(names)}; do cat {TARGET}/$name/{FILE}; done 2>/dev/null; true"
        found = {name: set(self.pods.read(container, script).split()) for name, container in self.containers.items()}
        found["host"] = {name for name in names if (self.volume / name / FILE).exists()}
        for observer, pid in processes.items():
            found[observer] = {name for name in names if read_in(pid, self.volume / name / FILE) == f"{name}\n"}
        return found


def launch(
    pods: Pods, volume: Path, *, user: Triple | None = None, propagations: Mapping[str, int] = PROPAGATIONS
) -> Scene:
    """Run a pod with a privileged container for each of ``propagations``, in a user namespace if one is given."""
    containers = {
        name: launch_with(pods, bind(volume, TARGET, *(() if user is None else (user,)), propagation=mode), name, user)
        for name, mode in propagations.items()
    }
    return Scene(pods=pods, volume=volume, containers=containers)


def launch_with(pods: Pods, mount: api.Mount, name: str, user: Triple | None = None, **fields: Any) -> str:
    """Run a pod with one privileged container that has ``mount``, and return the container."""
    config = pod(name, options=namespaces(user=user))
    config.linux.security_context.privileged = True
    return pods.launch(pods.run(config), mounts=[mount], security={"privileged": True}, **fields)


# ------------------------------------------------------------------------------------------------ `podkeep run`


class Agent:
    """``podkeep run`` in the background; use it as a context manager, which ends it and its pods."""

    def __init__(self, daemon: Daemon, pods: Pods, *manifests: Mapping[str, Any]) -> None:
        self._daemon, self.pods = daemon, pods
        self._names = [manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "Pod"]
        self._text = "\n---\n".join(json.dumps(manifest) for manifest in manifests)
        self.process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process that mounts the volumes, which runs."""
        return self._running().pid

    def start(self) -> Agent:
        """Start it, and wait until every pod has a running container."""
        self._begin({})
        wait_for(self._has_started, "running containers of every pod")
        return self

    def run_to_the_end(self, **environment: str) -> int:
        """Start it, and return its exit status."""
        process = self._begin(environment)
        with process:
            return process.wait(timeout=60)

    def _begin(self, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        self.process = forked.Popen(
            self._daemon.command("run", "-"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        assert self.process.stdin is not None
        self.process.stdin.write(self._text)
        self.process.stdin.close()
        return self.process

    def _running(self) -> subprocess.Popen[str]:
        assert self.process is not None
        assert self.process.poll() is None, self.process.stderr.read() if self.process.stderr else ""
        return self.process

    def _has_started(self) -> bool:
        self._running()
        return set(self._names) <= set(containers_by_pod(self.pods))

    def containers(self) -> dict[str, str]:
        """Return the running container of each of its pods, by the pod's name."""
        running = containers_by_pod(self.pods)
        return {name: running[name] for name in self._names}

    def uid(self, name: str) -> str:
        """Return the UID of one of its pods."""
        (sandbox,) = (item for item in self.pods.sandboxes() if item.metadata.name == name)
        return str(sandbox.metadata.uid)

    def end(self, number: signal.Signals = signal.SIGINT) -> None:
        """Send a signal and wait for the end; SIGKILL leaves the pods as they are."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(timeout=60)
        if self.process.stderr is not None:
            self.process.stderr.close()

    def __enter__(self) -> Agent:
        try:
            return self.start()
        except BaseException:
            if self.process is not None:
                self.end()
            raise

    def __exit__(self, *_: object) -> None:
        self.end()


def containers_by_pod(pods: Pods) -> dict[str, str]:
    """Return the running containers by the names of their pods."""
    running = api.ContainerStateValue(state=api.CONTAINER_RUNNING)
    return {item.labels["io.kubernetes.pod.name"]: item.id for item in pods.containers(state=running) if item.labels}


def pod_manifest(name: str, image: str, *, mounts: Sequence[Mapping[str, Any]] = (), **spec: Any) -> dict[str, Any]:
    """Return a Pod with one privileged container that waits."""
    container = {
        "name": "main",
        "image": image,
        "command": ["sleep", "1000"],
        "securityContext": {"privileged": True},
        "volumeMounts": list(mounts),
    }
    base = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": base | spec}


# ------------------------------------------------------------------------------------------------------- looking


def run_in(pid: int, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in the mount namespace of process ``pid``, as an administrator would."""
    argv = ["nsenter", "--target", str(pid), "--mount", "--", *(str(part) for part in command)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def read_in(pid: int, path: Path) -> str | None:
    """Return the content of a file as process ``pid`` sees it, None if it does not."""
    done = run_in(pid, "cat", path)
    assert done.returncode == 0 or "No such file or directory" in done.stderr, done.stderr
    return done.stdout if done.returncode == 0 else None


def mount_namespace(pid: int | None = None) -> int:
    """Return the inode of the mount namespace of a process; None: of the tests."""
    return os.stat(f"/proc/{'self' if pid is None else pid}/ns/mnt").st_ino


def table(pid: int | None = None) -> list[str]:
    """Return the lines of the table of mounts of a process; None: of the host."""
    return Path(f"/proc/{'self' if pid is None else pid}/mountinfo").read_text().splitlines()


def kinds_below(path: Path, pid: int | None = None) -> dict[str, str]:
    """Return what is mounted below ``path``: mount points, relative, with the types of their file systems."""
    return {
        os.path.relpath(entry.mount_point, path): entry.fs_type
        for entry in mountinfo.under(path, pid)
        if entry.mount_point != str(path)
    }


def groups(entry: mountinfo.MountEntry) -> dict[str, int]:
    """Return the peer groups of a mount: ``shared`` and ``master`` with their numbers."""
    pairs = (field.partition(":") for field in entry.propagation)
    return {kind: int(number) for kind, _, number in pairs}
