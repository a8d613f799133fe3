"""The base of every API type: immutable, keyword-only, Kubernetes' field names on the outside.

Python attributes are snake_case; ``json_name`` gives the name on the wire and in error messages.
"""

from __future__ import annotations

import msgspec

_ACRONYMS = {
    "apparmor_profile": "appArmorProfile",
    "container_id": "containerID",
    "dataset_uuid": "datasetUUID",
    "disk_uri": "diskURI",
    "downward_api": "downwardAPI",
    "host_ip": "hostIP",
    "host_ipc": "hostIPC",
    "host_ips": "hostIPs",
    "host_pid": "hostPID",
    "image_id": "imageID",
    "pd_id": "pdID",
    "pod_ip": "podIP",
    "pod_ips": "podIPs",
    "resource_id": "resourceID",
    "scale_io": "scaleIO",
    "selinux_change_policy": "seLinuxChangePolicy",
    "selinux_options": "seLinuxOptions",
    "set_hostname_as_fqdn": "setHostnameAsFQDN",
    "storage_policy_id": "storagePolicyID",
    "target_wwns": "targetWWNs",
    "volume_id": "volumeID",
}


def json_name(attribute: str) -> str:
    """Return the Kubernetes spelling of a Python attribute: ``host_pid`` is ``hostPID``."""
    if attribute in _ACRONYMS:
        return _ACRONYMS[attribute]
    first, *rest = attribute.split("_")
    return first + "".join(part.capitalize() for part in rest)


class ApiStruct(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename=json_name
):
    """Base of all API types; fields at their default value are left out when encoded."""
