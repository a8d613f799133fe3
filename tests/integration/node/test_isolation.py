"""What a user namespace keeps from a pod: each attack succeeds as real root, and fails with ``hostUsers: false``.

The same program, the same privileged pod otherwise: so that a failure is the user namespace's doing (KEP-127, stories 1
to 5). How each attack ended is kept for docs/isolation.md.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent.manifests import mount, pod, shell
from node.test_node_mapping_pods import GATE, WIDE, with_mapping
from node.test_pod_volumes import log_of
from node.test_user_namespace_isolation import host_pid, owner

from podkeep.kernel.mount import mountinfo
from support import isolation
from support.attacks import ATTACKS, RELEASE_AGENT, By, Who
from support.escaped import DONE, PROGRAMS, escaped
from support.keys import root_key
from support.loopdev import LoopDevice, loop_device
from support.running_node import RunningNode

SOCKET = "podkeep-isolation"


def attacker(image: str, name: str, programs: Path, disk: str, **spec: Any) -> dict[str, Any]:
    """Return a privileged pod with the machine's Python, which makes its attacks and stays."""
    paths = {"usr": "/usr", "lib": "/lib", "lib64": "/lib64", "programs": str(programs)}
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in paths.items()]
    container = {
        "name": "main",
        "image": image,
        "command": ["/usr/bin/python3", "/programs/attacks.py", "--stay"],
        "env": [{"name": "DISK", "value": disk}],
        "securityContext": {"privileged": True},
        "volumeMounts": [mount(f"/{name}", name, readOnly=True) for name in paths],
    }
    return pod(container, name=name, volumes=volumes, **spec)


def victim(image: str, name: str, **spec: Any) -> dict[str, Any]:
    """Return a pod whose user 1000 has a process and a file."""
    user = {"securityContext": {"runAsUser": 1000, "runAsGroup": 1000}}
    return pod(shell(image, "umask 077; echo mine >/tmp/mine; exec sleep 3600"), name=name, **user | spec)


@contextmanager
def roots_socket() -> Iterator[None]:
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


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What is attacked on the machine."""

    programs: Path
    disk: LoopDevice
    secret: Path
    private: Path
    others: Path
    runtime: Path


@pytest.fixture
def attacked(open_directory: Path, tmp_path: Path) -> Iterator[Machine]:
    """A machine with files, a disk, a key and a socket that are root's."""
    directory = open_directory / os.urandom(4).hex()
    shutil.copytree(PROGRAMS, directory / "programs")
    secret, private, others, runtime = (directory / name for name in ("secret", "private", "others", "runtime"))
    for file, user in ((secret, 0), (private, 1000), (others, 0)):
        file.write_text("secret")
        file.chmod(0o600)
        os.chown(file, user, user)
    shutil.copy(shutil.which("crun") or "", runtime)
    with loop_device(tmp_path) as disk, root_key(b"podkeep-isolation", b"secret"), roots_socket():
        subprocess.run(["mkfs.ext4", "-q", disk.path], check=True)
        yield Machine(
            programs=directory / "programs", disk=disk, secret=secret, private=private, others=others, runtime=runtime
        )


def attacks_of_pod(node: RunningNode, name: str) -> dict[str, str]:
    """Return how the attacks from inside of a container ended."""
    node.running(name)
    node.until(lambda: log_of(node, name), "the attacks")
    found: dict[str, str] = json.loads(log_of(node, name))
    return found


def attacks_of_escaped(machine: Machine, pid: int, other: int) -> dict[str, str]:
    """Return how the attacks of an escaped process ended.

    :param pid: the container it comes from.
    :param other: the first process of another pod, which is user 1000 there.
    """
    as_root = {"secret": machine.secret, "runtime": machine.runtime, "release_agent": RELEASE_AGENT, "socket": SOCKET}
    as_root |= {"disk": machine.disk.path, "memory": "/dev/mem", "ports": "/dev/port"}
    root = Path(f"/proc/{other}/root")
    as_user = {"other": other, "other's root": root, "other's file": machine.others, "private": machine.private}
    os.chown(machine.others, owner(other), owner(other))
    outcomes = {}
    for attack in ATTACKS:
        if attack.by is By.ESCAPED:
            action, _, target = attack.name.partition(" ")
            uid = 1000 if target in as_user else 0
            outcomes[attack.name] = escaped(pid, action, (as_root | as_user).get(target, ""), uid=uid)
    return outcomes


def attacks(node: RunningNode, image: str, machine: Machine, **spec: Any) -> dict[str, str]:
    """Make all attacks from one pod, with another one beside it; return how they ended."""
    node.apply(
        attacker(image, "attacker", machine.programs, machine.disk.path, **spec), victim(image, "victim", **spec)
    )
    node.running("victim")
    found = attacks_of_pod(node, "attacker")
    pid, other = (host_pid(node, image, name) for name in ("attacker", "victim"))
    node.until(Path(f"/proc/{other}/root/tmp/mine").exists, "the victim's file")
    return found | attacks_of_escaped(machine, pid, other)


def wrong(who: Who, found: dict[str, str]) -> list[str]:
    """Return the attacks that ended otherwise than they must; what the machine lacks must fail somehow."""
    ends = {attack.name: (attack, found[attack.name]) for attack in ATTACKS}
    return [
        f"{name}: {end}, not {attack.expected(who)}"
        for name, (attack, end) in ends.items()
        if (end == DONE if attack.lacks else end != attack.expected(who))
    ]


def state_of(machine: Machine) -> list[object]:
    """Return what the attacks are about, on the machine."""
    settings = [Path("/proc/sys/kernel/core_pattern"), Path("/proc/sys/vm/swappiness"), Path(RELEASE_AGENT)]
    files = (machine.secret, machine.private, machine.runtime, *(file for file in settings if file.exists()))
    contents = [file.read_bytes() for file in files]
    return [contents, Path("/proc/swaps").read_text(), mountinfo.read()]


def made(node: RunningNode, image: str, machine: Machine, who: Who) -> dict[str, str]:
    """Make all attacks as somebody, keep how they ended, and remove the pods; the machine is as it was."""
    before = state_of(machine)
    found = attacks(node, image, machine, hostUsers=who is Who.ROOT)
    isolation.keep(who, found)
    for name in ("attacker", "victim"):
        node.delete(name)
        node.gone(name)
    assert state_of(machine) == before
    return found


@pytest.mark.requirement("U87", "U88", "U89", "U90", "U123")
def test_attacks(own_node: RunningNode, image: str, attacked: Machine) -> None:
    """What root of the machine may do, root of a pod may not; and nothing has changed by the attempts."""
    with own_node as node:
        ended = {who: made(node, image, attacked, who) for who in (Who.ROOT, Who.BLOCK)}
    for who, found in ended.items():
        assert wrong(who, found) == []
        assert isolation.differences(who, found) == []


@pytest.mark.requirement("U119")
def test_attacks_with_one_mapping(own_node: RunningNode, image: str, attacked: Machine) -> None:
    """The machine is as safe as with a block for each pod; pods are the same users for each other."""
    own_node.settings, own_node.options = (GATE,), with_mapping(WIDE)
    with own_node as node:
        found = made(node, image, attacked, Who.NODE)
    assert wrong(Who.NODE, found) == []
    assert isolation.differences(Who.NODE, found) == []
