"""OCI configurations: one base, and edits of it that are applied in order. Pure.

Owns: what the configurations of containers, of the infra process of a pod and of the probe of a handler have in common.
Does not own: what only containers have (``spec.py``), what CDI devices and classes add to that (``cdi/edits.py``,
``class_resources``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, TypeAlias

from podkeep.kernel.namespace.idmap import IdMap, IdMapping
from podkeep.runtime.oci.mounts import OciMount
from podkeep.runtime.oci.selinux import Labels

OCI_VERSION = "1.0.2"
"""The newest version that every supported runtime reads (Debian's crun 1.8.1 refuses newer ones)."""

Config: TypeAlias = dict[str, Any]
"""The content of ``config.json`` (OCI runtime-spec, config.md)."""
Edit: TypeAlias = Callable[[Config], Config]
"""Returns a new configuration and leaves the one that it gets as it is."""


def compose(config: Config, *edits: Edit) -> Config:
    """Return a configuration with edits applied in order: each one sees, and may replace, what those before it made.

    :raises PodkeepError: what an edit raises.
    """
    return reduce(lambda made, edit: edit(made), edits, config)


def base(*args: str, rootfs: str, cgroup: str) -> Config:
    """Return what runs ``args`` as root without capabilities, devices, mounts and namespaces of its own.

    :param rootfs: host path.
    :param cgroup: in the form of the cgroup driver (``slices.CgroupName.oci``).
    """
    return {
        "ociVersion": OCI_VERSION,
        "process": {"user": {"uid": 0, "gid": 0}, "args": list(args), "cwd": "/", "capabilities": {}},
        "root": {"path": rootfs},
        "mounts": [],
        "linux": {"cgroupsPath": cgroup, "resources": {"devices": [{"allow": False, "access": "rwm"}]}},
    }


def only_program(source: str, *args: str, rootfs: str, cgroup: str) -> Config:
    """Return what runs a static program in an otherwise empty root file system.

    :param source: host path of the program, which is mounted at the first of ``args``.
    """
    small, own = ["nosuid", "noexec", "mode=755", "size=64k"], ["bind", "ro", "nosuid", "nodev"]
    return compose(
        base(*args, rootfs=rootfs, cgroup=cgroup),
        mounting(
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": small},
            {"destination": args[0], "type": "bind", "source": source, "options": own},
        ),
    )


def setting(section: str, /, **fields: Any) -> Edit:
    """Set fields of a section such as ``process``, ``linux`` or ``annotations``; fields that are None are not set."""
    given = {name: value for name, value in fields.items() if value is not None}
    return lambda config: {**config, section: {**config.get(section, {}), **given}} if given else config


def mounting(*mounts: OciMount) -> Edit:
    """Add mounts in OCI's form after those that are there."""
    return lambda config: {**config, "mounts": [*config["mounts"], *mounts]}


def joining(namespaces: Mapping[str, str]) -> Edit:
    """Set the namespaces: OCI type to the path of one to join, or to an empty path for a new one."""
    listed = [{"type": kind, "path": path} if path else {"type": kind} for kind, path in namespaces.items()]
    return setting("linux", namespaces=listed)


def mapped(idmap: IdMap | None) -> Edit:
    """Set the mappings of the user namespace; None: there is none."""
    if idmap is None:
        return setting("linux")
    return setting("linux", uidMappings=oci_mappings(idmap.uids), gidMappings=oci_mappings(idmap.gids))


def labelled(labels: Labels) -> Edit:
    """Set the SELinux labels, those that are not empty."""
    return lambda config: compose(
        config,
        setting("process", selinuxLabel=labels.process or None),
        setting("linux", mountLabel=labels.mount or None),
    )


def oci_mappings(mappings: tuple[IdMapping, ...]) -> list[dict[str, int]]:
    """Return ID mappings in OCI's form (OCI runtime-spec, config-linux.md, User namespace mappings)."""
    return [{"containerID": item.container_id, "hostID": item.host_id, "size": item.length} for item in mappings]
