"""Looks whether a process in sight has its working directory outside of this container, until it is told to end.

looking_out.py DIRECTORY

Makes ``ready`` in the directory when it begins, ``found`` if a process has, and ends once there is ``stop``.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

directory = Path(sys.argv[1])


def is_outside(pid: str) -> bool:
    """Say whether a working directory is on a mount that is not in this container."""
    with suppress(OSError):  # the kernel does not say, or the process is gone
        fd = os.open(f"/proc/{pid}/cwd", os.O_PATH)
        try:
            mount = Path(f"/proc/self/fdinfo/{fd}").read_text().split("mnt_id:")[1].split()[0]
        finally:
            os.close(fd)
        return mount not in {line.split()[0] for line in Path("/proc/self/mountinfo").read_text().splitlines()} | others
    return False


def tables() -> set[str]:
    """Return the numbers of the mounts of the containers in sight."""
    found = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if pid != "1":
            found |= {line.split()[0] for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()}
    return found


others = tables()
(directory / "ready").touch()
while not (directory / "stop").exists():
    for _ in range(100):
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            if pid != "1" and is_outside(pid):
                (directory / "found").touch()
