"""Who and what is in a mount namespace: processes, and mounts that the host does not have.

Called by ``lifecycle``, which must not take a namespace from under anybody, and shows both in its status.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from podkeep.kernel import mountinfo, namespaces
from podkeep.kernel.mountinfo import MountEntry

Key = tuple[str, str, str]


def processes(inode: int) -> list[tuple[int, str]]:
    """Return process ID and name of the processes in the mount namespace ``inode``, without the calling process."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if os.stat(f"/proc/{name}/ns/mnt").st_ino == inode:
                found.append((int(name), Path(f"/proc/{name}/comm").read_text().strip()))
        except OSError:
            # It ended, or has no mounts any more because it is about to.
            continue
    return sorted(found)


def mounts_in(namespace: int) -> list[MountEntry]:
    """Return the mounts in the mount namespace behind the descriptor ``namespace``.

    :raises KernelCallError: if it cannot be entered.
    """
    return namespaces.run_in_mntns(namespace, mountinfo.read)


def container_mounts(namespace: int) -> list[MountEntry]:
    """Return the mounts in ``namespace``, a descriptor, that the calling thread's mount namespace does not have.

    They are compared by device, root and mount point (proc_pid_mountinfo(5)): IDs differ between namespaces.
    """
    inside = mounts_in(namespace)
    extra = beyond(inside, mountinfo.read())
    if not extra:
        return []
    # What the host unmounted between the two looks is in one table only.
    still = set(map(_key, mounts_in(namespace)))
    return [entry for entry in extra if _key(entry) in still]


def beyond(inside: Iterable[MountEntry], host: Iterable[MountEntry]) -> list[MountEntry]:
    """Return the mounts of ``inside`` that ``host`` has not. Pure."""
    known = set(map(_key, host))
    return [entry for entry in inside if _key(entry) not in known]


def propagation(table: Iterable[MountEntry]) -> str:
    """Return how ``/`` propagates, in the words of findmnt(8): ``shared,slave``, ``private``, … Pure."""
    root = next((entry for entry in table if entry.mount_point == "/"), None)
    kinds = {field.partition(":")[0] for field in root.propagation} if root is not None else set()
    words = ["shared" if "shared" in kinds else "private"]
    words += ["slave"] if "master" in kinds else []
    words += ["unbindable"] if "unbindable" in kinds else []
    return ",".join(words)


def _key(entry: MountEntry) -> Key:
    return entry.device, entry.root, entry.mount_point
