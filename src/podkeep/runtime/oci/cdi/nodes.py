"""What the machine has of the nodes and paths that CDI devices name.

Owns: looking at them. Does not own: spec files (``spec.py``), the OCI configuration (``edits.py``). Called by
``container_executor.py``; blocks.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from podkeep.base.errors import FailedPrecondition
from podkeep.runtime.oci.cdi.edits import Prepared
from podkeep.runtime.oci.cdi.spec import NO_PERMISSIONS, DeviceNode, Edits, Mount
from podkeep.runtime.oci.mounts import OciMount, StagedMount

_KINDS = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"}


def sources(edits: Edits) -> tuple[str, ...]:
    """Return the host paths that are to be mounted, each once.

    :raises FailedPrecondition: naming one that does not exist.
    """
    paths = tuple(dict.fromkeys(mount.host_path for mount in edits.mounts if is_bind(mount)))
    for path in paths:
        if not os.path.exists(path):
            raise FailedPrecondition(f"{path}, which a CDI device needs mounted, does not exist on this machine")
    return paths


def is_bind(mount: Mount) -> bool:
    """Return whether a mount is of a host path, rather than of a file system of its own."""
    return mount.type in {"", "bind", "none"} or bool({"bind", "rbind"} & set(mount.options))


def prepare(edits: Edits, copies: Mapping[str, StagedMount]) -> Prepared:
    """Return edits with what is known of the machine.

    :param copies: host path to its copy for a user namespace (``Staging.stage_sources``).
    :raises FailedPrecondition: naming a device node that is not there, or is another.
    """
    return Prepared(
        edits=edits,
        devices=tuple(_device(node) for node in edits.device_nodes),
        mounts=tuple(_mount(mount, copies) for mount in edits.mounts),
    )


def _mount(mount: Mount, copies: Mapping[str, StagedMount]) -> OciMount:
    kind, source, options = mount.type, mount.host_path, list(mount.options)
    if is_bind(mount):
        kind, source = "bind", copies[source].source if source in copies else source
        if not {"bind", "rbind"} & set(options):
            options.insert(0, "rbind")
    return {"destination": mount.container_path, "type": kind, "source": source, "options": options}


def _device(node: DeviceNode) -> dict[str, Any]:
    path = node.host_path or node.path
    # mknod(1): u is an unbuffered character device, which is the same to the kernel.
    kind = "c" if node.type == "u" else node.type
    described = kind == "p" or (kind != "" and node.major != 0)
    try:
        status = os.lstat(path)
    except OSError as error:
        if not described:
            raise FailedPrecondition(f"CDI device node {path}: {error.strerror}") from error
        status = None
    result: dict[str, Any] = {"path": node.path, "type": kind, "major": node.major, "minor": node.minor}
    if status is not None:
        found = _KINDS.get(stat.S_IFMT(status.st_mode), "")
        if not described:
            if not found or kind not in {"", found}:
                raise FailedPrecondition(f"CDI device node {path} is {'another kind' if found else 'none'}")
            result |= {
                "type": found,
                "major": os.major(status.st_rdev),
                "minor": os.minor(status.st_rdev),
            }
        result["fileMode"] = stat.S_IMODE(status.st_mode)
    if node.file_mode is not None:
        result["fileMode"] = node.file_mode
    result |= {key: value for key, value in (("uid", node.uid), ("gid", node.gid)) if value is not None}
    access = "" if node.permissions == NO_PERMISSIONS else node.permissions or "rwm"
    return {**result, "access": access, "source": path if status is not None else ""}
