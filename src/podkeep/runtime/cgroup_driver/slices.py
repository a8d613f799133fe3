"""Where a pod's cgroups are, with the cgroupfs and with the systemd driver. Pure.

The form of a pod's parent says which driver made it: a path (``/kubepods/pod1``) is cgroupfs's, the name of a slice
(``kubepods-pod1.slice``) systemd's. A slice lies where the dashes of its name say (systemd.slice(5)):

    cgroupfs   /kubepods/pod1                      /pod-<sandbox>              /<container>
    systemd    /kubepods.slice/kubepods-pod1.slice /kubepods-pod1-<sandbox>.slice /podkeep-<container>.scope

The scope is made by the OCI runtime, told by ``linux.cgroupsPath`` as ``slice:prefix:name``.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.cgroup.systemd import SUFFIX, expand, is_slice

SCOPE_PREFIX = "podkeep"
SANDBOX_PREFIX = "pod-"
MAX_UNIT_NAME = 255
_NAME = re.compile(r"[A-Za-z0-9:_.\\]+(-[A-Za-z0-9:_.\\]+)*\.slice")


class CgroupName(FrozenStruct, kw_only=True):
    """A cgroup: its path below every hierarchy's root, and how the OCI runtime is told of it."""

    path: str
    oci: str


def check_slice(field: str, name: str) -> str:
    """Return the name of a slice, given as such or by its whole path, as the kubelet gives it.

    :raises InvalidArgument: if it is not one, or the path is not where systemd has a slice of that name.
    """
    base = PurePosixPath(name).name
    if len(base) > MAX_UNIT_NAME or not _NAME.fullmatch(base):
        raise InvalidArgument(f"{field}: {name[:128]!r} is not the name of a slice", hint="like kubepods-pod1.slice")
    if name not in {base, expand(base)}:
        raise InvalidArgument(f"{field}: {name[:128]!r} is not where systemd has {base}", hint=f"it is {expand(base)}")
    return base


def sandbox_slice(parent: str, sandbox: str) -> str:
    return f"{parent.removesuffix(SUFFIX)}-{sandbox}{SUFFIX}"


def sandbox_path(parent: str, sandbox: str) -> str:
    if is_slice(parent):
        return expand(sandbox_slice(parent, sandbox))
    return f"{parent.rstrip('/')}/{SANDBOX_PREFIX}{sandbox}"


def container_cgroup(parent: str, sandbox: str, container: str) -> CgroupName:
    if is_slice(parent):
        return _scope(sandbox_slice(parent, sandbox), container)
    path = f"{sandbox_path(parent, sandbox)}/{container}"
    return CgroupName(path=path, oci=path)


def infra_cgroup(parent: str, sandbox: str) -> CgroupName:
    """Return the place of the process that holds a sandbox's PID namespace: beside its containers, never above them.

    A cgroup of version 2 with children that are limited has no processes of its own (cgroup-v2.rst).
    """
    if is_slice(parent):
        return _scope(sandbox_slice(parent, sandbox), sandbox)
    path = f"{sandbox_path(parent, sandbox)}/infra"
    return CgroupName(path=path, oci=path)


def direct_cgroup(parent: str, container: str) -> CgroupName:
    """Return the place of a container that belongs to no sandbox."""
    if is_slice(parent):
        return _scope(parent, container)
    path = f"{parent.rstrip('/')}/{container}"
    return CgroupName(path=path, oci=path)


def _scope(unit: str, name: str) -> CgroupName:
    return CgroupName(path=f"{expand(unit)}/{SCOPE_PREFIX}-{name}.scope", oci=f"{unit}:{SCOPE_PREFIX}:{name}")


def parents(parent: str) -> tuple[str, ...]:
    """Return the cgroups that a sandbox needs above its own and that the runtime makes, outermost first.

    Slices are not among them: systemd makes a slice when something is put into it.
    """
    if is_slice(parent):
        return ()
    path = PurePosixPath(parent)
    return tuple(str(item) for item in (*reversed(path.parents), path) if str(item) != "/")
