"""The mounts of a container, in OCI's form. Pure.

Owns: which mounts there are, their options, and their order. Does not own: what lies behind a source (``staging.py``).
Sources of the rules: OCI runtime-spec (config.md, Mounts); CRI's Mount. Called by ``spec.py``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from podkeep.runtime.records import ContainerConfig, Mount, NamespaceMode, Propagation

_PROPAGATION = {
    Propagation.PRIVATE: "rprivate",
    Propagation.HOST_TO_CONTAINER: "rslave",
    Propagation.BIDIRECTIONAL: "rshared",
}


@dataclass(frozen=True, kw_only=True)
class PodFiles:
    """Host paths of what every container of a pod gets; an empty one is left out."""

    hosts: str = ""
    hostname: str = ""
    resolv_conf: str = ""
    shm: str = ""


POD_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
"""Where a container finds its pod's files."""


@dataclass(frozen=True, kw_only=True)
class MountInput:
    """All that the list of mounts is made of; the fields are those of ``SpecInput``."""

    container: ContainerConfig
    files: PodFiles
    own_ipc: bool
    """Whether the container is in another IPC namespace than the machine."""
    has_mqueue: bool = True
    staged: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    image_volume_options: tuple[str, ...] = ()
    volumes: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    """Path in the container to the machine's path of a device node that is mounted, because it cannot be made."""


def build(given: MountInput) -> list[dict[str, Any]]:
    """Return the mounts in the order in which they are to be made.

    A mount of the request takes the place of the runtime's own at the same path, and one at /dev of everything below,
    which would otherwise be mounted on the machine's /dev.
    """

    def real(path: str) -> str:
        return given.targets.get(normal(path), normal(path))

    taken = {real(mount.container_path) for mount in given.container.mounts} | {real(path) for path in given.volumes}
    own = [
        *_virtual_mounts(given),
        *({**item, "destination": real(item["destination"])} for item in _pod_mounts(given)),
    ]
    own = [item for item in own if not _is_taken(item["destination"], taken)]
    binds = [bind(target, source, "rprivate", "nosuid", "noexec") for target, source in given.devices.items()]
    binds += [bind(real(target), source, "rprivate", "rw") for target, source in given.volumes.items()]
    for number, mount in enumerate(given.container.mounts):
        for below, source in given.staged.get(number, {"": mount.host_path}).items():
            # What lies below a read-only mount is writable, unless the request says otherwise (CRI: Mount).
            access = "ro" if mount.readonly and (not below or mount.recursive_read_only) else "rw"
            target = posixpath.join(real(mount.container_path), below).rstrip("/")
            options = given.image_volume_options if mount.image else ()
            binds.append(bind(target, source, _PROPAGATION[mount.propagation], access, *options))
    virtual = [item for item in own if item["type"] != "bind"]
    binds = [item for item in own if item["type"] == "bind"] + binds
    # Parents first: a volume on /etc must hide neither the pod's own files nor another volume.
    return virtual + sorted(binds, key=lambda item: str(item["destination"]).count("/"))


def normal(path: str) -> str:
    """Return a path of a container, from its root, without ``.``, ``..`` and doubled slashes."""
    return "/" + posixpath.normpath(f"/{path}").strip("/")


def bind(target: str, source: str, *options: str) -> dict[str, Any]:
    """Return a bind mount of everything at ``source``."""
    return {"destination": target, "type": "bind", "source": source, "options": ["rbind", *options]}


def rootfs_propagation(mounts: tuple[Mount, ...]) -> str:
    """Return the propagation of the container's root, which must let through what one of its mounts passes on."""
    modes = {mount.propagation for mount in mounts}
    if Propagation.BIDIRECTIONAL in modes:
        return "rshared"
    return "rslave" if Propagation.HOST_TO_CONTAINER in modes else "rprivate"


def _is_taken(target: str, taken: set[str]) -> bool:
    return target in taken or ("/dev" in taken and target.startswith("/dev/"))


def _virtual_mounts(given: MountInput) -> list[dict[str, Any]]:
    privileged = given.container.security.privileged
    access = "rw" if privileged else "ro"
    result = [
        _virtual("/proc", "proc", "nosuid", "noexec", "nodev"),
        _virtual("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        _virtual("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
        _virtual("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        _virtual("/sys", "sysfs", "nosuid", "noexec", "nodev", access),
        _virtual("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev", "relatime", access),
    ]
    if not given.own_ipc:
        # The machine's message queues; a file system of the container's own would show those of another namespace.
        result[3:4] = [bind("/dev/mqueue", "/dev/mqueue", "rprivate")] if given.has_mqueue else []
    return result


def _pod_mounts(given: MountInput) -> list[dict[str, Any]]:
    access = "ro" if given.container.security.readonly_rootfs else "rw"
    sources = (given.files.hosts, given.files.hostname, given.files.resolv_conf)
    generated = zip(POD_FILES, sources, strict=True)
    return [_shm(given), *(bind(target, source, "rprivate", access) for target, source in generated if source)]


def _shm(given: MountInput) -> dict[str, Any]:
    if given.container.namespaces.ipc is NamespaceMode.NODE:
        return bind("/dev/shm", "/dev/shm", "rprivate")
    if given.files.shm:
        # Its root belongs to the pod's root already: it was mounted so, and files in it have the IDs of their makers.
        return bind("/dev/shm", given.files.shm, "rprivate", "nosuid", "noexec", "nodev")
    return _virtual("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k")


def _virtual(target: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": kind, "options": list(options)}
