"""Mount namespaces of a node's daemons, for tests that tear them apart: what is pinned, and stand-ins for a kubelet.

A stand-in is a copy of sleep(1) with the name kubelet. It stands in for where a kubelet is, and for nothing it does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.daemon import Daemon
from support.waiting import wait_for

SIBLING = ("unshare", "--mount", "--propagation", "slave", "sh", "-c", 'mount --make-rshared / && exec "$@"', "sh")
"""Runs a program in a namespace that is made as the container mount namespace is, but is another one."""


def namespace_of(pid: int | str = "self") -> int:
    """Return the inode of a process's mount namespace."""
    return os.stat(f"/proc/{pid}/ns/mnt").st_ino


def pin_of(daemon: Daemon) -> Path:
    """Return where a daemon's mount namespace is pinned by its configuration."""
    return daemon.base / "mountns/mnt"


def pinned(daemon: Daemon) -> int:
    """Return the inode of what is pinned there, as ``podkeep`` does not: by entering it."""
    entered = ["nsenter", f"--mount={pin_of(daemon)}", "stat", "-L", "-c", "%i", "/proc/self/ns/mnt"]
    return int(subprocess.run(entered, check=True, capture_output=True, text=True).stdout)


@contextmanager
def running(*command: str | Path, name: str) -> Iterator[int]:
    """Run a command that turns into the program ``name`` without forking, and yield its process ID."""
    process = subprocess.Popen([str(word) for word in command])
    try:
        wait_for(lambda: comm(process.pid) == name, f"{name} to run")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def comm(pid: int) -> str:
    """Return the name of a process, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@contextmanager
def kubelet(base: Path, *wrap: str) -> Iterator[int]:
    """A stand-in for a kubelet, started by the command ``wrap``; yields its process ID."""
    program = base / "kubelet"
    if not program.exists():
        shutil.copy("/bin/sleep", program)
    with running(*wrap, program, "100000", name="kubelet") as pid:
        yield pid


def enter(daemon: Daemon) -> tuple[str, ...]:
    """Return the command that puts a program into a daemon's pinned namespace, as a kubelet's unit does it."""
    return ("nsenter", f"--mount={pin_of(daemon)}")
