"""Namespace options and ID mappings: CRI messages to records and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from podkeep.base.errors import InvalidArgument
from podkeep.cri import id_mappings
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.namespace.idmap import IdMap
from podkeep.runtime.model import records
from podkeep.runtime.model.records import NamespaceMode, SandboxConfig
from podkeep.runtime.rpc.convert.checks import bounded, enum_value


def namespace_options(options: api.NamespaceOption) -> records.NamespaceOptions:
    """Return namespace options; the user namespace is checked against the kernel's rules.

    :raises InvalidArgument: if the user namespace's mode and mappings do not fit together (KEP-127, CRI changes).
    """
    userns = None
    if options.HasField("userns_options"):
        userns = _userns(options.userns_options)
    return records.NamespaceOptions(
        network=enum_value("namespace_options.network", NamespaceMode, options.network),
        pid=enum_value("namespace_options.pid", NamespaceMode, options.pid),
        ipc=enum_value("namespace_options.ipc", NamespaceMode, options.ipc),
        target_id=bounded("namespace_options.target_id", options.target_id),
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
        result.userns_options.uids.extend(id_mappings.messages(options.userns.uids))
        result.userns_options.gids.extend(id_mappings.messages(options.userns.gids))
    return result


def sandbox_without_user_namespace(config: api.PodSandboxConfig) -> api.PodSandboxConfig:
    """Return the request for a sandbox that is a virtual machine: what it says of a user namespace is passed over."""
    result = api.PodSandboxConfig()
    result.CopyFrom(config)
    if config.linux.security_context.HasField("namespace_options"):
        result.linux.security_context.namespace_options.ClearField("userns_options")
    return result


def container_without_user_namespace(config: api.ContainerConfig) -> api.ContainerConfig:
    """Return the request for a container in a virtual machine, without user namespace and mappings of mounts."""
    result = api.ContainerConfig()
    result.CopyFrom(config)
    if config.linux.security_context.HasField("namespace_options"):
        result.linux.security_context.namespace_options.ClearField("userns_options")
    for mount in result.mounts:
        mount.ClearField("uidMappings")
        mount.ClearField("gidMappings")
    return result


def id_map(uids: Iterable[api.IDMapping], gids: Iterable[api.IDMapping]) -> IdMap:
    """Return CRI's lists of mappings as a checked value.

    :raises InvalidArgument: if they break a rule of the kernel.
    """
    result = IdMap(uids=id_mappings.mappings(uids), gids=id_mappings.mappings(gids))
    result.validate()
    return result


def _userns(options: api.UserNamespace) -> IdMap | None:
    mode = enum_value("userns_options.mode", NamespaceMode, options.mode)
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


def container_namespaces(linux: api.LinuxContainerConfig, sandbox: SandboxConfig) -> records.NamespaceOptions:
    if not linux.security_context.HasField("namespace_options"):
        return sandbox.namespaces
    asked = linux.security_context.namespace_options
    options = namespace_options(asked)
    if asked.HasField("userns_options") and options.userns != sandbox.namespaces.userns:
        raise InvalidArgument(
            f"namespace_options.userns_options: the container asks for {_describe(options.userns)}, "
            f"its sandbox has {_describe(sandbox.namespaces.userns)}"
        )
    # POD is also what a caller says who says nothing, and the pod's network is the sandbox's, whichever that is.
    if options.network not in {NamespaceMode.POD, sandbox.namespaces.network}:
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
        network=sandbox.namespaces.network,
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
