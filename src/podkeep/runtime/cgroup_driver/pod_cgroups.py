"""The cgroup of a pod sandbox, made and removed by the driver that its parent belongs to.

Owns: which driver does it. Does not own: paths (``slices.py``) or the cgroups of containers, which the OCI runtime
makes. Everything blocks.
"""

from __future__ import annotations

import errno

from podkeep.base.errors import KernelCallError, ResourceExhausted
from podkeep.kernel.cgroup import systemd
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.cgroup_driver import slices

CRUN_SUBGROUP = "container"
"""What crun calls it unless the annotation ``run.oci.systemd.subgroup`` says otherwise (crun(1))."""


def create(cgroups: Cgroups, parent: str, sandbox: str, *, classed: bool = False) -> None:
    """Make a sandbox's cgroup below ``parent``.

    :param classed: it may get class resources, before there is a container.
    :raises PodkeepError: if the kernel, or systemd, refuses.
    """
    if systemd.is_slice(parent):
        # Without accounting systemd leaves the files of block I/O out of the slice, and classes have nothing to write
        # to.
        start = systemd.start_accounted_slice if classed else systemd.start_slice
        start(slices.sandbox_slice(parent, sandbox))
    else:
        try:
            cgroups.create(slices.sandbox_path(parent, sandbox))
        except KernelCallError as error:
            if error.errno != errno.ENOMEM:
                raise
            # Without the sandbox's name: a client tries again with a new one, and tells each failure that reads
            # otherwise.
            what = f"the memory limit of {parent} leaves no room for the cgroup of a sandbox"
            raise ResourceExhausted(what, hint="give the pod more memory") from error


def remove(cgroups: Cgroups, parent: str, sandbox: str) -> None:
    """Remove a sandbox's cgroup, whose processes are dead, and those below it; a missing one is no error.

    :raises PodkeepError: if the kernel, or systemd, refuses.
    """
    path = slices.sandbox_path(parent, sandbox)
    if systemd.is_slice(parent) and cgroups.exists(path):
        systemd.stop_slice(slices.sandbox_slice(parent, sandbox))
    cgroups.remove(path)


def create_parent(cgroups: Cgroups, parent: str) -> None:
    """Make what all sandboxes of the default parent share.

    :raises PodkeepError: if the kernel, or systemd, refuses.
    """
    if systemd.is_slice(parent):
        systemd.start_slice(parent)
    else:
        cgroups.create(parent)


def remove_parent(cgroups: Cgroups, parent: str) -> None:
    """Remove the default parent if nothing is in it.

    :raises PodkeepError: if the kernel, or systemd, refuses.
    """
    if not systemd.is_slice(parent):
        cgroups.remove_empty(parent)
    elif not cgroups.processes(systemd.expand(parent), recursive=True):
        systemd.stop_slice(parent)


def limited(cgroups: Cgroups, container: str) -> str:
    """Return the cgroup that has a container's limits and processes: its own, or the one that crun makes below a scope.

    crun with systemd leaves the scope without limits and works in ``<scope>/container``, which systemd does not touch.
    """
    below = f"{container}/{CRUN_SUBGROUP}"
    return below if container.endswith(".scope") and cgroups.exists(below) else container
