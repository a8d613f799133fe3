"""The helper process itself: its protocol, its end, its imports, and which sysctls it writes."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.kernel.namespace import namespaces, nshelper

REQUEST = {"kinds": ["USER"], "uids": "0 65536 10\n", "gids": "0 65536 10\n", "hostname": None, "sysctls": {}}


@pytest.fixture
def raw(nothing_leaks: None) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """A helper process without its client, to send it what the client would refuse."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-I", "-S", "-c", namespaces._BOOT, namespaces._PACKAGE_ROOT, str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
    ours.settimeout(10)
    yield ours, process
    ours.close()
    assert process.wait(10) == 0


def ask(channel: socket.socket, **changes: object) -> dict[str, object]:
    channel.send(json.dumps({**REQUEST, **changes}).encode())
    reply, fds, _, _ = socket.recv_fds(channel, 65536, 4)
    for fd in fds:
        os.close(fd)
    answer: dict[str, object] = json.loads(reply)
    return answer


@pytest.mark.requirement("U29")
def test_what_the_kernel_does_not_map_fails_and_the_helper_goes_on(
    raw: tuple[socket.socket, subprocess.Popen[bytes]],
) -> None:
    channel, _ = raw
    refused = ask(channel, uids="0 65536 10\n5 200000 10\n")
    assert (refused["call"], refused["errno"]) == (
        f"write({str(refused['call']).partition('(')[2].partition(',')[0]}, '0 65536 10\\n5 200000 10\\n')",
        22,
    )
    assert "uid_map" in str(refused["call"])
    assert "gid_map" in str(ask(channel, gids="0 4294967295 1\n")["call"])
    assert ask(channel) == {"kinds": ["USER"]}


def test_container_root_must_be_mapped(raw: tuple[socket.socket, subprocess.Popen[bytes]]) -> None:
    assert ask(raw[0], uids="1 65536 10\n")["call"] == "setresuid(-1, 0, -1)"
    assert ask(raw[0], sysctls={"vm.swappiness": "1"})["message"] == (
        "sysctl 'vm.swappiness' is not namespaced: it would change the whole machine"
    )


def test_interrupts_are_the_owners_business(raw: tuple[socket.socket, subprocess.Popen[bytes]]) -> None:
    channel, process = raw
    assert ask(channel) == {"kinds": ["USER"]}
    process.send_signal(signal.SIGINT)
    assert ask(channel) == {"kinds": ["USER"]}


@pytest.mark.slow
def test_the_helper_ends_when_its_owner_is_killed() -> None:
    """The owner is killed with SIGKILL; its helper sees the end of the socket."""
    program = Path(__file__).with_name("programs") / "killed_owner.py"
    owner = subprocess.run([sys.executable, program], stdout=subprocess.PIPE, check=False)
    assert owner.returncode == -signal.SIGKILL
    try:
        pidfd = os.pidfd_open(int(owner.stdout))
    except ProcessLookupError:
        return
    ready = select.select([pidfd], [], [], 10)[0]
    os.close(pidfd)
    assert ready == [pidfd]


def test_the_helper_imports_the_standard_library_only() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from podkeep.kernel.namespace import nshelper\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))\n"
        "print(*sorted(name for name in sys.modules if name.startswith('podkeep')))\n"
        "print(*sorted({'asyncio', 'dataclasses', 'inspect', 'logging', 'pathlib', 'subprocess'} & set(sys.modules)))\n"
    )
    argv = [sys.executable, "-I", "-S", "-c", program, namespaces._PACKAGE_ROOT]
    third_party, ours, large = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert set(third_party.split()) <= {"__main__", "podkeep", "_distutils_hack"}
    assert ours.split() == [
        "podkeep",
        "podkeep.base",
        "podkeep.base.errors",
        "podkeep.kernel",
        "podkeep.kernel.libc",
        "podkeep.kernel.mount",
        "podkeep.kernel.mount.mounts",
        "podkeep.kernel.namespace",
        "podkeep.kernel.namespace.nshelper",
    ]
    assert large == "", "what it has in memory, it has for itself alone"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("net.ipv4.tcp_syncookies", "net/ipv4/tcp_syncookies"),
        ("net/ipv4/tcp_syncookies", "net/ipv4/tcp_syncookies"),
        ("net/ipv4/conf/eth0.7/rp_filter", "net/ipv4/conf/eth0.7/rp_filter"),
        ("net.ipv4.conf.eth0/7.rp_filter", "net/ipv4/conf/eth0.7/rp_filter"),
        ("kernel.shm_rmid_forced", "kernel/shm_rmid_forced"),
        ("kernel.msgmnb", "kernel/msgmnb"),
        ("kernel.sem", "kernel/sem"),
        ("fs.mqueue.queues_max", "fs/mqueue/queues_max"),
    ],
)
def test_sysctls_of_a_pod(name: str, path: str) -> None:
    assert nshelper.sysctl_path(name, "1", ["NET", "IPC"]) == (f"/proc/sys/{path}", "1")


@pytest.mark.parametrize(
    "name",
    [
        "net",
        "",
        ".",
        "net..x",
        "net.",
        "net/../kernel/pid_max",
        "net.a\0b",
        "kernel.pid_max",
        "fs.file-max",
        "kernel.semx",
        "netx.a",
    ],
)
def test_other_sysctls_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="is not"):
        nshelper.sysctl_path(name, "1", ["NET", "IPC"])
