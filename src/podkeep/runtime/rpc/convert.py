"""CRI messages to records and back: where protobuf stops.

Pure but for looking at the host paths of mounts. What a request asks for and this version cannot do is refused here,
never left out silently.
"""

from __future__ import annotations

import enum
import os
import reprlib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from podkeep.base.errors import InvalidArgument, Unimplemented
from podkeep.base.ids import HandlerName
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.idmap import IdMap, IdMapping
from podkeep.runtime import records
from podkeep.runtime.records import NamespaceMode, Propagation, SandboxConfig, Seccomp, SeccompKind

MAX_NAME_LENGTH = 1024
"""Characters of a name; Kubernetes allows 253."""
_Enum = TypeVar("_Enum", bound=enum.IntEnum)
_quoting = reprlib.Repr()
_quoting.maxstring = 200
_quote = _quoting.repr
"""How a caller's text is shown in an error: quoted, and cut in the middle if it is long."""


def sandbox_config(config: api.PodSandboxConfig, handler: str, *, default_cgroup_parent: str) -> SandboxConfig:
    """Return what a RunPodSandbox request asks for.

    :raises InvalidArgument: if a field is missing or contradicts another.
    :raises Unimplemented: if it asks for what this version does not do.
    """
    metadata, linux = config.metadata, config.linux
    if not metadata.name or not metadata.uid:
        raise InvalidArgument("config.metadata: name and uid are required")
    _refuse_plain_text("config.metadata.name", metadata.name, metadata.namespace, metadata.uid)
    if config.HasField("windows"):
        raise InvalidArgument("config.windows: this is a Linux machine")
    if config.HasField("class_resources"):
        raise Unimplemented("config.class_resources: class resources are not implemented by this version")
    context = linux.security_context
    namespaces = namespace_options(context.namespace_options)
    if namespaces.network is NamespaceMode.POD:
        mapped = [str(port.container_port) for port in config.port_mappings if port.host_port > 0]
        if mapped:
            raise Unimplemented(
                f"config.port_mappings: host ports (of container ports {', '.join(mapped)}) are not implemented",
                hint="use the pod's address, or the host network",
            )
    _refuse_lsm(context)
    return SandboxConfig(
        name=metadata.name,
        uid=metadata.uid,
        namespace=metadata.namespace,
        attempt=metadata.attempt,
        hostname=_token("config.hostname", config.hostname) if config.hostname else "",
        log_directory=_absolute("config.log_directory", config.log_directory),
        dns=_dns(config),
        labels=dict(config.labels),
        annotations=dict(config.annotations),
        cgroup_parent=_cgroup("config.linux.cgroup_parent", linux.cgroup_parent) or default_cgroup_parent,
        sysctls=dict(linux.sysctls),
        namespaces=namespaces,
        privileged=context.privileged,
        handler=HandlerName(handler),
    )


def container_config(config: api.ContainerConfig, sandbox: SandboxConfig) -> records.ContainerConfig:
    """Return what a CreateContainer request asks for.

    :raises InvalidArgument: if a field is missing, contradicts another or the sandbox, or a host path does not exist.
    :raises Unimplemented: if it asks for what this version does not do.
    """
    metadata = config.metadata
    if not metadata.name:
        raise InvalidArgument("config.metadata.name is required")
    _refuse_plain_text("config.metadata.name", metadata.name)
    if not config.image.image:
        raise InvalidArgument("config.image.image is required")
    if config.HasField("windows"):
        raise InvalidArgument("config.windows: this is a Linux machine")
    if config.CDI_devices:
        raise Unimplemented("config.CDI_devices: CDI devices are not implemented by this version")
    if config.HasField("class_resources"):
        raise Unimplemented("config.class_resources: class resources are not implemented by this version")
    if config.log_path.startswith("/") or ".." in config.log_path.split("/"):
        raise InvalidArgument(f"config.log_path: {_quote(config.log_path)} leaves the sandbox's log directory")
    _refuse_nul("config.log_path", config.log_path)
    _refuse_nul("config.command", *config.command)
    _refuse_nul("config.args", *config.args)
    context = config.linux.security_context
    if context.privileged and not sandbox.privileged:
        raise InvalidArgument("security_context.privileged: the container's sandbox is not privileged")
    return records.ContainerConfig(
        name=metadata.name,
        attempt=metadata.attempt,
        image=config.image.image,
        user_specified_image=config.image.user_specified_image,
        command=tuple(config.command),
        args=tuple(config.args),
        working_dir=_absolute("config.working_dir", config.working_dir),
        envs=tuple(_env(item) for item in config.envs),
        mounts=tuple(_mount(number, mount) for number, mount in enumerate(config.mounts)),
        devices=tuple(_device(number, device) for number, device in enumerate(config.devices)),
        labels=dict(config.labels),
        annotations=dict(config.annotations),
        log_path=config.log_path,
        stdin=config.stdin,
        stdin_once=config.stdin_once,
        tty=config.tty,
        stop_signal=_signal_name(config.stop_signal),
        namespaces=_container_namespaces(config.linux, sandbox),
        resources=_resources(config.linux.resources),
        security=_security(context, given=config.linux.HasField("security_context")),
    )


