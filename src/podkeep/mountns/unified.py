"""The second, version 2 hierarchy of a machine with hybrid cgroups, out of an OCI runtime's sight.

crun refuses to work while such a hierarchy has controllers. Behind hidden mounts it can be detached; in the host's
mount namespace it stays, because it is the host's. Called by the runtime's entry point after it has joined.
"""

from __future__ import annotations

from pathlib import Path

from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.tables import read_text

UNIFIED = Path("/sys/fs/cgroup/unified")
"""Where a hybrid machine mounts its version 2 hierarchy."""


def detach() -> None:
    """Unmount the version 2 hierarchy of a hybrid machine, if it has controllers.

    :raises KernelCallError: if the kernel refuses.
    """
    hybrid = any(entry.mount_point == str(UNIFIED) and entry.fs_type == "cgroup2" for entry in mountinfo.read())
    if hybrid and read_text(UNIFIED / "cgroup.controllers").strip():
        mounts.unmount(UNIFIED, lazy=True)
