"""A machine with what is attacked, and the attacks of docs/isolation.md made on it from pods of a node.

``python -m support.attacked`` makes all of them with a node of its own in a scratch machine, and prints what it found
as JSON (:class:`Found`): so the nested machine is attacked, whose kernel is another one. Nothing changes on the machine
by the attempts, which is compared before and after. Does not own: which attacks there are (``attacks``), and the table
(``isolation``).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podkeep.kernel.mount import mountinfo, mounts
from support import scratch
from support.attacks import ATTACKS, By, Outcomes, Who, outcomes, wrong
from support.daemon import Daemon
from support.escaped import PROGRAMS, all_escaped
from support.images import busybox_layout
from support.keys import root_key
from support.loopdev import LoopDevice, loop_device
from support.processes import owner
from support.running_node import RunningNode, own_base

_NAMES = "attacker", "victim"
SOCKET = "podkeep-isolation"
IMAGE = "localhost/busybox:attacked"
RELEASE_AGENT = Path("/sys/fs/cgroup/memory/release_agent")
ONE_MAPPING = ("--uid-mapping", "0:300000:65536", "--gid-mapping", "0:300000:65536")
SETTINGS = ("agent.feature_gates.UserNamespaceSupport=true",)
"""With them the agent gives all pods of the node one mapping, :data:`ONE_MAPPING`."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What is attacked on the machine."""

    programs: Path
    disk: LoopDevice
    secret: Path
    private: Path
    others: Path
    runtime: Path
    key: str
    hierarchy: Path
    """Where a cgroup hierarchy of version 1 can be mounted."""


@contextmanager
def attacked(directory: Path, images: Path) -> Iterator[Machine]:
    """Have files, a disk, a key and a socket that are root's.

    :param directory: a new one, which pods can reach into; ``images``: where the disk's content is.
    """
    shutil.copytree(PROGRAMS, directory / "programs")
    secret, private, others, runtime = (directory / name for name in ("secret", "private", "others", "runtime"))
    for file, user in ((secret, 0), (private, 1000), (others, 0)):
        file.write_text("secret")
        file.chmod(0o600)
        os.chown(file, user, user)
    shutil.copy(shutil.which("crun") or "", runtime)
    hierarchy = directory / "hierarchy"
    hierarchy.mkdir()
    key = f"podkeep-{directory.name}"  # the keyring is shared by all tests that run at the time
    with loop_device(images) as disk, root_key(key.encode(), b"secret"), _roots_socket():
        subprocess.run(["mkfs.ext4", "-q", disk.path], check=True)
        yield Machine(
            programs=directory / "programs",
            disk=disk,
            secret=secret,
            private=private,
            others=others,
            runtime=runtime,
            key=key,
            hierarchy=hierarchy,
        )


@contextmanager
def _roots_socket() -> Iterator[None]:
    """Serve an abstract socket of the machine that says yes to root and no to others."""

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                client.sendall(b"y" if int.from_bytes(credentials[4:8], "little") == 0 else b"n")

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{SOCKET}")
        server.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def made(node: RunningNode, image: str, machine: Machine, who: Who) -> dict[str, str]:
    """Make all attacks as somebody, and remove the pods; return how the attacks ended. The machine is as it was."""
    before = _state(machine, node.daemon.base)
    found = _attacks(node, image, machine, hostUsers=who is Who.ROOT)
    for name in _NAMES:
        node.delete(name)
    for name in _NAMES:
        node.gone(name)
    assert _state(machine, node.daemon.base) == before
    return found


def _attacks(node: RunningNode, image: str, machine: Machine, **spec: Any) -> dict[str, str]:
    """Make all attacks from one pod, with another one beside it; return how they ended."""
    node.apply(_attacker(image, machine, **spec), _victim(image, **spec))
    node.until(lambda: node.written("attacker").endswith("}"), "the attacks")
    found: dict[str, str] = json.loads(node.written("attacker"))
    pid, other = (node.host_pid(name) for name in _NAMES)
    node.until(Path(f"/proc/{other}/root/tmp/mine").exists, "the victim's file")
    with _release_agent(machine) as release_agent:
        return found | _attacks_of_escaped(node, machine, release_agent, pid, other)


def _attacker(image: str, machine: Machine, **spec: Any) -> dict[str, Any]:
    """Return a privileged pod with the machine's Python, which makes its attacks and stays."""
    paths = {"usr": "/usr", "lib": "/lib", "lib64": "/lib64", "programs": str(machine.programs)}
    container = {
        "name": "main",
        "image": image,
        "command": ["/usr/bin/python3", "/programs/attacks.py", "--stay"],
        "env": [{"name": "DISK", "value": machine.disk.path}, {"name": "KEY", "value": machine.key}],
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": name, "mountPath": f"/{name}", "readOnly": True} for name in paths],
    }
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in paths.items()]
    return _pod("attacker", container, volumes=volumes, **spec)


