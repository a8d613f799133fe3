"""PodSandboxConfig to its record. Pure."""

from __future__ import annotations

from podkeep.base.errors import InvalidArgument, Unimplemented
from podkeep.base.ids import HandlerName
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime import records
from podkeep.runtime.records import NamespaceMode, SandboxConfig
from podkeep.runtime.rpc.convert.checks import absolute, cgroup_path, refuse_plain_text, token
from podkeep.runtime.rpc.convert.namespaces import namespace_options
from podkeep.runtime.rpc.convert.resources import resources_record
from podkeep.runtime.rpc.convert.security import check_sandbox_apparmor, selinux_options


def sandbox_config(config: api.PodSandboxConfig, handler: str, *, default_cgroup_parent: str) -> SandboxConfig:
    """Return what a RunPodSandbox request asks for.

    :raises InvalidArgument: if a field is missing or contradicts another.
    :raises Unimplemented: if it asks for what this version does not do.
    """
    metadata, linux = config.metadata, config.linux
    if not metadata.name or not metadata.uid:
        raise InvalidArgument("config.metadata: name and uid are required")
    refuse_plain_text("config.metadata.name", metadata.name, metadata.namespace, metadata.uid)
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
    check_sandbox_apparmor(context)
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
        cgroup_parent=cgroup_path("config.linux.cgroup_parent", linux.cgroup_parent) or default_cgroup_parent,
        sysctls=dict(linux.sysctls),
        namespaces=namespaces,
        privileged=context.privileged,
        selinux=selinux_options(context.selinux_options),
        handler=HandlerName(handler),
        resources=resources_record(linux.resources) if linux.HasField("resources") else None,
        overhead=resources_record(linux.overhead) if linux.HasField("overhead") else None,
    )


def _dns(config: api.PodSandboxConfig) -> records.Dns | None:
    if not config.HasField("dns_config"):
        return None
    given = config.dns_config
    return records.Dns(
        servers=tuple(token("config.dns_config.servers", item) for item in given.servers),
        searches=tuple(token("config.dns_config.searches", item) for item in given.searches),
        options=tuple(token("config.dns_config.options", item) for item in given.options),
    )
