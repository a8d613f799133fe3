"""Who the users of a pod are on the machine. What they may do there is tried in test_isolation.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agent.manifests import FOREVER, pod, shell
from node.test_user_namespace_gate import container_of, mapping_of, runs

from support.cri import Pods
from support.processes import owner
from support.running_node import RunningNode

MODULES = Path("/proc/modules").exists()


def processes() -> list[int]:
    """Return the processes of the machine."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def same_user_namespace(pid: int, other: int) -> bool:
    """Return whether two processes share it; one that has ended, or that nobody may look at, shares none."""
    try:
        return os.readlink(f"/proc/{pid}/ns/user") == os.readlink(f"/proc/{other}/ns/user")
    except (FileNotFoundError, PermissionError):
        return False


@pytest.mark.requirement("U124")
def test_root_of_a_pod_is_no_root_of_the_machine(node: RunningNode, image: str) -> None:
    """Whatever is root inside is a user of the pod's block outside."""
    for name, host_users in (("real", True), ("own", False)):
        node.apply(runs(image, name, hostUsers=host_users))
    real, own = (node.host_pid(name) for name in ("real", "own"))
    assert owner(real) == 0
    with Pods(node.daemon.socket, image) as client:
        assert client.read(container_of(node, "own")[0].rpartition("/")[2], "id -u") == "0"
    block = int(mapping_of(node, image, "own")[1])
    inside = [pid for pid in processes() if same_user_namespace(pid, own)]
    assert own in inside
    assert all(block <= owner(pid) < block + 65536 for pid in inside)


@pytest.mark.requirement("U89", "U125", "U126")
def test_a_user_of_a_pod_is_no_user_of_the_machine_nor_of_another_pod(node: RunningNode, image: str) -> None:
    """Users 1000 of two pods with a user namespace are two others of the machine; without, all are one."""
    user = {"securityContext": {"runAsUser": 1000, "runAsGroup": 1000}}
    names = ("real-a", "real-b", "a", "b")
    for name in names:
        node.apply(runs(image, name, hostUsers=name.startswith("real"), **user))
    pids = {name: node.host_pid(name) for name in names}
    starts = {name: int(mapping_of(node, image, name)[1]) for name in names}
    assert starts["real-a"] == starts["real-b"] == 0
    assert len({0, starts["a"], starts["b"]}) == 3
    assert {name: owner(pid) for name, pid in pids.items()} == {name: start + 1000 for name, start in starts.items()}


@pytest.mark.parametrize("offset", [None, 0, 1000], ids=["root", "its root", "its user"])
def test_who_may_run_as_any_user_of_the_machine_has_no_power_over_a_pod(
    node: RunningNode, image: str, offset: int | None
) -> None:
    """A pod that sees the machine's processes, has no capability, and runs as root, or as a user of the other pod."""
    node.apply(runs(image, "victim", hostUsers=False))
    victim, start = node.host_pid("victim"), int(mapping_of(node, image, "victim")[1])
    uid = 0 if offset is None else start + offset
    security = {"runAsUser": uid, "runAsGroup": uid, "capabilities": {"drop": ["ALL"]}}
    attacker = pod(shell(image, FOREVER, securityContext=security), name="attacker", hostPID=True)
    node.apply(attacker)
    with Pods(node.daemon.socket, image) as client:
        container = container_of(node, "attacker")[0].rpartition("/")[2]
        assert client.read(container, f"id -u; test -e /proc/{victim}/status") == str(uid)
        for looks in (f"cat /proc/{victim}/ns/user", f"ls /proc/{victim}/root/", f"cat /proc/{victim}/environ"):
            answer = client.exec(container, "sh", "-c", looks)
            assert answer.exit_code != 0
            assert "Permission denied" in answer.stderr.decode()
