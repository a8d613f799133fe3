"""Device nodes of the machine, in OCI's form, for the containers that ask for them.

Owns: looking at the nodes. Does not own: which of them a container gets (``oci/spec.py``) or CDI (``cdi.py``). Called
by ``container_executor.py``; nothing is opened, for opening a device does something.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from pathlib import Path
from typing import Any

from podkeep.base.errors import InvalidArgument, ResourceExhausted
from podkeep.kernel.files import openat
from podkeep.runtime.model.records import Device
from podkeep.runtime.oci.mounts import normal

_SKIPPED = frozenset({"pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev"})
"""Directories of /dev that hold no devices, or those of one mount of /dev only."""
_MOST_ENTRIES = 1 << 16
"""Of a directory of devices, with all below it. A /dev has some thousands; of / a thread would read for minutes."""


def machine_devices(top: Path = Path("/dev")) -> list[dict[str, Any]]:
    """Return the machine's device nodes, without terminals and what lies on other mounts of /dev."""
    with openat.closing(openat.open_directory(top)) as directory:
        return _below(directory, str(top), str(top))


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
    target = normal(device.container_path)
    try:
        with openat.closing(openat.open_named(device.host_path)) as fd:
            path, status = openat.path_of(fd), os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                with openat.closing(openat.reopen(fd, os.O_RDONLY | os.O_DIRECTORY)) as directory:
                    nodes = _below(directory, path, target, most=_MOST_ENTRIES)
            else:
                node = _node(status, path, target)
                if node is None:
                    raise InvalidArgument(f"device {device.host_path} is not a device node of this machine")
                nodes = [node]
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            raise InvalidArgument(f"device {device.host_path} does not exist", hint="is its driver loaded?") from error
        raise InvalidArgument(f"device {device.host_path}: {error.strerror}") from error
    except ResourceExhausted as error:
        raise InvalidArgument(
            f"device {device.host_path} is a directory with more in it than one of devices has", hint="name the devices"
        ) from error
    if not nodes:
        raise InvalidArgument(f"directory {device.host_path} has no devices in it")
    return nodes


def _below(directory: int, top: str, target: str, *, most: int = openat.MAX_ENTRIES) -> list[dict[str, Any]]:
    """Return the device nodes below a directory, whose path is ``top``, as they are to be below ``target``."""
    nodes = []
    for found in openat.walk(directory, max_entries=most, one_mount=False, tolerant=True, passed=_SKIPPED):
        node = _node(found.status, posixpath.join(top, found.path), posixpath.join(target, found.path))
        # The OCI runtime makes /dev/console itself where a container has a terminal.
        if node is not None and found.name != "console":
            nodes.append(node)
    return sorted(nodes, key=lambda node: str(node["path"]))


def _node(status: os.stat_result, path: str, target: str) -> dict[str, Any] | None:
    """Return the device node at ``path`` as it is to be at ``target`` in a container; None if it is not one."""
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
