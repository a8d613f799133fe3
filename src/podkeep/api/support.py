"""What this version does not carry out: fields of the v1 API that are known and refused.

A field that would silently do nothing is worse than one that is refused (fail closed). Fields that only concern the
choice of a node (tolerations, priorities, the scheduler's name) have nothing left to decide here and are accepted.
"""

from __future__ import annotations

from podkeep.api.containers import Container
from podkeep.api.decode import join
from podkeep.api.defaults import sources
from podkeep.api.fields import FieldErrors
from podkeep.api.pod import Pod, PodSecurityContext
from podkeep.api.structs import ApiStruct, json_name
from podkeep.api.volumes import KeyToPath, Volume

REFUSED = "not supported by this version"

_POD = (
    "affinity",
    "ephemeral_containers",
    "eviction_responders",
    "hostname_override",
    "node_selector",
    "overhead",
    "readiness_gates",
    "resource_claims",
    "scheduling_gates",
    "scheduling_group",
    "set_hostname_as_fqdn",
    "topology_spread_constraints",
)
_CONTAINER = (
    "lifecycle",
    "liveness_probe",
    "readiness_probe",
    "resize_policy",
    "restart_policy_rules",
    "startup_probe",
    "stdin",
    "stdin_once",
    "volume_devices",
)
_SECURITY = ("selinux_options", "windows_options")
_VOLUMES = frozenset({"config_map", "empty_dir", "host_path", "image", "secret"})
_RESOURCES = frozenset({"cpu", "memory"})


def refuse_unsupported(pod: Pod, errors: FieldErrors) -> None:
    """Note every field of a defaulted ``pod`` that is set and not carried out."""
    spec = pod.spec
    _refuse(spec, _POD, "spec", errors)
    if spec.os is not None and spec.os.name == "windows":
        errors.add("spec.os.name", f"windows pods are {REFUSED}")
    if spec.automount_service_account_token:
        errors.add("spec.automountServiceAccountToken", REFUSED)
    for name in ("service_account_name", "service_account"):
        if getattr(spec, name) not in {"", "default"}:
            errors.add(f"spec.{json_name(name)}", f"{REFUSED}: there are no service accounts")
    _pod_security(spec.security_context or PodSecurityContext(), errors)
    for index, volume in enumerate(spec.volumes):
        _volume(volume, f"spec.volumes[{index}]", errors)
    for kind in ("init_containers", "containers"):
        for index, container in enumerate(getattr(spec, kind)):
            _container(container, spec.host_network, f"spec.{json_name(kind)}[{index}]", errors)


def _refuse(value: ApiStruct, names: tuple[str, ...], path: str, errors: FieldErrors) -> None:
    for name in names:
        if getattr(value, name):
            errors.add(join(path, json_name(name)), REFUSED)


def _pod_security(security: PodSecurityContext, errors: FieldErrors) -> None:
    path = "spec.securityContext"
    _refuse(security, (*_SECURITY, "selinux_change_policy"), path, errors)
    if security.supplemental_groups_policy == "Strict":
        errors.add(f"{path}.supplementalGroupsPolicy", f"Strict is {REFUSED}")
    _profiles(security, path, errors)


def _profiles(security: ApiStruct, path: str, errors: FieldErrors) -> None:
    seccomp, apparmor = getattr(security, "seccomp_profile", None), getattr(security, "apparmor_profile", None)
    if seccomp is not None and seccomp.type == "Localhost":
        errors.add(f"{path}.seccompProfile.type", f"Localhost is {REFUSED}")
    if apparmor is not None and apparmor.type not in {None, "Unconfined"}:
        errors.add(f"{path}.appArmorProfile.type", f"{apparmor.type} is {REFUSED}")


def _container(container: Container, host_network: bool, path: str, errors: FieldErrors) -> None:
    _refuse(container, _CONTAINER, path, errors)
    security = container.security_context
    if security is not None:
        _refuse(security, _SECURITY, f"{path}.securityContext", errors)
        _profiles(security, f"{path}.securityContext", errors)
        if security.proc_mount == "Unmasked":
            errors.add(f"{path}.securityContext.procMount", f"Unmasked is {REFUSED}")
    for index, port in enumerate(container.ports):
        if port.host_port and not host_network:
            errors.add(f"{path}.ports[{index}].hostPort", REFUSED)
    for index, variable in enumerate(container.env):
        if variable.value_from is not None:
            _refuse(
                variable.value_from, ("resource_field_ref", "file_key_ref"), f"{path}.env[{index}].valueFrom", errors
            )
    for index, mount in enumerate(container.volume_mounts):
        where = f"{path}.volumeMounts[{index}]"
        _refuse(mount, ("bind_mount_options",), where, errors)
        if mount.recursive_read_only not in {None, "Disabled"}:
            errors.add(f"{where}.recursiveReadOnly", f"{mount.recursive_read_only} is {REFUSED}")
    _resources(container, path, errors)


def _resources(container: Container, path: str, errors: FieldErrors) -> None:
    _refuse(container.resources, ("claims",), f"{path}.resources", errors)
    for name in container.resources.limits:
        if name not in _RESOURCES:
            errors.add(f"{path}.resources.limits[{name}]", REFUSED)
    for name in container.resources.requests:
        # A request for ephemeral storage guides the choice of a node and asks nothing of the node itself.
        if name not in _RESOURCES | {"ephemeral-storage"} and name not in container.resources.limits:
            errors.add(f"{path}.resources.requests[{name}]", REFUSED)


def _volume(volume: Volume, path: str, errors: FieldErrors) -> None:
    for name in sources(volume):
        if name not in _VOLUMES:
            errors.add(f"{path}.{json_name(name)}", REFUSED)
    empty = volume.empty_dir
    if empty is not None:
        _refuse(empty, ("mode",), f"{path}.emptyDir", errors)
        if empty.medium.startswith("HugePages"):
            errors.add(f"{path}.emptyDir.medium", f"{empty.medium} is {REFUSED}")
        if empty.size_limit and not empty.medium:
            errors.add(f"{path}.emptyDir.sizeLimit", f"{REFUSED} except with medium Memory")
    for source, name in ((volume.config_map, "configMap"), (volume.secret, "secret")):
        if source is not None:
            if source.default_user is not None:
                errors.add(f"{path}.{name}.defaultUser", REFUSED)
            _items(source.items, f"{path}.{name}", errors)


def _items(items: tuple[KeyToPath, ...], path: str, errors: FieldErrors) -> None:
    for index, item in enumerate(items):
        if item.user is not None:
            errors.add(f"{path}.items[{index}].user", REFUSED)
