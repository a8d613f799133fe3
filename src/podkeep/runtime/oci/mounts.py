"""The mounts of a container, in OCI's form. Pure.

Owns: which mounts there are, their options, and their order. Does not own: what lies behind a source (``staging.py``).
Sources of the rules: OCI runtime-spec (config.md, Mounts); CRI's Mount. Called by ``spec.py``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import msgspec

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.model.records import ContainerConfig, Mount, NamespaceMode, Propagation

_PTYS = "max=512"
"""Terminals that a container can have. All containers together have 3072 (kernel.pty.max, less kernel.pty.reserve)."""
_VIRTUAL = ("/dev", "/proc", "/sys")
"""Where the kernel's own file systems are."""
_BELOW_VIRTUAL = ("/dev/", "/proc/", "/sys/")
_EMULATED = frozenset(
    f"/proc/{name}"
    for name in (
        "cpuinfo diskstats loadavg meminfo net/dev slabinfo stat swaps sys/crypto/fips_enabled sys/kernel/ns_last_pid"
        " uptime"
    ).split()
)
"""Files of /proc that some (LXCFS, for one) replace by their own; nothing that an OCI runtime writes."""

_PROPAGATION = {
    Propagation.PRIVATE: "rprivate",
    Propagation.HOST_TO_CONTAINER: "rslave",
    Propagation.BIDIRECTIONAL: "rshared",
}


class PodFiles(FrozenStruct, kw_only=True):
    """Host paths of what every container of a pod gets; an empty one is left out."""

    hosts: str = ""
    hostname: str = ""
    resolv_conf: str = ""
    shm: str = ""


class OciMount(TypedDict):
    """A mount as ``config.json`` has it."""

    destination: str
    type: NotRequired[str]
    source: NotRequired[str]
    options: NotRequired[list[str]]
    uidMappings: NotRequired[list[dict[str, int]]]
    gidMappings: NotRequired[list[dict[str, int]]]


class StagedMount(FrozenStruct, kw_only=True):
    """What an OCI runtime binds for a volume, with all that is mounted below it.

    The second of the forms that a volume has: what the request says (``records.Mount``, a path in the image, a mount of
    CDI), this, the bind mount in OCI's form (:func:`bind`), and that of a copy with locked flags (``Staging.lock``).
    """

    source: str
    """Host path: a copy below the container's bundle, which ``Staging.unstage`` removes, or what the request names."""
    options: tuple[str, ...] = ()
    """What it is beside being read-only, in OCI's words: an OCI runtime takes off what it is not told."""


POD_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
"""Where a container finds its pod's files."""


class MountInput(FrozenStruct, kw_only=True):
    """All that the list of mounts is made of; the fields are those of ``SpecInput``."""

    container: ContainerConfig
    files: PodFiles
    own_ipc: bool
    """Whether the container is in another IPC namespace than the machine."""
    has_mqueue: bool = True
    staged: Mapping[int, StagedMount] = msgspec.field(default_factory=dict)
    volumes: Mapping[str, str] = msgspec.field(default_factory=dict)
    targets: Mapping[str, str] = msgspec.field(default_factory=dict)
    device_paths: tuple[str, ...] = ()
    """Paths in the container of the devices it asked for."""
    devices: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Path in the container to the machine's path of a device node that is mounted, because it cannot be made."""


