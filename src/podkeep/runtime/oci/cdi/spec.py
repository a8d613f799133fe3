"""CDI: what a vendor's spec files say that a container with one of its devices needs (Container Device Interface).

Owns: parsing and checking of spec files, names of devices, and which file has a device. Pure. Does not own: reading the
files (``registry.py``), looking at device nodes (``nodes.py``), the change of a container's configuration
(``edits.py``). The rules are those of the CDI specification 0.3.0 to 1.1.0 (SPEC.md) and, for names in
annotations and for files of different directories, of its reference implementation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.base.frozen import FrozenStruct

ANNOTATION_PREFIX = "cdi.k8s.io/"
HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
NO_PERMISSIONS = "none"
_VENDOR_OR_CLASS = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A part of a spec file; a field that is not known is refused."""


class DeviceNode(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """``deviceNodes[]``; what is missing is looked up at ``host_path``, or at ``path`` if that is empty."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class Mount(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """``mounts[]``."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """``hooks[]``; ``timeout`` in seconds."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class IntelRdt(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """``intelRdt``."""

    clos_id: str = msgspec.field(default="", name="closID")
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False


class NetDevice(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """``netDevices[]``."""

    host_interface_name: str
    name: str


class Edits(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """``containerEdits``: what is added to a container's configuration."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    def __add__(self, other: Edits) -> Edits:
        """Return both, ``other`` later: of a field that has one value, the value of ``other``."""
        return Edits(
            env=self.env + other.env,
            device_nodes=self.device_nodes + other.device_nodes,
            net_devices=self.net_devices + other.net_devices,
            hooks=self.hooks + other.hooks,
            mounts=self.mounts + other.mounts,
            intel_rdt=other.intel_rdt or self.intel_rdt,
            additional_gids=self.additional_gids + other.additional_gids,
        )


class _Device(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    name: str
    annotations: dict[str, str] = {}
    container_edits: Edits


class _File(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    cdi_version: str
    kind: str
    annotations: dict[str, str] = {}
    devices: tuple[_Device, ...]
    container_edits: Edits = Edits()

    def all_edits(self) -> Iterator[Edits]:
        yield self.container_edits
        yield from (device.container_edits for device in self.devices)


class Spec(FrozenStruct, kw_only=True):
    """A spec file. ``edits`` go with each of its devices."""

    path: str
    kind: str
    edits: Edits
    devices: Mapping[str, Edits]


# names


def check_name(name: str) -> str:
    """Return a fully qualified name (``vendor.com/class=device``).

    :raises InvalidArgument: if it is not one.
    """
    kind, separator, device = name.partition("=")
    vendor, slash, class_ = kind.partition("/")
    if not (separator and slash and _DEVICE.fullmatch(device) and _is_kind(vendor, class_)):
        raise InvalidArgument(f"{name[:200]!r} is not the name of a CDI device", hint="write vendor.com/class=device")
    return name


def _is_kind(vendor: str, class_: str) -> bool:
    return _VENDOR_OR_CLASS.fullmatch(vendor) is not None and _VENDOR_OR_CLASS.fullmatch(class_) is not None


def requested(names: Iterable[str], annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices of a request, each once: those of its field, then those of annotations, by their keys.

    :raises InvalidArgument: naming what is not the name of a device.
    """
    found = [check_name(name) for name in names]
    for key in sorted(annotations):
        if key.startswith(ANNOTATION_PREFIX):
            found += [check_name(name) for name in annotations[key].split(",")]
    return tuple(dict.fromkeys(found))


# files


def parse(data: bytes, path: str) -> Spec:
    """Return the spec in a file's content: JSON if ``path`` ends so, else YAML.

    :raises InvalidArgument: naming the file and what is wrong in it.
    """
    try:
        file = msgspec.json.decode(data, type=_File) if path.endswith(".json") else _from_yaml(data)
        _check(file)
    # RecursionError: a file may be nested as deeply as its size allows.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"CDI spec {path}: {' '.join(str(error).split())}") from error
    except InvalidArgument as error:
        raise InvalidArgument(f"CDI spec {path}: {error.message}") from error
    return Spec(
        path=path,
        kind=file.kind,
        edits=file.container_edits,
        devices={device.name: device.container_edits for device in file.devices},
    )


def _from_yaml(data: bytes) -> _File:
    # Here and not above: it takes a megabyte, and most machines have no such file.
    import yaml

    from podkeep.base.text import yaml_text

    try:
        return msgspec.convert(yaml_text.load(data), _File)
    except yaml.YAMLError as error:
        raise InvalidArgument(" ".join(str(error).split())) from error


def _check(file: _File) -> None:
    if file.cdi_version not in _VERSIONS:
        known = f"{_VERSIONS[0]} to {_VERSIONS[-1]}"
        raise InvalidArgument(f"cdiVersion: {file.cdi_version!r} is not one of the known versions, {known}")
    vendor, _, class_ = file.kind.partition("/")
    if not _is_kind(vendor, class_):
        raise InvalidArgument(f"kind: {file.kind!r} is not of the form vendor.com/class")
    if not file.devices:
        raise InvalidArgument("devices: there are none")
    names = [device.name for device in file.devices]
    for device in file.devices:
        if not _DEVICE.fullmatch(device.name):
            raise InvalidArgument(f"devices: {device.name!r} is not the name of a device")
        if names.count(device.name) > 1:
            raise InvalidArgument(f"devices: {device.name!r} is there more than once")
        if device.container_edits == Edits():
            raise InvalidArgument(f"devices: {device.name!r} has no containerEdits")
    for edits in file.all_edits():
        _check_edits(edits)
    for version, what, uses in _ADDITIONS:
        if _VERSIONS.index(file.cdi_version) < _VERSIONS.index(version) and uses(file):
            raise InvalidArgument(f"cdiVersion: {what} came with {version}, and the file is of {file.cdi_version}")


_ADDITIONS: Sequence[tuple[str, str, Callable[[_File], bool]]] = (
    ("0.4.0", "mounts[].type", lambda file: any(mount.type for edits in file.all_edits() for mount in edits.mounts)),
    (
        "0.5.0",
        "deviceNodes[].hostPath",
        lambda file: any(node.host_path for edits in file.all_edits() for node in edits.device_nodes),
    ),
    (
        "0.5.0",
        "the name of a device that begins with a digit",
        lambda file: any(device.name[0].isdigit() for device in file.devices),
    ),
    (
        "0.6.0",
        "annotations",
        lambda file: bool(file.annotations) or any(device.annotations for device in file.devices),
    ),
    ("0.6.0", "a class with a dot", lambda file: "." in file.kind.partition("/")[2]),
    ("0.7.0", "intelRdt", lambda file: any(edits.intel_rdt is not None for edits in file.all_edits())),
    ("0.7.0", "additionalGids", lambda file: any(edits.additional_gids for edits in file.all_edits())),
    ("1.1.0", "netDevices", lambda file: any(edits.net_devices for edits in file.all_edits())),
    (
        "1.1.0",
        "intelRdt.schemata and enableMonitoring",
        lambda file: any(
            edits.intel_rdt is not None and (edits.intel_rdt.schemata or edits.intel_rdt.enable_monitoring)
            for edits in file.all_edits()
        ),
    ),
)
"""Version, what came with it, and whether a file uses that."""


def _check_edits(edits: Edits) -> None:
    for entry in edits.env:
        _check_variable("env", entry)
    for node in edits.device_nodes:
        if not node.path.startswith("/") or (node.host_path and not node.host_path.startswith("/")):
            raise InvalidArgument(f"deviceNodes: {node.path!r}: path or hostPath is not absolute")
        if node.type not in {"", "b", "c", "u", "p"}:
            raise InvalidArgument(f"deviceNodes: {node.path}: type {node.type!r} is not one of b, c, u, p")
        if node.permissions != NO_PERMISSIONS and not set(node.permissions) <= set("rwm"):
            raise InvalidArgument(f"deviceNodes: {node.path}: permissions {node.permissions!r} are not of r, w, m")
    for mount in edits.mounts:
        if not mount.container_path.startswith("/"):
            raise InvalidArgument(f"mounts: containerPath {mount.container_path!r} is not absolute")
        if not mount.host_path:
            raise InvalidArgument(f"mounts: {mount.container_path}: hostPath is required")
    for hook in edits.hooks:
        _check_hook(hook)
    if edits.intel_rdt is not None:
        closed = edits.intel_rdt.clos_id
        if closed != "/" and (len(closed) >= 4096 or closed in {".", ".."} or set(closed) & {"/", "\n"}):
            raise InvalidArgument(f"intelRdt: closID {closed[:200]!r} is not the name of a directory")
    for gid in edits.additional_gids:
        if not 0 <= gid < 2**32 - 1:
            raise InvalidArgument(f"additionalGids: {gid} is no group ID")


def _check_hook(hook: Hook) -> None:
    if hook.hook_name not in HOOK_NAMES:
        raise InvalidArgument(f"hooks: hookName {hook.hook_name!r} is not one of {', '.join(HOOK_NAMES)}")
    if not hook.path.startswith("/"):
        raise InvalidArgument(f"hooks: {hook.hook_name}: path {hook.path!r} is not absolute")
    if hook.timeout is not None and hook.timeout < 1:
        raise InvalidArgument(f"hooks: {hook.hook_name}: timeout {hook.timeout} is less than one second")
    for entry in hook.env:
        _check_variable(f"hooks: {hook.hook_name}: env", entry)


def _check_variable(where: str, entry: str) -> None:
    if entry.find("=") < 1 or "\0" in entry:
        raise InvalidArgument(f"{where}: {entry!r} is not of the form NAME=value")


# resolution


def resolve(specs: Sequence[Sequence[Spec]], names: Iterable[str]) -> tuple[Edits, tuple[str, ...]]:
    """Return what devices need together, and the names of those that are nowhere.

    :param specs: the specs of each directory; a later directory goes before an earlier one.
    :raises FailedPrecondition: naming the files, if two of one directory have a device.
    """
    found, unknown, seen = Edits(), [], set()
    for name in names:
        spec = _spec_of(specs, name)
        if spec is None:
            unknown.append(name)
            continue
        # The edits of a file go with each of its devices, and once into a container that has several of them.
        if spec.path not in seen:
            seen.add(spec.path)
            found += spec.edits
        found += spec.devices[name.partition("=")[2]]
    return found, tuple(unknown)


def _spec_of(specs: Sequence[Sequence[Spec]], name: str) -> Spec | None:
    kind, _, device = name.partition("=")
    for of_directory in reversed(specs):
        having = [spec for spec in of_directory if spec.kind == kind and device in spec.devices]
        if len(having) > 1:
            files = " and ".join(spec.path for spec in having)
            raise FailedPrecondition(f"CDI device {name} is in {files}", hint="remove one of the files")
        if having:
            return having[0]
    return None