def namespace_options(options: api.NamespaceOption) -> records.NamespaceOptions:
    """Return namespace options; the user namespace is checked against the kernel's rules.

    :raises InvalidArgument: if the user namespace's mode and mappings do not fit together (KEP-127, CRI changes).
    """
    userns = None
    if options.HasField("userns_options"):
        userns = _userns(options.userns_options)
    return records.NamespaceOptions(
        network=_enum("namespace_options.network", NamespaceMode, options.network),
        pid=_enum("namespace_options.pid", NamespaceMode, options.pid),
        ipc=_enum("namespace_options.ipc", NamespaceMode, options.ipc),
        target_id=options.target_id,
        userns=userns,
    )


def namespace_message(options: records.NamespaceOptions) -> api.NamespaceOption:
    """Return the message of namespace options, as PodSandboxStatus echoes them."""
    result = api.NamespaceOption(
        network=api.NamespaceMode.ValueType(options.network),
        pid=api.NamespaceMode.ValueType(options.pid),
        ipc=api.NamespaceMode.ValueType(options.ipc),
        target_id=options.target_id,
    )
    if options.userns is None:
        result.userns_options.mode = api.NODE
    else:
        result.userns_options.mode = api.POD
        result.userns_options.uids.extend(mapping_messages(options.userns.uids))
        result.userns_options.gids.extend(mapping_messages(options.userns.gids))
    return result


def mapping_messages(mappings: Iterable[IdMapping]) -> list[api.IDMapping]:
    """Return CRI's form of ID mappings."""
    return [api.IDMapping(host_id=i.host_id, container_id=i.container_id, length=i.length) for i in mappings]


def mount_message(mount: records.Mount) -> api.Mount:
    """Return the message of a mount, as ContainerStatus echoes it."""
    return api.Mount(
        container_path=mount.container_path,
        host_path=mount.host_path,
        readonly=mount.readonly,
        propagation=api.MountPropagation.ValueType(mount.propagation),
        uidMappings=mapping_messages(mount.idmap.uids) if mount.idmap else (),
        gidMappings=mapping_messages(mount.idmap.gids) if mount.idmap else (),
    )


def resources_message(resources: records.Resources) -> api.LinuxContainerResources:
    """Return the message of resources, as ContainerStatus echoes them."""
    return api.LinuxContainerResources(
        cpu_period=resources.cpu_period,
        cpu_quota=resources.cpu_quota,
        cpu_shares=resources.cpu_shares,
        cpuset_cpus=resources.cpuset_cpus,
        cpuset_mems=resources.cpuset_mems,
        memory_limit_in_bytes=resources.memory_limit,
        memory_swap_limit_in_bytes=resources.memory_swap_limit,
        oom_score_adj=resources.oom_score_adj,
        hugepage_limits=[api.HugepageLimit(page_size=k, limit=v) for k, v in resources.hugepage_limits.items()],
        unified=resources.unified,
    )


