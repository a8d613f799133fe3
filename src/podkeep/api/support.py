"""What this version does not carry out: fields of the v1 API that are known and refused, each with what to do instead.

A field that would silently do nothing is worse than one that is refused (fail closed). Fields that change nothing on
one node, or only concern the choice of a node (tolerations, priorities, the scheduler's name), are accepted. Refused is
what needs an API server, or a node agent, where there is none, and what no version can do. Pods that come from an API
server have been looked at there and are not looked at here. docs/pod-fields.md lists all of them; a test compares it
with this module by trying every field.
"""

from __future__ import annotations

from collections.abc import Mapping

from podkeep.api.containers import Container, EphemeralContainer, ResourceRequirements
from podkeep.api.decode import join
from podkeep.api.defaults import sources
from podkeep.api.fields import FieldErrors
from podkeep.api.pod import Pod, PodSecurityContext
from podkeep.api.structs import ApiStruct, json_name
from podkeep.api.volumes import ProjectedVolumeSource, Volume

REFUSED = "not supported by this version"

_NO_API = "leave it out: it needs objects of an API server"
_ACCOUNTS = "there are no service accounts without an API server"
_NODE = "run the pod with `podkeep node`, which enforces it"
POD: Mapping[str, str] = {
    "eviction_responders": _NO_API,
    "resource_claims": _NO_API,
    "scheduling_gates": "run the pod when it may run",
    "scheduling_group": _NO_API,
}
CONTAINER: Mapping[str, str] = {"volume_devices": _NO_API}
SECURITY: Mapping[str, str] = {
    "windows_options": "leave it out: this is a Linux node",
}
VOLUMES: Mapping[str, str] = {
    "csi": "mount it on the node and use hostPath",
    "ephemeral": f"use emptyDir, or `podkeep node`: {_NO_API.partition(': ')[2]}",
    "persistent_volume_claim": f"use hostPath, or `podkeep node`: {_NO_API.partition(': ')[2]}",
}
"""What to use instead of a volume source; of those that are not here it is hostPath."""
_VOLUME = "mount it on the node and use hostPath"
_VOLUMES = frozenset({"config_map", "downward_api", "empty_dir", "host_path", "image", "projected", "secret"})
_PROJECTED = ("service_account_token", "cluster_trust_bundle", "pod_certificate")
_RESOURCES = frozenset({"cpu", "memory"})
_HUGE_PAGES = "hugepages-"


def refuse_unsupported(pod: Pod, errors: FieldErrors, *, node: bool = False) -> None:
    """Note every field of a defaulted ``pod`` of a manifest that is set and not carried out.

    :param node: a node agent takes care of the pod, and so enforces limits that only somebody who measures can.
    """
    spec = pod.spec
    _refuse(spec, POD, "spec", errors)
    if spec.os is not None and spec.os.name == "windows":
        errors.add("spec.os.name", f"windows pods are {REFUSED}: this is a Linux node")
    if spec.automount_service_account_token:
        _add("spec.automountServiceAccountToken", f"set it to false: {_ACCOUNTS}", errors)
    for name in ("service_account_name", "service_account"):
        if getattr(spec, name) not in {"", "default"}:
            _add(f"spec.{json_name(name)}", f"leave it out: {_ACCOUNTS}", errors)
    _pod_security(spec.security_context or PodSecurityContext(), errors)
    for index, volume in enumerate(spec.volumes):
        _volume(volume, f"spec.volumes[{index}]", errors, node=node)
    for kind in ("init_containers", "containers", "ephemeral_containers"):
        for index, container in enumerate(getattr(spec, kind)):
            _container(container, f"spec.{json_name(kind)}[{index}]", errors, node=node)


def _add(path: str, hint: str, errors: FieldErrors, value: str = "") -> None:
    errors.add(path, f"{value} is {REFUSED}; {hint}" if value else f"{REFUSED}; {hint}")


def _refuse(value: ApiStruct, hints: Mapping[str, str], path: str, errors: FieldErrors) -> None:
    for name, hint in hints.items():
        if getattr(value, name):
            _add(join(path, json_name(name)), hint, errors)


def _pod_security(security: PodSecurityContext, errors: FieldErrors) -> None:
    _refuse(security, SECURITY, "spec.securityContext", errors)


def _container(container: Container | EphemeralContainer, path: str, errors: FieldErrors, *, node: bool) -> None:
    _refuse(container, CONTAINER, path, errors)
    if container.security_context is not None:
        _refuse(container.security_context, SECURITY, f"{path}.securityContext", errors)
    for index, mount in enumerate(container.volume_mounts):
        _refuse(mount, {"bind_mount_options": "leave it out"}, f"{path}.volumeMounts[{index}]", errors)
    _resources(container.resources, path, errors, node=node)


def _resources(resources: ResourceRequirements, path: str, errors: FieldErrors, *, node: bool) -> None:
    _refuse(resources, {"claims": "leave it out, like spec.resourceClaims"}, f"{path}.resources", errors)
    known = _RESOURCES | {"ephemeral-storage"}
    for name in resources.limits:
        if name == "ephemeral-storage" and not node:
            _add(f"{path}.resources.limits[{name}]", _NODE, errors)
        elif name not in known and not name.startswith(_HUGE_PAGES):
            _add(f"{path}.resources.limits[{name}]", "leave it out: this node has none to give", errors)
    for name in resources.requests:
        if name not in known and not name.startswith(_HUGE_PAGES) and name not in resources.limits:
            _add(f"{path}.resources.requests[{name}]", "leave it out: this node has none to give", errors)


def _volume(volume: Volume, path: str, errors: FieldErrors, *, node: bool) -> None:
    for name in sources(volume):
        if name not in _VOLUMES:
            _add(f"{path}.{json_name(name)}", VOLUMES.get(name, _VOLUME), errors)
    empty = volume.empty_dir
    if empty is not None:
        _refuse(empty, {"mode": "leave it out: everybody in the pod may write"}, f"{path}.emptyDir", errors)
        if empty.size_limit and not empty.medium and not node:
            _add(f"{path}.emptyDir.sizeLimit", f"set medium to Memory, where it is kept, or {_NODE}", errors)
    kept = ((volume.config_map, "configMap"), (volume.secret, "secret"), (volume.downward_api, "downwardAPI"))
    for source, name in kept:
        if source is not None:
            _owners(source, f"{path}.{name}", errors)
    if volume.projected is not None:
        _projected(volume.projected, f"{path}.projected", errors)


def _projected(volume: ProjectedVolumeSource, path: str, errors: FieldErrors) -> None:
    if volume.default_user is not None:
        _add(f"{path}.defaultUser", _OWNER, errors)
    for index, source in enumerate(volume.sources):
        where = f"{path}.sources[{index}]"
        for name in _PROJECTED:
            if getattr(source, name) is not None:
                _add(f"{where}.{json_name(name)}", _NO_API, errors)
        for kept in ("config_map", "secret", "downward_api"):
            if getattr(source, kept) is not None:
                _owners(getattr(source, kept), f"{where}.{json_name(kept)}", errors)


_OWNER = "leave it out: use fsGroup"


def _owners(source: ApiStruct, path: str, errors: FieldErrors) -> None:
    """Refuse users to whom files would belong (draft of KEP-2605)."""
    if getattr(source, "default_user", None) is not None:
        _add(f"{path}.defaultUser", _OWNER, errors)
    for index, item in enumerate(getattr(source, "items", ())):
        if item.user is not None:
            _add(f"{path}.items[{index}].user", _OWNER, errors)
