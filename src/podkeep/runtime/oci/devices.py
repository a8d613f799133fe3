"""Device nodes of the machine, in OCI's form, for the containers that ask for them.

Owns: looking at the nodes. Does not own: which of them a container gets (``oci/spec.py``) or CDI (``cdi.py``). Called
by ``container_executor.py``; nothing is opened, for opening a device does something.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.model.records import Device
from podkeep.runtime.oci.mounts import normal

_SKIPPED = frozenset({"pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev"})
"""Directories of /dev that hold no devices, or those of one mount of /dev only."""


def machine_devices(top: Path = Path("/dev")) -> list[dict[str, Any]]:
    """Return the machine's device nodes, without terminals and what lies on other mounts of /dev."""
    return list(_below(str(top), str(top)))


def requested(devices: tuple[Device, ...]) -> tuple[dict[str, Any], ...]:
    """Return the device nodes that a container asked for, with ``access`` and ``source``, the host's path, beside.

    A directory stands for all devices in it; a device that is named twice is the last one named.

    :raises InvalidArgument: naming what is missing or no device.
    """
    found: dict[str, dict[str, Any]] = {}
    for device in devices:
        for node in _nodes(device):
            found[node["path"]] = {**node, "access": device.permissions}
    return tuple(found.values())


def _nodes(device: Device) -> list[dict[str, Any]]:
    path = os.path.realpath(device.host_path)
    if not os.path.lexists(path):
        raise InvalidArgument(f"device {device.host_path} does not exist", hint="is its driver loaded?")
    target = normal(device.container_path)
    nodes = list(_below(path, target)) if os.path.isdir(path) else [node_at(path, target)]
    if not nodes:
        raise InvalidArgument(f"directory {device.host_path} has no devices in it")
    if nodes == [None]:
        raise InvalidArgument(f"device {device.host_path} is not a device node of this machine")
    return [node for node in nodes if node is not None]


def _below(top: str, target: str) -> Iterator[dict[str, Any]]:
    for directory, names, files in os.walk(top):
        names[:] = sorted(name for name in names if name not in _SKIPPED)
        for name in sorted(files):
            path = os.path.join(directory, name)
            if name == "console" or os.path.islink(path):
                continue
            node = node_at(path, posixpath.join(target, os.path.relpath(path, top)))
            if node is not None:
                yield node


def node_at(path: str, target: str) -> dict[str, Any] | None:
    """Return the device node at ``path`` as it is to be at ``target`` in a container; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    kind = "c" if stat.S_ISCHR(status.st_mode) else "b" if stat.S_ISBLK(status.st_mode) else ""
    if not kind:
        return None
    return {
        "path": target,
        "type": kind,
        "major": os.major(status.st_rdev),
        "minor": os.minor(status.st_rdev),
        "fileMode": stat.S_IMODE(status.st_mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "source": path,
    }