def labels_match(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Return whether ``labels`` has every pair of ``selector``."""
    return all(labels.get(key) == value for key, value in selector.items())


def id_map(uids: Iterable[api.IDMapping], gids: Iterable[api.IDMapping]) -> IdMap:
    """Return CRI's lists of mappings as a checked value.

    :raises InvalidArgument: if they break a rule of the kernel.
    """
    result = IdMap(uids=_mappings(uids), gids=_mappings(gids))
    result.validate()
    return result


def _mappings(items: Iterable[api.IDMapping]) -> tuple[IdMapping, ...]:
    return tuple(IdMapping(container_id=i.container_id, host_id=i.host_id, length=i.length) for i in items)


def _userns(options: api.UserNamespace) -> IdMap | None:
    mode = _enum("userns_options.mode", NamespaceMode, options.mode)
    given = bool(options.uids or options.gids)
    if mode is NamespaceMode.NODE:
        if given:
            raise InvalidArgument("userns_options: mode NODE with mappings", hint="leave the mappings out, or say POD")
        return None
    if mode is not NamespaceMode.POD:
        raise InvalidArgument(f"userns_options.mode: {mode.name} is not possible", hint="POD or NODE")
    if not options.uids or not options.gids:
        raise InvalidArgument("userns_options: mode POD needs uids and gids")
    return id_map(options.uids, options.gids)


def _container_namespaces(linux: api.LinuxContainerConfig, sandbox: SandboxConfig) -> records.NamespaceOptions:
    if not linux.security_context.HasField("namespace_options"):
        return sandbox.namespaces
    asked = linux.security_context.namespace_options
    options = namespace_options(asked)
    if asked.HasField("userns_options") and options.userns != sandbox.namespaces.userns:
        raise InvalidArgument(
            f"namespace_options.userns_options: the container asks for {_describe(options.userns)}, "
            f"its sandbox has {_describe(sandbox.namespaces.userns)}"
        )
    if options.network is not sandbox.namespaces.network:
        raise InvalidArgument(
            f"namespace_options.network: the container asks for {options.network.name}, "
            f"its sandbox has {sandbox.namespaces.network.name}"
        )
    for name in ("pid", "ipc"):
        mode, of_sandbox = getattr(options, name), getattr(sandbox.namespaces, name)
        if mode is NamespaceMode.POD and of_sandbox is not NamespaceMode.POD:
            raise InvalidArgument(f"namespace_options.{name}: POD, but the sandbox has none of its own to share")
        if mode is NamespaceMode.NODE and of_sandbox is not NamespaceMode.NODE:
            raise InvalidArgument(f"namespace_options.{name}: NODE, but the sandbox was not made with NODE")
    if options.ipc is NamespaceMode.TARGET:
        raise InvalidArgument("namespace_options.ipc: TARGET is not possible", hint="POD or CONTAINER")
    if options.pid is NamespaceMode.TARGET and not options.target_id:
        raise InvalidArgument("namespace_options: pid TARGET needs target_id")
    return records.NamespaceOptions(
        network=options.network,
        pid=options.pid,
        ipc=options.ipc,
        target_id=options.target_id,
        userns=sandbox.namespaces.userns,
    )


def _describe(idmap: IdMap | None) -> str:
    if idmap is None:
        return "the host's user namespace"
    uids, gids = (",".join(str(item) for item in items) for items in (idmap.uids, idmap.gids))
    return f"uids {uids} gids {gids}"


def _mount(number: int, mount: api.Mount) -> records.Mount:
    field = f"config.mounts[{number}]"
    if mount.HasField("image"):
        raise Unimplemented(f"{field}.image: image volumes are not implemented by this version")
    if mount.recursive_read_only:
        raise Unimplemented(f"RROUnsupported: {field}.recursive_read_only is not implemented by this version")
    if not mount.container_path.startswith("/"):
        raise InvalidArgument(f"{field}.container_path: {_quote(mount.container_path)} is not absolute")
    _refuse_nul(f"{field}.container_path", mount.container_path)
    if os.path.normpath(mount.container_path).strip("/") == "":
        raise InvalidArgument(f"{field}.container_path: nothing can be mounted over the container's root")
    if not mount.host_path.startswith("/"):
        raise InvalidArgument(f"{field}.host_path: {_quote(mount.host_path)} is not absolute")
    _refuse_nul(f"{field}.host_path", mount.host_path)
    try:
        host_path = os.path.realpath(mount.host_path, strict=True)
    except OSError as error:
        raise InvalidArgument(f"{field}.host_path: {_quote(mount.host_path)}: {error.strerror}") from error
    return records.Mount(
        container_path=mount.container_path,
        host_path=host_path,
        readonly=mount.readonly,
        propagation=_enum(f"{field}.propagation", Propagation, mount.propagation),
        idmap=id_map(mount.uidMappings, mount.gidMappings) if mount.uidMappings or mount.gidMappings else None,
    )


def _device(number: int, device: api.Device) -> records.Device:
    field, permissions = f"config.devices[{number}]", device.permissions or "rwm"
    for path in (device.container_path, device.host_path):
        if not path.startswith("/"):
            raise InvalidArgument(f"{field}: {_quote(path)} is not absolute")
        _refuse_nul(field, path)
    if not set(permissions) <= set("rwm") or len(permissions) > 3:
        raise InvalidArgument(f"{field}.permissions: {_quote(permissions)}", hint="write some of r, w and m")
    return records.Device(container_path=device.container_path, host_path=device.host_path, permissions=permissions)


def _resources(given: api.LinuxContainerResources) -> records.Resources:
    return records.Resources(
        cpu_period=given.cpu_period,
        cpu_quota=given.cpu_quota,
        cpu_shares=given.cpu_shares,
        cpuset_cpus=given.cpuset_cpus,
        cpuset_mems=given.cpuset_mems,
        memory_limit=given.memory_limit_in_bytes,
        memory_swap_limit=given.memory_swap_limit_in_bytes,
        oom_score_adj=given.oom_score_adj,
        hugepage_limits={item.page_size: item.limit for item in given.hugepage_limits},
        unified=dict(given.unified),
    )


def _security(context: api.LinuxContainerSecurityContext, *, given: bool) -> records.Security:
    _refuse_lsm(context)
    return records.Security(
        privileged=context.privileged,
        add_capabilities=tuple(context.capabilities.add_capabilities),
        drop_capabilities=tuple(context.capabilities.drop_capabilities),
        ambient_capabilities=tuple(context.capabilities.add_ambient_capabilities),
        run_as_user=_id("run_as_user", context.run_as_user.value) if context.HasField("run_as_user") else None,
        run_as_group=_id("run_as_group", context.run_as_group.value) if context.HasField("run_as_group") else None,
        run_as_username=context.run_as_username,
        supplemental_groups=tuple(_id("supplemental_groups", group) for group in context.supplemental_groups),
        groups_policy=_enum(
            "security_context.supplemental_groups_policy", records.GroupsPolicy, context.supplemental_groups_policy
        ),
        readonly_rootfs=context.readonly_rootfs,
        no_new_privs=context.no_new_privs,
        masked_paths=tuple(context.masked_paths) if given else None,
        readonly_paths=tuple(context.readonly_paths) if given else None,
        seccomp=_seccomp(context),
    )


def _id(field: str, value: int) -> int:
    if not 0 <= value < 2**32 - 1:
        raise InvalidArgument(f"security_context.{field}: {value} is no ID")
    return value


def _seccomp(context: api.LinuxContainerSecurityContext) -> Seccomp:
    if context.HasField("seccomp"):
        profile = context.seccomp
        kind = _enum("security_context.seccomp.profile_type", SeccompKind, profile.profile_type)
        reference = profile.localhost_ref
    else:
        kind, reference = _seccomp_of_text(context.seccomp_profile_path)
    if kind is not SeccompKind.LOCALHOST:
        return Seccomp(kind=kind)
    if not reference.startswith("/"):
        raise InvalidArgument(f"security_context.seccomp.localhost_ref: {_quote(reference)} is not an absolute path")
    _refuse_nul("security_context.seccomp.localhost_ref", reference)
    return Seccomp(kind=kind, path=reference)


def _seccomp_of_text(text: str) -> tuple[SeccompKind, str]:
    """Return what the deprecated field means: ``runtime/default``, ``localhost/<path>``, ``unconfined`` or nothing."""
    if text in {"", "unconfined"}:
        return SeccompKind.UNCONFINED, ""
    if text in {"runtime/default", "docker/default"}:
        return SeccompKind.RUNTIME_DEFAULT, ""
    kind, _, reference = text.partition("/")
    if kind != "localhost":
        raise InvalidArgument(f"security_context.seccomp_profile_path: {_quote(text)} is not understood")
    return SeccompKind.LOCALHOST, reference


def _refuse_lsm(context: api.LinuxContainerSecurityContext | api.LinuxSandboxSecurityContext) -> None:
    """Refuse what the kernel's security modules would have to enforce, and this version does not ask them to."""
    if context.HasField("selinux_options") and context.selinux_options.ByteSize():
        raise Unimplemented("security_context.selinux_options: SELinux labels are not implemented by this version")
    apparmor = context.apparmor.profile_type if context.HasField("apparmor") else api.SecurityProfile.Unconfined
    text = getattr(context, "apparmor_profile", "")
    if apparmor not in api.SecurityProfile.ProfileType.values():
        raise InvalidArgument(f"security_context.apparmor.profile_type: {apparmor} is not known")
    enforced = apparmor == api.SecurityProfile.Localhost or text.startswith("localhost/")
    default = apparmor == api.SecurityProfile.RuntimeDefault or text == "runtime/default"
    if enforced or (default and _apparmor_enabled()):
        raise Unimplemented("security_context.apparmor: AppArmor profiles are not implemented by this version")


def _apparmor_enabled() -> bool:
    try:
        with open("/sys/module/apparmor/parameters/enabled") as file:  # noqa: PTH123 - one character of sysfs
            return file.read(1) == "Y"
    except OSError:
        return False


def _signal_name(value: api.Signal.ValueType) -> str:
    if value not in api.Signal.values():
        raise InvalidArgument(f"config.stop_signal: {value} is not known")
    return "" if value == api.RUNTIME_DEFAULT else api.Signal.Name(value)


def _enum(field: str, kind: type[_Enum], number: int) -> _Enum:
    """Return a value of an open enum: the wire carries numbers that this version does not know."""
    try:
        return kind(number)
    except ValueError:
        raise InvalidArgument(f"{field}: {number} is not known", hint="the caller may speak a newer CRI") from None


def _env(item: api.KeyValue) -> tuple[str, str]:
    if not item.key or "=" in item.key or "\0" in item.key:
        raise InvalidArgument(f"config.envs: {_quote(item.key)} cannot be the name of an environment variable")
    if b"\0" in item.value:
        raise InvalidArgument(f"config.envs: the value of {_quote(item.key)} holds a NUL character")
    try:
        return item.key, item.value.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"config.envs: the value of {_quote(item.key)} is not UTF-8") from error


