"""What the containers of a pod wait for, as its agent notes it for others: ``<pod's directory>/waiting.json``.

The agent writes it, and holds a lock (flock) on the directory for as long as it works on the pod; ``podkeep ps`` reads
it, without importing the agent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from podkeep.base import atomicfile

_NAME = "waiting.json"
_LOCKS = Path("/proc/locks")


class WaitingReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a container does not run (v1.ContainerStateWaiting)."""

    reason: str
    message: str


def tell(directory: Path, waiting: Mapping[str, WaitingReason]) -> None:
    """Note which containers of a pod wait, and why; nothing happens if its directory is gone.

    :param waiting: by the container's name, which is empty for the sandbox.
    :raises OSError: if it cannot be written.
    """
    path = directory / _NAME
    try:
        if waiting:
            atomicfile.write(path, msgspec.json.encode(waiting))
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        return


def read(directory: Path) -> Mapping[str, WaitingReason]:
    """Return which containers of a pod wait, and why, as its agent says; nothing if none works on it any more."""
    try:
        told = (directory / _NAME).read_bytes()
        waiting = msgspec.json.decode(told, type=dict[str, WaitingReason])
        return waiting if _is_locked(directory) else {}
    except (FileNotFoundError, NotADirectoryError, PermissionError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _is_locked(directory: Path) -> bool:
    """Say whether some process holds the lock, without touching it (proc_locks(5))."""
    info = directory.stat()
    device, inode = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}", str(info.st_ino)
    for line in _LOCKS.read_text().splitlines():
        place = next((word for word in line.split() if word.count(":") == 2), "")
        of, _, number = place.rpartition(":")
        # Of subvolumes stat(2) gives other devices than the kernel has for their file system, both without a driver.
        if number == inode and (of == device or (of.startswith("00:") and device.startswith("00:"))):
            return True
    return False
