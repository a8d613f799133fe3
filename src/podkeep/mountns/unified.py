"""The second, version 2 hierarchy of a machine with hybrid cgroups, out of an OCI runtime's sight.

crun refuses to work while such a hierarchy has controllers. Behind hidden mounts it can be detached; in the host's
mount namespace it stays, because it is the host's. Its directory, which is left of it, is covered: crun 1.8 takes it
for a hierarchy as before, and would leave a directory in the host's file system for every pod and container.
Called by the runtime's entry point after it has joined.
"""

from __future__ import annotations

from contextlib import suppress

from podkeep.kernel.cgroup import cgroups
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.tables import read_text

UNIFIED = cgroups.DEFAULT_ROOT / cgroups.SECOND
"""Where a hybrid machine mounts its version 2 hierarchy."""


def detach() -> None:
    """Unmount the version 2 hierarchy of a hybrid machine, if it has controllers, and cover where it was.

    What covers it is a hierarchy of version 1: cgroups that are made there are those that are made there anyway, and
    are removed with them.

    :raises KernelCallError: if the kernel refuses.
    :raises FailedPrecondition: if no other hierarchy is mounted.
    """
    hybrid = any(entry.mount_point == str(UNIFIED) and entry.fs_type == "cgroup2" for entry in mountinfo.read())
    # Mounted by the host later, it is beneath what covers it here, which has no such file.
    with suppress(FileNotFoundError):
        if hybrid and read_text(UNIFIED / "cgroup.controllers").strip():
            mounts.unmount(UNIFIED, lazy=True)
    # Also one that was detached before: by an older runtime in this namespace, or on the host.
    if UNIFIED.is_dir() and not mountinfo.is_mount_point(UNIFIED):
        layout = cgroups.detect(UNIFIED.parent)
        if layout.version == 1:  # otherwise it is a cgroup of this name
            mounts.bind(layout.hierarchies[-1], UNIFIED)
