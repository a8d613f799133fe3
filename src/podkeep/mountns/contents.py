"""What is in a mount namespace: processes, mounts that the host does not have, and how its ``/`` propagates.

Called by ``lifecycle``, which must not take a namespace from under anybody, and shows all three in its status.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from podkeep.kernel.mount import mountinfo
from podkeep.kernel.mount.mountinfo import MountEntry
from podkeep.kernel.namespace import namespaces
from podkeep.kernel.process import procfs
from podkeep.mountns import unified
from podkeep.mountns.record import Key


def processes(inode: int) -> list[tuple[int, str]]:
    """Return process ID and name of the processes in the mount namespace ``inode``, without the calling process."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if os.stat(f"/proc/{name}/ns/mnt").st_ino == inode:
                found.append((int(name), procfs.name(Path("/proc", name))))
        except OSError:
            # It ended, or has no mounts any more because it is about to.
            continue
    return sorted(found)


def container_mounts(namespace: int, inherited: Iterable[Key] = ()) -> list[Key]:
    """Return the mounts in ``namespace``, a descriptor, that the calling thread's mount namespace does not have.

    What covers the second cgroup hierarchy of a hybrid machine is no container's.

    :param inherited: mounts that it was born with: the host's, even if the host has unmounted them since.
    :raises KernelCallError: if the namespace cannot be entered.
    """
    inside = namespaces.run_in_mntns(namespace, keys)
    known = {*keys(), *inherited}
    found = [key for key in inside if key not in known and key[2] != str(unified.UNIFIED)]
    # What the host unmounted between the two looks is in one table only.
    still = set(namespaces.run_in_mntns(namespace, keys) if found else ())
    return [key for key in found if key in still]


def keys() -> list[Key]:
    """Return what tells the mounts that the calling thread sees apart in every namespace; IDs differ."""
    return [(entry.device, entry.root, entry.mount_point) for entry in mountinfo.read()]


def propagation(table: Iterable[MountEntry]) -> str:
    """Return how ``/`` propagates, in the words of findmnt(8): ``shared,slave``, ``private``, … Pure."""
    root = next((entry for entry in table if entry.mount_point == "/"), None)
    kinds = {field.partition(":")[0] for field in root.propagation} if root is not None else set()
    words = ["shared" if "shared" in kinds else "private"]
    words += ["slave"] if "master" in kinds else []
    words += ["unbindable"] if "unbindable" in kinds else []
    return ",".join(words)


def is_shared(propagation: str) -> bool:
    """Return whether what is mounted below a ``/`` that propagates so is seen by others. Pure."""
    return "shared" in propagation.split(",")


def follows_host(propagation: str) -> bool:
    """Return whether what the host mounts appears below a ``/`` that propagates so. Pure."""
    return "slave" in propagation.split(",")


def own_propagation() -> str:
    """Return how ``/`` of the calling thread propagates; it costs less than reading all mounts."""
    return propagation([mountinfo.holding("/")])
