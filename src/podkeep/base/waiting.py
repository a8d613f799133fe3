"""The containers of a pod and what they wait for, as its agent notes it: ``<pod's directory>/containers.json``.

The agent writes it, and holds a lock (flock) on the directory for as long as it works on the pod; ``podkeep ps`` and
others read it, without importing the agent.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from podkeep.base import atomicfile

_NAME = "containers.json"
_LOCKS = Path("/proc/locks")


class WaitingReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a container does not run (v1.ContainerStateWaiting)."""

    reason: str
    message: str


class Containers(msgspec.Struct, frozen=True, kw_only=True):
    """The containers that a pod's manifest names, in its order, whether they have run or not.

    ``sidecars`` are those of ``init`` that run on beside the others. ``waiting`` has why one could not be
    started, by its name, which is empty for the sandbox. ``grace`` is the pod's
    terminationGracePeriodSeconds. ``followed``: its agent still works on the pod.
    """

    init: tuple[str, ...] = ()
    sidecars: tuple[str, ...] = ()
    main: tuple[str, ...] = ()
    waiting: Mapping[str, WaitingReason] = {}
    grace: int = 30
    followed: bool = False

    def first_wait(self, done: Collection[str]) -> str:
        """Return what containers wait for that have not run yet, in the kubelet's words.

        :param done: init containers that keep no other waiting any more.
        """
        return "ContainerCreating" if set(self.init) <= set(done) else "PodInitializing"


UNTOLD = Containers()
"""Of a pod that no agent of ours has told of."""


def tell(directory: Path, containers: Containers) -> None:
    """Note what a pod consists of, and which of it waits; nothing happens if its directory is gone.

    :raises OSError: if it cannot be written.
    """
    try:
        atomicfile.write(directory / _NAME, msgspec.json.encode(containers))
    except FileNotFoundError:
        return


def read(directory: Path) -> Containers:
    """Return the containers of a pod as its agent says, nothing if it said nothing.

    Nothing waits if none works on the pod any more.
    """
    try:
        told = msgspec.json.decode((directory / _NAME).read_bytes(), type=Containers)
        followed = _is_locked(directory)
    except (FileNotFoundError, NotADirectoryError, PermissionError, msgspec.DecodeError, UnicodeDecodeError):
        return UNTOLD
    return msgspec.structs.replace(told, followed=followed, waiting=told.waiting if followed else {})


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
