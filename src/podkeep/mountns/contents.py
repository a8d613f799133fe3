"""Who and what is in a mount namespace: processes, and mounts that the host does not have.

Called by ``lifecycle``, which must not take a namespace from under anybody, and shows both in its status.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from pathlib import Path

from podkeep.kernel import mountinfo, namespaces, procfs
from podkeep.kernel.mountinfo import MountEntry
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


def mounts_in(namespace: int) -> list[MountEntry]:
    """Return the mounts in the mount namespace behind the descriptor ``namespace``.

    :raises KernelCallError: if it cannot be entered.
    """
    return namespaces.run_in_mntns(namespace, mountinfo.read)


def container_mounts(namespace: int, inherited: Iterable[Key] = ()) -> list[MountEntry]:
    """Return the mounts in ``namespace``, a descriptor, that the calling thread's mount namespace does not have.

    :param inherited: mounts that it was born with: the host's, even if the host has unmounted them since.
    """
    inside = mounts_in(namespace)
    extra = beyond(inside, {*keys(mountinfo.read()), *inherited})
    if not extra:
        return []
    # What the host unmounted between the two looks is in one table only.
    still = keys(mounts_in(namespace))
    return [entry for entry in extra if key(entry) in still]


def beyond(inside: Iterable[MountEntry], known: Container[Key]) -> list[MountEntry]:
    """Return the mounts of ``inside`` that are not among ``known``. Pure."""
    return [entry for entry in inside if key(entry) not in known]


def keys(table: Iterable[MountEntry]) -> set[Key]:
    """Return what tells the mounts of ``table`` apart. Pure."""
    return set(map(key, table))


def key(entry: MountEntry) -> Key:
    """Return what tells a mount apart in every namespace; IDs differ. Pure."""
    return entry.device, entry.root, entry.mount_point


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


def own_propagation() -> str:
    """Return how ``/`` of the calling thread propagates; it costs less than reading all mounts."""
    return propagation([mountinfo.holding("/")])