def build(given: MountInput) -> list[OciMount]:
    """Return the mounts in the order in which they are to be made.

    A mount of the request takes the place of the runtime's own at the same path, and one at /dev of everything below,
    which would otherwise be mounted on the machine's /dev.

    The OCI runtime follows symbolic links inside of volumes, and those are the pod's. So /dev, /proc and /sys come
    after the volumes: what a link brings there lies underneath, and neither does the OCI runtime make devices in a
    directory of the pod, nor write the label of the process to a file of the pod.

    :raises InvalidArgument: if a mount is where the OCI runtime could be deceived nevertheless.
    """

    def real(path: str) -> str:
        return given.targets.get(normal(path), normal(path))

    places = [real(mount.container_path) for mount in given.container.mounts]
    of_image = {real(path) for path in given.volumes}
    taken = {*places, *of_image}
    own = _virtual_mounts(given)
    for item in _pod_mounts(given):
        item["destination"] = real(item["destination"])
        own.append(item)
    own = [item for item in own if not _is_taken(item["destination"], taken)]
    binds = [bind(target, source, "rprivate", "nosuid", "noexec") for target, source in given.devices.items()]
    binds += [bind(real(target), source, "rprivate", "rw") for target, source in given.volumes.items()]
    for number, mount in enumerate(given.container.mounts):
        staged = given.staged.get(number, StagedMount(source=mount.host_path))
        # What lies below a read-only mount is writable, unless its copy was made otherwise (CRI: Mount).
        access = "ro" if mount.readonly else "rw"
        binds.append(bind(places[number], staged.source, _PROPAGATION[mount.propagation], access, *staged.options))
    virtual = [item for item in own if item["type"] != "bind"]
    binds = [item for item in own if item["type"] == "bind"] + binds
    # Parents first: a volume on /etc must hide neither the pod's own files nor another volume.
    binds.sort(key=lambda item: item["destination"].count("/"))
    early: list[OciMount] = []
    late: list[OciMount] = []
    for item in binds:
        (late if is_virtual(item["destination"]) else early).append(item)
    _check_dev(dict.fromkeys(of_image, ""), "volume of the image")
    sources = {place: mount.host_path for place, mount in zip(places, given.container.mounts, strict=True)}
    _check_dev(sources, "config.mounts")
    if not given.container.security.privileged:
        _check_proc(late)
    of_pod = {
        place for place, mount in zip(places, given.container.mounts, strict=True) if not _is_machines(mount.host_path)
    }
    _check_nested(places, given.device_paths, of_pod | of_image)
    return early + virtual + late


def is_virtual(path: str) -> bool:
    """Return whether a path, in its normal form, is in one of the kernel's own file systems: on the machine, or where
    a container has them.
    """
    return path.startswith(_BELOW_VIRTUAL) or path in _VIRTUAL


def is_below(path: str, top: str) -> bool:
    """Return whether ``path`` is ``top`` or below it, both in their normal form."""
    return path == top or path.startswith(f"{top}/")


def _is_machines(source: str) -> bool:
    """Return whether only the machine makes links in what is mounted."""
    return is_virtual(source) and not is_below(source, "/dev/shm")


def _check_proc(late: list[OciMount]) -> None:
    """Refuse volumes in /proc, where the OCI runtime writes the label of the process."""
    for item in late:
        target = item["destination"]
        if is_below(target, "/proc") and target not in _EMULATED and not (target == item["source"] == "/proc"):
            raise InvalidArgument(
                f"config.mounts: {target}: nothing can be mounted there", hint="choose a path outside of /proc"
            )


OF_RUNTIME = frozenset({"/dev", "/dev/console", "/dev/null", "/dev/ptmx", "/dev/pts"})
"""Where the OCI runtime sets up devices and streams."""


def _check_dev(sources: Mapping[str, str], field_name: str) -> None:
    """Refuse volumes (path in the container to source) whose files an OCI runtime would take for the container's own.

    It opens /dev/null as root and gives it to the container's user if a stream is like it (crun 1.29 and older take a
    file of any kind: CVE-2026-88265), makes /dev/console and thereby empties a file there (runc), and gives a path in
    /dev/pts to the container's user. Where these lie in directories of a pod, they may be links, too. The machine's own
    /dev and /dev/pts are what they should be.
    """
    for place, source in sources.items():
        if source == place and place in {"/dev", "/dev/pts"}:
            continue
        if place in OF_RUNTIME or place.startswith("/dev/pts/"):
            raise InvalidArgument(
                f"{field_name}: {place}: the OCI runtime sets up devices and streams there, and would change the"
                " volume's files as root",
                hint="choose a path beside it; of the machine only /dev and /dev/pts as they are can be mounted there",
            )


def check_device_nodes(config: Mapping[str, Any]) -> None:
    """Check that the OCI runtime makes no device node in a volume, where a link could bring its mode and owner to
    another file.

    :param config: the OCI configuration with all that was added to it (``cdi/edits.py``).
    :raises InvalidArgument: naming the node and the volume.
    """
    volumes = {
        item["destination"]: item["source"]
        for item in config["mounts"]
        if is_bind(item) and not _is_machines(item["source"])
    }
    for node in config["linux"].get("devices", ()):
        path = normal(node["path"])
        for volume in volumes:
            if path.startswith(f"{volume}/"):
                raise InvalidArgument(
                    f"device {path} would be made in the volume at {volume}", hint="choose another path for the volume"
                )


