"""What an UpdatePodSandboxConfig request changes of a sandbox: its class resources, and nothing else. Pure.

KEP-3008, updates of sandbox-level resources. A configuration with nothing but ``class_resources``, or those and the
metadata, stands for the sandbox as it is; a client that sends all of it must send what the sandbox was made with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.model.records import Sandbox, SandboxConfig
from podkeep.runtime.rpc.convert.namespaces import namespace_message
from podkeep.runtime.rpc.convert.sandbox import sandbox_config

Part = Callable[[SandboxConfig], Any]
_PARTS: Mapping[str, Part] = {
    "metadata": lambda config: (config.name, config.uid, config.namespace, config.attempt),
    "hostname": lambda config: config.hostname,
    "log_directory": lambda config: config.log_directory,
    "dns_config": lambda config: config.dns,
    "port_mappings": lambda config: config.host_ports,
    "labels": lambda config: config.labels,
    "annotations": lambda config: config.annotations,
}
_LINUX_PARTS: Mapping[str, Part] = {
    "cgroup_parent": lambda config: config.cgroup_parent,
    "security_context": lambda config: (config.namespaces, config.privileged, config.selinux),
    "sysctls": lambda config: config.sysctls,
    "resources": lambda config: config.resources,
    "overhead": lambda config: config.overhead,
}


def changed_classes(given: api.PodSandboxConfig, sandbox: Sandbox) -> dict[str, str]:
    """Return types to the classes that a sandbox shall have; types that are not named keep theirs.

    :raises InvalidArgument: naming every other field that is given and not as it is, or a class that has no name.
    """
    recorded = sandbox.config
    complete = api.PodSandboxConfig()
    complete.CopyFrom(given)
    if not given.HasField("metadata"):
        complete.metadata.name, complete.metadata.uid = recorded.name, recorded.uid
    if not given.linux.HasField("security_context"):
        # What a port mapping means depends on them.
        options = namespace_message(recorded.namespaces)
        complete.linux.security_context.namespace_options.CopyFrom(options)
    asked = sandbox_config(complete, recorded.handler, default_cgroup_parent=recorded.cgroup_parent)
    fields = {descriptor.name for descriptor, _ in given.ListFields()}
    linux = {descriptor.name for descriptor, _ in given.linux.ListFields()}
    # Resources that were updated since are as they are, too.
    updated = {field for field in ("resources", "overhead") if getattr(asked, field) == getattr(sandbox.status, field)}
    other = [
        *(f"config.{name}" for name, part in _PARTS.items() if name in fields and part(asked) != part(recorded)),
        *(
            f"config.linux.{name}"
            for name, part in _LINUX_PARTS.items()
            if name in linux - updated and part(asked) != part(recorded)
        ),
    ]
    if other:
        raise InvalidArgument(
            f"{', '.join(other)}: not as pod sandbox {sandbox.id} was made; nothing but class_resources can be changed",
            hint="leave all other fields out, or send them as in RunPodSandbox",
        )
    return asked.class_resources
