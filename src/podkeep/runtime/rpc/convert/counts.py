"""How many entries a list or map of a request may have, by message and field of the protocol. Pure.

A client, or the author of a pod that it passes on, makes a list as long as a message allows (16 MiB). What the runtime
keeps, compares or mounts of it is counted first, in one place: a test holds these tables to the protocol, so that no
field is left out of both.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import Message

from podkeep.cri.limits import MAX_DEVICES, MAX_MOUNTS
from podkeep.runtime.oci.users import MAX_GROUPS
from podkeep.runtime.rpc.convert.checks import MAX_ENTRIES, MAX_STRINGS, check_count

MOST: Mapping[str, int] = {
    "Capability.add_ambient_capabilities": MAX_ENTRIES,
    "Capability.add_capabilities": MAX_ENTRIES,
    "Capability.drop_capabilities": MAX_ENTRIES,
    "ContainerConfig.CDI_devices": MAX_DEVICES,
    "ContainerConfig.args": MAX_STRINGS,
    "ContainerConfig.command": MAX_STRINGS,
    "ContainerConfig.devices": MAX_DEVICES,
    "ContainerConfig.envs": MAX_STRINGS,
    "ContainerConfig.mounts": MAX_MOUNTS,
    "DNSConfig.options": MAX_ENTRIES,
    "DNSConfig.searches": MAX_ENTRIES,
    "DNSConfig.servers": MAX_ENTRIES,
    "LinuxContainerSecurityContext.masked_paths": MAX_ENTRIES,
    "LinuxContainerSecurityContext.readonly_paths": MAX_ENTRIES,
    "LinuxContainerSecurityContext.supplemental_groups": MAX_GROUPS,
    "LinuxSandboxSecurityContext.supplemental_groups": MAX_GROUPS,
    # A kubelet sends every port of every container, also those that are no host ports.
    "PodSandboxConfig.port_mappings": MAX_STRINGS,
}
_BYTES = "their bytes are counted (check_metadata)"
_CLASSES = "counted where the names are checked (class_names)"
_KERNEL = "the kernel takes few, which IdMap.validate says with what to do"
_LIMITS = "counted where limits are checked (oci/resources.py)"
UNCOUNTED: Mapping[str, str] = {
    "ContainerClassResources.classes": _CLASSES,
    "ContainerConfig.annotations": _BYTES,
    "ContainerConfig.labels": _BYTES,
    "ImageSpec.annotations": "not read",
    "LinuxContainerResources.hugepage_limits": _LIMITS,
    "LinuxContainerResources.unified": _LIMITS,
    "LinuxPodSandboxConfig.sysctls": "counted where they are checked (oci/sysctls.py)",
    "Mount.gidMappings": _KERNEL,
    "Mount.uidMappings": _KERNEL,
    "PodClassResources.class": _CLASSES,
    "PodSandboxConfig.annotations": _BYTES,
    "PodSandboxConfig.labels": _BYTES,
    "UpdateContainerResourcesRequest.annotations": "not read",
    "UserNamespace.gids": _KERNEL,
    "UserNamespace.uids": _KERNEL,
    "WindowsContainerResources.affinity_cpus": "refused as a whole",
}
"""What has no number here, and why."""


def check_counts(field: str, message: Message) -> None:
    """Check the lists and maps of a message and of those in it; what is in a list has none that is counted.

    :raises InvalidArgument: naming the field, which starts with ``field``.
    """
    for descriptor, value in message.ListFields():
        path = f"{field}.{descriptor.name}"
        if isinstance(value, Message):
            check_counts(path, value)
        elif (most := MOST.get(f"{message.DESCRIPTOR.name}.{descriptor.name}")) is not None:
            check_count(path, value, most)
