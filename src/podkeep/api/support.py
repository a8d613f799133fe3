"""What this version does not carry out: fields of the v1 API that are known and refused, each with what to do instead.

A field that would silently do nothing is worse than one that is refused (fail closed). Fields that change nothing on
one node, or only concern the choice of a node (tolerations, priorities, the scheduler's name), are accepted.
docs/pod-fields.md lists all of them; a test compares it with this module by trying every field.
"""

from __future__ import annotations

from collections.abc import Mapping

from podkeep.api.containers import Container
from podkeep.api.decode import join
from podkeep.api.defaults import sources
from podkeep.api.fields import FieldErrors
from podkeep.api.pod import Pod, PodSecurityContext, PodSpec
from podkeep.api.scheduling import Affinity, NodeAffinity, PodAffinity, PodAntiAffinity
from podkeep.api.structs import ApiStruct, json_name
from podkeep.api.volumes import KeyToPath, Volume

REFUSED = "not supported by this version"

_NO_API = "leave it out: it needs objects of an API server"
_MODULES = "leave it out: podkeep takes the node's policy"
POD: Mapping[str, str] = {
    "ephemeral_containers": "use `podkeep exec` to look into a pod",
    "eviction_responders": _NO_API,
    "hostname_override": "set hostname and subdomain",
    "overhead": "add it to the limits of the containers",
    "readiness_gates": "leave it out: nobody sets conditions of a pod from outside",
    "resource_claims": _NO_API,
    "scheduling_gates": "run the pod when it may run",
    "scheduling_group": _NO_API,
    "set_hostname_as_fqdn": "set hostname",
}
CONTAINER: Mapping[str, str] = {
    "restart_policy_rules": "use the pod's restartPolicy",
    "stdin": "use `podkeep exec -i`",
    "stdin_once": "use `podkeep exec -i`",
    "volume_devices": "use a hostPath volume of type BlockDevice",
}
SECURITY: Mapping[str, str] = {
    "selinux_options": _MODULES,
    "windows_options": "leave it out: this is a Linux node",
}
VOLUMES: Mapping[str, str] = {
    "csi": "mount it on the node and use hostPath",
    "downward_api": "use env[].valueFrom.fieldRef",
    "ephemeral": "use emptyDir",
    "iscsi": "mount it on the node and use hostPath",
    "nfs": "mount it on the node and use hostPath",
    "persistent_volume_claim": "use hostPath",
    "projected": "use a configMap and a secret volume",
}
"""What to use instead of a volume source; of those that are not here it is hostPath."""
_VOLUME = "mount it on the node and use hostPath"
_VOLUMES = frozenset({"config_map", "empty_dir", "host_path", "image", "secret"})
_RESOURCES = frozenset({"cpu", "memory"})
_AFFINITY = "use nodeSelector, or run the pod on the node it is for"


def refuse_unsupported(pod: Pod, errors: FieldErrors) -> None:
    """Note every field of a defaulted ``pod`` that is set and not carried out."""
    spec = pod.spec
    _refuse(spec, POD, "spec", errors)
    _scheduling(spec, errors)
    if spec.os is not None and spec.os.name == "windows":
        errors.add("spec.os.name", f"windows pods are {REFUSED}: this is a Linux node")
    if spec.automount_service_account_token:
        _add("spec.automountServiceAccountToken", "set it to false: there are no service accounts", errors)
    for name in ("service_account_name", "service_account"):
        if getattr(spec, name) not in {"", "default"}:
            _add(f"spec.{json_name(name)}", "leave it out: there are no service accounts", errors)
    _pod_security(spec.security_context or PodSecurityContext(), errors)
    for index, volume in enumerate(spec.volumes):
        _volume(volume, f"spec.volumes[{index}]", errors)
    for kind in ("init_containers", "containers"):
        for index, container in enumerate(getattr(spec, kind)):
            _container(container, spec.host_network, f"spec.{json_name(kind)}[{index}]", errors)


def _add(path: str, hint: str, errors: FieldErrors, value: str = "") -> None:
    errors.add(path, f"{value} is {REFUSED}; {hint}" if value else f"{REFUSED}; {hint}")


def _refuse(value: ApiStruct, hints: Mapping[str, str], path: str, errors: FieldErrors) -> None:
    for name, hint in hints.items():
        if getattr(value, name):
            _add(join(path, json_name(name)), hint, errors)