def _check_nested(places: list[str], devices: tuple[str, ...], volumes: set[str]) -> None:
    """Refuse what a link of the pod could bring elsewhere nevertheless: a mount in a volume that is itself in /dev or
    /sys, and a device node in any volume. Nor can a node be made in the kernel's own file systems.
    """
    late = {volume for volume in volumes if is_virtual(volume)} | {"/dev/shm"}
    no_nodes = {"/proc", "/sys", "/dev/pts", "/dev/mqueue"}
    asked = [("mounts", place, late) for place in places]
    asked += [("devices", path, volumes | late | no_nodes) for path in devices]
    for field_name, place, tops in asked:
        for top in tops:
            if place.startswith(f"{top}/"):
                raise InvalidArgument(
                    f"config.{field_name}: {place} is below what is mounted at {top}", hint="choose a path beside it"
                )


def normal(path: str) -> str:
    """Return a path of a container, from its root, without ``.``, ``..`` and doubled slashes."""
    return "/" + posixpath.normpath(f"/{path}").strip("/")


def bind(target: str, source: str, *options: str) -> OciMount:
    """Return a bind mount of everything at ``source``."""
    return {"destination": target, "type": "bind", "source": source, "options": ["rbind", *options]}


def is_bind(item: OciMount) -> bool:
    """Return whether a mount in OCI's form is of a path of the machine."""
    return item.get("type") == "bind" or not {"bind", "rbind"}.isdisjoint(item.get("options", ()))


_SETS = {"ro": "ro", "rro": "ro", "nosuid": "nosuid", "nodev": "nodev", "noexec": "noexec"}
_CLEARS = {"rw": "ro", "suid": "nosuid", "dev": "nodev", "exec": "noexec"}
BIND_OPTIONS = frozenset({"bind", "rbind", *_PROPAGATION.values(), "private", "slave", "shared", *_SETS, *_CLEARS})
"""Words for what podkeep can do for a bind mount itself."""


def protection(options: Sequence[str]) -> frozenset[str]:
    """Return which of ro, nosuid, nodev and noexec mount options in OCI's words ask for; a later word wins."""
    found: set[str] = set()
    for option in options:
        if option in _SETS:
            found.add(_SETS[option])
        elif option in _CLEARS:
            found.discard(_CLEARS[option])
    return frozenset(found)


def protected(options: Sequence[str], names: frozenset[str]) -> list[str]:
    """Return mount options with ``names`` among them, and without what says the opposite.

    Newer OCI runtimes take off a mount what its options do not name, and fail if the kernel does not let them.
    """
    kept = [option for option in options if _CLEARS.get(option) not in names]
    return [*kept, *sorted(names - protection(kept))]


def rootfs_propagation(mounts: tuple[Mount, ...]) -> str:
    """Return the propagation of the container's root, which must let through what one of its mounts passes on."""
    modes = {mount.propagation for mount in mounts}
    if Propagation.BIDIRECTIONAL in modes:
        return "rshared"
    return "rslave" if Propagation.HOST_TO_CONTAINER in modes else "rprivate"


def _is_taken(target: str, taken: set[str]) -> bool:
    return target in taken or ("/dev" in taken and target.startswith("/dev/"))


def _virtual_mounts(given: MountInput) -> list[OciMount]:
    privileged = given.container.security.privileged
    access = "rw" if privileged else "ro"
    result = [
        _virtual("/proc", "proc", "nosuid", "noexec", "nodev"),
        _virtual("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        _virtual("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", _PTYS),
        _virtual("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        _virtual("/sys", "sysfs", "nosuid", "noexec", "nodev", access),
        _virtual("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev", "relatime", access),
    ]
    if not given.own_ipc:
        # The machine's message queues; a file system of the container's own would show those of another namespace.
        result[3:4] = [bind("/dev/mqueue", "/dev/mqueue", "rprivate")] if given.has_mqueue else []
    return result


def _pod_mounts(given: MountInput) -> list[OciMount]:
    # They lie in the root: with a read-only one a container does not write to them either.
    access = "ro" if given.container.security.readonly_rootfs else "rw"
    sources = (given.files.hosts, given.files.hostname, given.files.resolv_conf)
    generated = zip(POD_FILES, sources, strict=True)
    return [_shm(given), *(bind(target, source, "rprivate", access) for target, source in generated if source)]


def _shm(given: MountInput) -> OciMount:
    if given.container.namespaces.ipc is NamespaceMode.NODE:
        return bind("/dev/shm", "/dev/shm", "rprivate")
    if given.files.shm:
        # Its root belongs to the pod's root already: it was mounted so, and files in it have the IDs of their makers.
        return bind("/dev/shm", given.files.shm, "rprivate", "nosuid", "noexec", "nodev")
    return _virtual("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k")


def _virtual(target: str, kind: str, *options: str) -> OciMount:
    return {"destination": target, "type": kind, "source": kind, "options": list(options)}
