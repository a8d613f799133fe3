"""What other users of the machine reach of pods, and a pod's containers of the process that holds its PID namespace."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from podkeep.cri.v1 import api_pb2 as api
from support.cri import BLOCK, Pods, Triple, namespaces, pod
from support.daemon import Daemon
from support.loopdev import loop_device
from support.waiting import wait_for

NEIGHBOUR = 1000
NO_FILE = os.strerror(errno.ENOENT)
_AS_A_USER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("programs") / "as_a_user.py"))


def reached(top: Path, daemon: Daemon, *paths: str) -> list[str]:
    """Return which of ``paths`` below ``top``, as the daemon sees it, a user of the machine can look at."""
    directory = os.open(f"/proc/{daemon.pid}/root{top}", os.O_PATH | os.O_DIRECTORY)
    try:
        for path in paths:
            os.stat(path, dir_fd=directory)
        command = [*_AS_A_USER, str(NEIGHBOUR), "look", str(directory), *paths]
        look = subprocess.run(command, pass_fds=(directory,), capture_output=True, text=True, check=True)
    finally:
        os.close(directory)
    return look.stdout.split()


@pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])
def test_a_setuid_program_that_a_pod_makes_is_nobodys_to_run(pods: Pods, daemon: Daemon, user: Triple | None) -> None:
    """IDs of sandboxes and containers are no secret: /proc/PID/cgroup shows them to everybody."""
    sandbox = pods.run(pod(options=namespaces(user=user)))
    container = pods.launch(sandbox)
    for file in ("/etc/resolv.conf", "/etc/hostname", "/dev/shm/program", "/program"):
        pods.read(container, f"cat /bin/busybox >{file} && chmod 4755 {file}")
    found = daemon.layout.sandbox_data(sandbox) / "resolv.conf"
    assert (found.stat().st_mode & 0o7777, found.stat().st_uid) == (0o4755, 0)

    upper = f"containers/{container}/upper/program"
    assert reached(daemon.layout.root, daemon, f"sandboxes/{sandbox}/resolv.conf", upper) == []
    inside = [f"sandboxes/{sandbox}/{name}" for name in ("shm/program", "ns/net")]
    if user is not None:
        inside.append(f"sandboxes/{sandbox}/files/resolv.conf")
    assert reached(daemon.layout.run, daemon, *inside, f"containers/{container}/rootfs/program") == []


def test_a_user_of_the_machine_opens_no_device_that_a_pod_makes(pods: Pods, tmp_path: Path) -> None:
    """Only the container's cgroup may not open it. By /proc/PID/root comes to it who has the user ID of the process."""
    with loop_device(tmp_path) as disk:
        node = f"mknod /disk b {disk.number.replace(':', ' ')} && chmod 666 /disk; ls -d /disk"
        script = f"{node}; exec su -s /bin/sh nobody -c 'exec sleep 1000'"
        container = pods.launch(pods.run(), "sh", "-c", script)
        process = Path(f"/proc/{pods.host_pid(container)}")
        nobody = wait_for(lambda: process.stat().st_uid, "its change of user")
        command = [*_AS_A_USER, str(nobody), "read", f"{process}/root/disk"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{NO_FILE}\n"


@pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])
def test_no_container_takes_all_terminals_of_the_machine(pods: Pods, user: Triple | None) -> None:
    """The kernel has 3072 for all containers (kernel.pty.max, less kernel.pty.reserve)."""
    container = pods.executed(pods.launch(pods.run(pod(options=namespaces(user=user)))))
    multiplexer = f"/proc/{pods.host_pid(container)}/root/dev/pts/ptmx"
    with ExitStack() as terminals:
        for _ in range(512):
            terminals.callback(os.close, os.open(multiplexer, os.O_RDWR | os.O_NOCTTY))
        with pytest.raises(OSError) as refused:
            terminals.callback(os.close, os.open(multiplexer, os.O_RDWR | os.O_NOCTTY))
    assert refused.value.errno == errno.ENOSPC


def infra_of(pods: Pods, sandbox: str) -> int:
    """Return the process ID of what holds a sandbox's PID namespace."""
    return int(json.loads(pods.pod_status(sandbox, verbose=True).info["info"])["status"]["infra"]["pid"])


@pytest.mark.parametrize(
    ("user", "capabilities"),
    [(None, ()), (BLOCK, ()), (BLOCK, ("ALL",))],
    ids=["host users", "own users", "own users, all capabilities"],
)
def test_what_holds_a_pid_namespace_is_no_way_out_of_a_container(
    pods: Pods, user: Triple | None, capabilities: tuple[str, ...]
) -> None:
    sandbox = pods.run(pod(options=namespaces(pid=api.POD, user=user)))
    context = {"capabilities": api.Capability(add_capabilities=capabilities)}
    container = pods.launch(sandbox, security=context)
    assert pods.read(container, "cat /proc/1/comm") == "catatonit"
    for command in (("ls", "/proc/1/root/"), ("readlink", "/proc/1/ns/mnt"), ("cat", "/proc/1/environ")):
        refused = pods.exec(container, *command)
        assert refused.exit_code != 0, command

    infra = infra_of(pods, sandbox)
    status = Path(f"/proc/{infra}/status").read_text()
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    first = 0 if user is None else user[1]
    assert lines["Uid"].split() == [str(first + 65535)] * 4
    assert lines["Gid"].split() == [str(first + 65535)] * 4
    assert (lines["Seccomp"], lines["NoNewPrivs"]) == ("2", "1")
    assert (int(lines["CapBnd"], 16), int(lines["CapEff"], 16)) == (0, 0)


def test_what_holds_a_pid_namespace_sees_no_more_than_a_container(pods: Pods) -> None:
    root = f"/proc/{infra_of(pods, pods.run(pod(options=namespaces(pid=api.POD))))}/root"
    with pytest.raises(OSError) as caught:
        os.open(f"{root}/proc/sys/kernel/core_pattern", os.O_WRONLY)
    assert caught.value.errno == errno.EROFS
    assert Path(f"{root}/proc/keys").read_bytes() == b""
    with pytest.raises(OSError) as caught:
        Path(f"{root}/file").touch()
    assert caught.value.errno == errno.EROFS
