"""PodSandboxConfig to its record. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from podkeep.base.errors import InvalidArgument
from podkeep.base.ids import HandlerName
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup import systemd
from podkeep.runtime.cgroup_driver import slices
from podkeep.runtime.model import records
from podkeep.runtime.model.records import NamespaceMode, SandboxConfig
from podkeep.runtime.network import ports
from podkeep.runtime.rpc.convert.checks import (
    absolute,
    cgroup_path,
    check_metadata,
    quote,
    refuse_no_name,
    token,
)
from podkeep.runtime.rpc.convert.class_resources import class_names
from podkeep.runtime.rpc.convert.counts import check_counts
from podkeep.runtime.rpc.convert.namespaces import namespace_options
from podkeep.runtime.rpc.convert.resources import resources_record
from podkeep.runtime.rpc.convert.security import check_sandbox_context, selinux_options

MAX_CGROUP_PATH = 1024
"""Bytes of a pod's cgroup parent; the kubelet's have about 100."""
_PROTOCOLS = {api.TCP: "tcp", api.UDP: "udp", api.SCTP: "sctp"}


def sandbox_config(config: api.PodSandboxConfig, handler: str, *, default_cgroup_parent: str) -> SandboxConfig:
    """Return what a RunPodSandbox request asks for.

    :raises InvalidArgument: if a field is missing or contradicts another.
    """
    check_counts("config", config)
    metadata, linux = config.metadata, config.linux
    if not metadata.name or not metadata.uid:
        raise InvalidArgument("config.metadata: name and uid are required")
    for field in ("name", "namespace", "uid"):
        refuse_no_name(f"config.metadata.{field}", getattr(metadata, field))
    if config.HasField("windows"):
        raise InvalidArgument("config.windows: this is a Linux machine")
    check_metadata(config.labels, config.annotations)
    context = linux.security_context
    namespaces = namespace_options(context.namespace_options)
    check_sandbox_context(context)
    return SandboxConfig(
        name=metadata.name,
        uid=metadata.uid,
        namespace=metadata.namespace,
        attempt=metadata.attempt,
        hostname=token("config.hostname", config.hostname) if config.hostname else "",
        log_directory=absolute("config.log_directory", config.log_directory),
        dns=_dns(config),
        labels=dict(config.labels),
        annotations=dict(config.annotations),
        cgroup_parent=_cgroup_parent(linux.cgroup_parent, default_cgroup_parent),
        sysctls=dict(linux.sysctls),
        namespaces=namespaces,
        privileged=context.privileged,
        selinux=selinux_options(context.selinux_options),
        handler=HandlerName(handler),
        # On the host network a port is the machine's already.
        host_ports=_host_ports(config) if namespaces.network is NamespaceMode.POD else (),
        resources=resources_record(linux.resources) if linux.HasField("resources") else None,
        overhead=resources_record(linux.overhead) if linux.HasField("overhead") else None,
        class_resources=pod_class_names(config),
    )


def pod_class_names(config: api.PodSandboxConfig) -> dict[str, str]:
    """Return the types and classes that a sandbox's configuration names.

    :raises InvalidArgument: if one cannot be a name.
    """
    # The field is called as a keyword of Python.
    return class_names("config.class_resources", getattr(config.class_resources, "class"))


def _host_ports(config: api.PodSandboxConfig) -> tuple[records.HostPort, ...]:
    """Return the port mappings that have a host port; the others say nothing."""
    wanted = []
    for mapping in config.port_mappings:
        if mapping.host_port == 0:
            continue
        protocol = _PROTOCOLS.get(mapping.protocol)
        if protocol is None:
            raise InvalidArgument(f"config.port_mappings: protocol {mapping.protocol} is not known")
        wanted.append(
            ports.host_port(
                protocol,
                host_port=mapping.host_port,
                container_port=mapping.container_port,
                host_ip=mapping.host_ip,
            )
        )
    return ports.unique(wanted)


def _cgroup_parent(asked: str, default: str) -> str:
    """Return a pod's parent; its form must be that of the cgroup driver, which the default's form tells.

    :raises InvalidArgument: if it has the form of the other driver: the caller's driver is not the runtime's then.
    """
    field = "config.linux.cgroup_parent"
    if not asked:
        return default
    if len(asked.encode()) > MAX_CGROUP_PATH:
        raise InvalidArgument(f"{field}: {quote(asked)} has more than {MAX_CGROUP_PATH} bytes")
    if systemd.is_slice(default):
        if not systemd.is_slice(asked):
            raise InvalidArgument(
                f"{field}: {quote(asked)} is no slice, and the runtime's cgroup driver is systemd",
                hint="set the caller's cgroup driver to systemd (kubelet: cgroupDriver)",
            )
        return slices.check_slice(field, asked)
    if systemd.is_slice(asked):
        raise InvalidArgument(
            f"{field}: {quote(asked)} is a systemd slice, and the runtime's cgroup driver is cgroupfs",
            hint="set the caller's cgroup driver (kubelet: cgroupDriver) to cgroupfs, or the runtime's to systemd",
        )
    return cgroup_path(field, asked)


def _dns(config: api.PodSandboxConfig) -> records.Dns | None:
    if not config.HasField("dns_config"):
        return None
    given = config.dns_config
    return records.Dns(
        servers=_tokens("config.dns_config.servers", given.servers),
        searches=_tokens("config.dns_config.searches", given.searches),
        options=_tokens("config.dns_config.options", given.options),
    )


def _tokens(field: str, items: Sequence[str]) -> tuple[str, ...]:
    return tuple(token(field, item) for item in items)
