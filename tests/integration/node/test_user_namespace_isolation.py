"""What a user namespace keeps from a pod: each deed is done by real root, and fails in a pod with ``hostUsers: false``.

The same deed, the same pod otherwise: so that a failure is the user namespace's doing (KEP-127, stories 1 to 5).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from agent.manifests import pod, shell
from node.test_pod_volumes import log_of
from node.test_user_namespace_gate import container_of, mapping_of, runs

from support.cri import Pods
from support.escaped import DONE, PROGRAMS, escaped
from support.running_node import RunningNode

MODULES = Path("/proc/modules").exists()


def host_pid(node: RunningNode, image: str, name: str) -> int:
    """Return the machine's ID of the first process of a pod's container."""
    with Pods(node.daemon.socket, image) as client:
        return client.host_pid(container_of(node, name)[0].rpartition("/")[2])


def owner(pid: int) -> int:
    """Return the user that a process is on the machine."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:"))
    (uid,) = set(line.split()[1:])
    return int(uid)


def processes() -> list[int]:
    """Return the processes of the machine."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def same_user_namespace(pid: int, other: int) -> bool:
    """Return whether two processes share it; one that has ended, or that nobody may look at, shares none."""
    try:
        return os.readlink(f"/proc/{pid}/ns/user") == os.readlink(f"/proc/{other}/ns/user")
    except (FileNotFoundError, PermissionError):
        return False


def uses(image: str, name: str, *wanted: str, directory: Path, capabilities: list[str], **spec: Any) -> dict[str, Any]:
    """Return a pod with the machine's Python that uses its powers, and says how that ended."""
    program = directory / "powers.py"
    program.write_bytes((PROGRAMS / "powers.py").read_bytes())
    volumes = [{"name": item.strip("/"), "hostPath": {"path": item}} for item in ("/usr", "/lib", "/lib64")]
    mounts = [{"name": item["name"], "mountPath": item["hostPath"]["path"], "readOnly": True} for item in volumes]
    volumes.append({"name": "program", "hostPath": {"path": str(program), "type": "File"}})
    mounts.append({"name": "program", "mountPath": "/powers.py", "readOnly": True})
    security = {"capabilities": {"add": capabilities}}
    container = {"name": "main", "image": image, "command": ["/usr/bin/python3", "/powers.py", *wanted]}
    return pod(container | {"securityContext": security, "volumeMounts": mounts}, name=name, volumes=volumes, **spec)


def outcomes(node: RunningNode, name: str) -> dict[str, str]:
    """Return how the uses of a pod ended."""
    node.phase(name, "Succeeded")
    found: dict[str, str] = json.loads(log_of(node, name))
    return found


@pytest.mark.requirement("U87", "U123")
def test_what_is_the_whole_machines_stays_out_of_reach(node: RunningNode, image: str, open_directory: Path) -> None:
    """Clock, devices, modules and swap need real root, whatever capabilities a pod is given."""
    wanted = ("adjust_clock", "set_clock", "make_device", "load_module", "swap_on")
    powers = ["SYS_TIME", "SYS_MODULE", "MKNOD", "SYS_ADMIN"]
    for name, spec in (("real", {"hostUsers": True}), ("own", {"hostUsers": False})):
        node.apply(uses(image, name, *wanted, directory=open_directory, capabilities=powers, **spec))
    real, own = outcomes(node, "real"), outcomes(node, "own")
    assert own.pop("load_module") == ("EPERM" if MODULES else "ENOSYS")
    assert real.pop("load_module") == ("ENOEXEC" if MODULES else "ENOSYS")
    assert real == {"adjust_clock": DONE, "set_clock": DONE, "make_device": DONE, "swap_on": "ENOENT"}
    assert own == dict.fromkeys(real, "EPERM")


@pytest.mark.requirement("U88", "U90", "U124")
def test_root_of_a_pod_is_nobody_on_the_machine(node: RunningNode, image: str, open_directory: Path) -> None:
    """Whoever escapes can neither read nor change what is root's: files, programs, the kernel's settings."""
    secret, program = open_directory / "secret", open_directory / "runtime"
    secret.write_text("secret")
    secret.chmod(0o600)
    program.write_bytes(Path("/bin/busybox").read_bytes())
    program.chmod(0o755)
    for name, host_users in (("real", True), ("own", False)):
        node.apply(runs(image, name, hostUsers=host_users))
    real, own = (host_pid(node, image, name) for name in ("real", "own"))
    deeds = [("read", secret), ("overwrite", program), ("overwrite", Path("/proc/sys/kernel/core_pattern"))]
    deeds.append(("take-over", program))
    deeds += [("overwrite", path) for path in Path("/sys/fs/cgroup").glob("*/release_agent")]
    assert [escaped(real, *deed) for deed in deeds] == [DONE] * len(deeds)
    assert {escaped(own, *deed) for deed in deeds} == {"EACCES"}
    assert owner(real) == 0
    with Pods(node.daemon.socket, image) as client:
        assert client.read(container_of(node, "own")[0].rpartition("/")[2], "id -u") == "0"
    block = int(mapping_of(node, image, "own")[1])
    inside = [pid for pid in processes() if same_user_namespace(pid, own)]
    assert own in inside
    assert all(block <= owner(pid) < block + 65536 for pid in inside)


@pytest.mark.requirement("U89", "U125", "U126")
def test_a_user_of_a_pod_is_no_user_of_the_machine_nor_of_another_pod(
    node: RunningNode, image: str, open_directory: Path
) -> None:
    """Three users 1000: the machine's, and those of two pods. None may touch what is another's."""
    private = open_directory / "private"
    private.write_text("private")
    os.chown(private, 1000, 1000)
    private.chmod(0o600)
    user = {"securityContext": {"runAsUser": 1000, "runAsGroup": 1000}}
    for name, host_users in (("real-a", True), ("real-b", True), ("a", False), ("b", False)):
        script = "umask 077; echo mine >/tmp/mine; exec sleep 3600"
        node.apply(pod(shell(image, script), name=name, hostUsers=host_users, **user))
    pids = {name: host_pid(node, image, name) for name in ("real-a", "real-b", "a", "b")}
    for pid in pids.values():
        node.until(Path(f"/proc/{pid}/root/tmp/mine").exists, "the pod's file")
    starts = {name: int(mapping_of(node, image, name)[1]) for name in pids}
    assert starts["real-a"] == starts["real-b"] == 0
    assert len({0, starts["a"], starts["b"]}) == 3
    assert {name: owner(pid) for name, pid in pids.items()} == {name: start + 1000 for name, start in starts.items()}

    def deeds(against: int) -> list[tuple[str, Path | int]]:
        mine = Path(f"/proc/{against}/root/tmp/mine")
        return [("signal", against), ("trace", against), ("list", Path(f"/proc/{against}/root")), ("read", mine)]

    def outcome(of: str, against: str) -> list[str]:
        return [escaped(pids[of], *deed, uid=1000) for deed in (*deeds(pids[against]), ("read", private))]

    assert outcome("real-a", "real-b") == [DONE] * 5
    assert outcome("a", "b") == outcome("b", "a") == ["EPERM", "EPERM", "EACCES", "EACCES", "EACCES"]