def _victim(image: str, **spec: Any) -> dict[str, Any]:
    """Return a pod whose user 1000 has a process and a file."""
    script = "umask 077; echo mine >/tmp/mine; exec sleep 3600"
    container = {"name": "main", "image": image, "command": ["sh", "-c", script]}
    return _pod("victim", container, securityContext={"runAsUser": 1000, "runAsGroup": 1000}, **spec)


def _pod(name: str, container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    base = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": base | spec}


@contextmanager
def _release_agent(machine: Machine) -> Iterator[Path]:
    """Have the file of a cgroup hierarchy of version 1: the machine's, or one that is mounted meanwhile."""
    if RELEASE_AGENT.exists():
        yield RELEASE_AGENT
        return
    mounts.mount("none", machine.hierarchy, fstype="cgroup", data="none,name=podkeep-isolation")
    try:
        file = machine.hierarchy / RELEASE_AGENT.name
        before = file.read_bytes()
        yield file
        assert file.read_bytes() == before
    finally:
        mounts.unmount(machine.hierarchy)


def _attacks_of_escaped(
    node: RunningNode, machine: Machine, release_agent: Path, pid: int, other: int
) -> dict[str, str]:
    """Return how the attacks of escaped processes ended.

    :param pid: the container they come from.
    :param other: the first process of another pod, which is user 1000 there.
    """
    as_root = {"secret": machine.secret, "runtime": machine.runtime, "release_agent": release_agent, "socket": SOCKET}
    as_root |= {"pods": node.daemon.base / "kubelet" / "pods", "runtime's socket": node.daemon.socket}
    as_root |= {"disk": machine.disk.path, "memory": "/dev/mem"}
    root = Path(f"/proc/{other}/root")
    as_user = {"other": other, "other's root": root, "other's file": machine.others, "private": machine.private}
    os.chown(machine.others, owner(other), owner(other))
    names = [attack.name for attack in ATTACKS if attack.by is By.ESCAPED]
    deeds = []
    for name in names:
        action, _, target = name.partition(" ")
        deeds.append((1000 if target in as_user else 0, action, str((as_root | as_user).get(target, ""))))
    return dict(zip(names, all_escaped(pid, deeds), strict=True))


def _state(machine: Machine, base: Path) -> list[object]:
    """Return what the attacks are about, on the machine; what the node has mounted below its directory is its own."""
    settings = [Path("/proc/sys/kernel/core_pattern"), Path("/proc/sys/vm/swappiness"), RELEASE_AGENT]
    files = (machine.secret, machine.private, machine.runtime, *(file for file in settings if file.exists()))
    contents = [file.read_bytes() for file in files]
    mounted = [item.mount_point for item in mountinfo.read() if not item.mount_point.startswith(str(base))]
    loaded = [path.read_text() for path in _LOADED if path.exists()]
    return [contents, Path("/proc/swaps").read_text(), mounted, loaded]


_LOADED = (Path("/sys/kernel/kexec_loaded"), Path("/sys/kernel/kexec_crash_loaded"))
"""Of other kernels."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """How all attacks on a machine ended."""

    release: str
    """Of its kernel, as of uname(2)."""
    ended: Mapping[Who, Outcomes]
    wrong: list[str]
    """The attacks that ended otherwise than they must."""


def all_made() -> Found:
    """Make all attacks, in a scratch machine with one node: its agent is started again with one mapping for all."""
    scratch.enter()
    with tempfile.TemporaryDirectory(prefix="podkeep-test-", dir="/var/tmp") as name:
        base = Path(name)
        base.chmod(0o711)
        archive = busybox_layout(base / "busybox", name=IMAGE).tar(base / "busybox.tar")
        target = own_base(base)
        found = {}
        with attacked(target, base) as machine, RunningNode(Daemon(own_base(base))) as node:
            node.daemon.run("image", "load", "--quiet", str(archive), check=True)
            for who in (Who.ROOT, Who.BLOCK):
                found[who] = made(node, IMAGE, machine, who)
            node.end_agent()
            node.settings, node.options = SETTINGS, ONE_MAPPING
            node.start_agent()
            found[Who.NODE] = made(node, IMAGE, machine, Who.NODE)
        return Found(
            release=platform.release(),
            ended={who: outcomes(ended) for who, ended in found.items()},
            wrong=[f"{who}: {line}" for who, ended in found.items() for line in wrong(who, ended)],
        )


if __name__ == "__main__":
    result = all_made()
    print(json.dumps({"release": result.release, "ended": result.ended, "wrong": result.wrong}))