def _scheduling(spec: PodSpec, errors: FieldErrors) -> None:
    """Refuse what must hold where a pod runs and is not looked at.

    What is only preferred changes nothing on one node.
    """
    affinity = spec.affinity or Affinity()
    node = affinity.node_affinity or NodeAffinity()
    required = node.required_during_scheduling_ignored_during_execution
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    if required is not None:
        _add(f"spec.affinity.nodeAffinity.{field}", _AFFINITY, errors)
    near, apart = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAntiAffinity()
    for name, terms in (
        ("podAffinity", near.required_during_scheduling_ignored_during_execution),
        ("podAntiAffinity", apart.required_during_scheduling_ignored_during_execution),
    ):
        if terms:
            _add(f"spec.affinity.{name}.{field}", _AFFINITY, errors)
    for index, constraint in enumerate(spec.topology_spread_constraints):
        if constraint.when_unsatisfiable != "ScheduleAnyway":
            path = f"spec.topologySpreadConstraints[{index}].whenUnsatisfiable"
            _add(path, "use ScheduleAnyway", errors, constraint.when_unsatisfiable or "DoNotSchedule")


def _pod_security(security: PodSecurityContext, errors: FieldErrors) -> None:
    path = "spec.securityContext"
    _refuse(security, {**SECURITY, "selinux_change_policy": _MODULES}, path, errors)
    if security.supplemental_groups_policy == "Strict":
        _add(f"{path}.supplementalGroupsPolicy", "use Merge: groups of the image count, too", errors, "Strict")
    _profiles(security, path, errors)


def _profiles(security: ApiStruct, path: str, errors: FieldErrors) -> None:
    seccomp, apparmor = getattr(security, "seccomp_profile", None), getattr(security, "apparmor_profile", None)
    if seccomp is not None and seccomp.type == "Localhost":
        _add(f"{path}.seccompProfile.type", "use RuntimeDefault, and runtime.seccomp_profile", errors, "Localhost")
    if apparmor is not None and apparmor.type not in {None, "Unconfined"}:
        _add(f"{path}.appArmorProfile.type", "leave it out: podkeep's profile is the default", errors, apparmor.type)


def _container(container: Container, host_network: bool, path: str, errors: FieldErrors) -> None:
    _refuse(container, CONTAINER, path, errors)
    security = container.security_context
    if security is not None:
        _refuse(security, SECURITY, f"{path}.securityContext", errors)
        _profiles(security, f"{path}.securityContext", errors)
        if security.proc_mount == "Unmasked":
            _add(f"{path}.securityContext.procMount", "leave it out", errors, "Unmasked")
    for index, port in enumerate(container.ports):
        if port.host_port and not host_network:
            _add(f"{path}.ports[{index}].hostPort", "use `podkeep port-forward`, or hostNetwork", errors)
    for index, variable in enumerate(container.env):
        if variable.value_from is not None:
            hints = {
                "resource_field_ref": "write the value",
                "file_key_ref": "have the container's program read the file",
            }
            _refuse(variable.value_from, hints, f"{path}.env[{index}].valueFrom", errors)
    for index, mount in enumerate(container.volume_mounts):
        where = f"{path}.volumeMounts[{index}]"
        _refuse(mount, {"bind_mount_options": "leave it out"}, where, errors)
        if mount.recursive_read_only not in {None, "Disabled"}:
            _add(f"{where}.recursiveReadOnly", "use Disabled", errors, mount.recursive_read_only)
    _resources(container, path, errors)


def _resources(container: Container, path: str, errors: FieldErrors) -> None:
    _refuse(container.resources, {"claims": "leave it out, like spec.resourceClaims"}, f"{path}.resources", errors)
    for name in container.resources.limits:
        if name not in _RESOURCES:
            hint = "leave it out: nothing would enforce it"
            _add(f"{path}.resources.limits[{name}]", hint, errors)
    for name in container.resources.requests:
        # A request for ephemeral storage guides the choice of a node and asks nothing of the node itself.
        if name not in _RESOURCES | {"ephemeral-storage"} and name not in container.resources.limits:
            _add(f"{path}.resources.requests[{name}]", "leave it out: this node has none to give", errors)


def _volume(volume: Volume, path: str, errors: FieldErrors) -> None:
    for name in sources(volume):
        if name not in _VOLUMES:
            _add(f"{path}.{json_name(name)}", VOLUMES.get(name, _VOLUME), errors)
    empty = volume.empty_dir
    if empty is not None:
        _refuse(empty, {"mode": "leave it out: everybody in the pod may write"}, f"{path}.emptyDir", errors)
        if empty.medium.startswith("HugePages"):
            _add(f"{path}.emptyDir.medium", "use Memory", errors, empty.medium)
        if empty.size_limit and not empty.medium:
            _add(f"{path}.emptyDir.sizeLimit", "set medium to Memory, where it is kept, or leave it out", errors)
    for source, name in ((volume.config_map, "configMap"), (volume.secret, "secret")):
        if source is not None:
            if source.default_user is not None:
                _add(f"{path}.{name}.defaultUser", _OWNER, errors)
            _items(source.items, f"{path}.{name}", errors)


_OWNER = "leave it out: use fsGroup"


def _items(items: tuple[KeyToPath, ...], path: str, errors: FieldErrors) -> None:
    for index, item in enumerate(items):
        if item.user is not None:
            _add(f"{path}.items[{index}].user", _OWNER, errors)