def _dns(config: api.PodSandboxConfig) -> records.Dns | None:
    if not config.HasField("dns_config"):
        return None
    given = config.dns_config
    return records.Dns(
        servers=tuple(_token("config.dns_config.servers", item) for item in given.servers),
        searches=tuple(_token("config.dns_config.searches", item) for item in given.searches),
        options=tuple(_token("config.dns_config.options", item) for item in given.options),
    )


def _absolute(field: str, path: str) -> str:
    if path and (not path.startswith("/") or ".." in path.split("/") or "\0" in path):
        raise InvalidArgument(f"{field}: {_quote(path)} is not an absolute path")
    return path


def _token(field: str, text: str) -> str:
    """Return a word that is written into a pod's files, where a space or a new line would make it two."""
    if not text or any(character.isspace() or not character.isprintable() for character in text):
        raise InvalidArgument(f"{field}: {_quote(text)} is empty or holds a space or control character")
    return text


def _refuse_nul(field: str, *values: str) -> None:
    for value in values:
        if "\0" in value:
            raise InvalidArgument(f"{field}: {_quote(value)} holds a NUL character")


def _cgroup(field: str, path: str) -> str:
    parts = path.strip("/").split("/") if path.strip("/") else []
    if path and (not path.startswith("/") or any(part in {"", ".", ".."} for part in parts) or not path.isprintable()):
        raise InvalidArgument(f"{field}: {path!r} is not an absolute cgroup path", hint="write it like /kubepods/pod1")
    return path


def _refuse_plain_text(field: str, *values: str) -> None:
    for value in values:
        if any(ord(character) < 32 or character in "/\x7f" for character in value):
            raise InvalidArgument(f"{field}: {_quote(value)} holds a character that no name may hold")
        if len(value) > MAX_NAME_LENGTH:
            raise InvalidArgument(f"{field}: {_quote(value)} has more than {MAX_NAME_LENGTH} characters")
