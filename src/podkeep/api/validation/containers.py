"""Validation of containers and init containers, and of what they refer to in their pod."""

from __future__ import annotations

from collections.abc import Collection

from podkeep.api import names
from podkeep.api.containers import (
    AppArmorProfile,
    Container,
    EnvVar,
    EphemeralContainer,
    ResourceRequirements,
    SeccompProfile,
    SecurityContext,
    VolumeMount,
    is_sidecar,
)
from podkeep.api.fields import FieldErrors
from podkeep.api.pod import PodSpec
from podkeep.api.structs import json_name
from podkeep.api.validation.handlers import forbid_handlers, validate_handlers
from podkeep.api.validation.volumes import descending_path, inner_path
from podkeep.api.volumes import ResourceFieldSelector, Volume
from podkeep.base.text import quantity

_MAX_ID = (1 << 31) - 1
FIELD_PATHS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
"""What ``fieldRef`` may name in an environment variable, besides ``metadata.labels['k']`` and ``annotations``."""
_KEYED = ("metadata.labels['", "metadata.annotations['")
_RULE_ACTIONS, _RULE_OPERATORS = ("Restart", "RestartAllContainers"), ("In", "NotIn")
_MAX_RULES, _MAX_EXIT_CODES = 20, 255
_NOT_EPHEMERAL = (
    "ports",
    "resize_policy",
    "restart_policy",
    "restart_policy_rules",
    "liveness_probe",
    "readiness_probe",
    "startup_probe",
    "lifecycle",
)
RESOURCE_FIELDS = (
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
)
"""What ``resourceFieldRef`` may name beside huge pages."""
_SOURCES = ("config_map_key_ref", "field_ref", "file_key_ref", "resource_field_ref", "secret_key_ref")


def validate_containers(spec: PodSpec, volumes: dict[str, Volume], errors: FieldErrors) -> None:
    """Note every rule that the containers of ``spec`` break."""
    seen: set[str] = set()
    grace, os = spec.termination_grace_period_seconds or 0, (spec.os.name or "") if spec.os is not None else ""
    for index, container in enumerate(spec.init_containers):
        _container(container, f"spec.initContainers[{index}]", seen, errors)
        _mounts(container, f"spec.initContainers[{index}]", volumes, errors)
        _restart_rules(container, f"spec.initContainers[{index}]", errors)
        if is_sidecar(container):
            validate_handlers(container, f"spec.initContainers[{index}]", grace, os, errors)
        else:
            forbid_handlers(container, f"spec.initContainers[{index}]", errors)
    errors.required("spec.containers", spec.containers)
    for index, container in enumerate(spec.containers):
        path = f"spec.containers[{index}]"
        _container(container, path, seen, errors)
        _mounts(container, path, volumes, errors)
        _restart_rules(container, path, errors)
        validate_handlers(container, path, grace, os, errors)
    for kind in ("init_containers", "containers"):
        for index, container in enumerate(getattr(spec, kind)):
            security = container.security_context
            if security is not None and security.proc_mount == "Unmasked" and spec.host_users is not False:
                where = f"spec.{json_name(kind)}[{index}].securityContext.procMount"
                errors.invalid(where, "Unmasked", "`hostUsers` must be false to use `Unmasked`")
    # Taken before ephemeral containers are added: the target of one must not be ephemeral itself
    # (validateEphemeralContainers).
    targets = frozenset(seen)
    for index, ephemeral in enumerate(spec.ephemeral_containers):
        path = f"spec.ephemeralContainers[{index}]"
        _container(ephemeral, path, seen, errors)
        _mounts(ephemeral, path, volumes, errors)
        _ephemeral(ephemeral, path, targets, errors)
    _host_ports(spec, errors)
    _env_files(spec, volumes, errors)


def _restart_rules(container: Container, path: str, errors: FieldErrors) -> None:
    """Rules by exit code (KEP-5307)."""
    rules = container.restart_policy_rules
    if rules and container.restart_policy is None:
        errors.add(f"{path}.restartPolicy", "Required value: must specify restartPolicy when restart rules are used")
    if len(rules) > _MAX_RULES:
        errors.add(f"{path}.restartPolicyRules", f"Too many: must have at most {_MAX_RULES} items")
    for index, rule in enumerate(rules):
        where = f"{path}.restartPolicyRules[{index}]"
        if rule.action not in _RULE_ACTIONS:
            errors.unsupported(f"{where}.action", rule.action, _RULE_ACTIONS)
        if rule.exit_codes is None:
            errors.add(f"{where}.exitCodes", "Required value: must be specified")
        elif rule.exit_codes.operator not in _RULE_OPERATORS:
            errors.unsupported(f"{where}.exitCodes.operator", rule.exit_codes.operator, _RULE_OPERATORS)
        elif len(rule.exit_codes.values) > _MAX_EXIT_CODES:
            errors.add(f"{where}.exitCodes.values", f"Too many: must have at most {_MAX_EXIT_CODES} items")


def _ephemeral(container: EphemeralContainer, path: str, targets: Collection[str], errors: FieldErrors) -> None:
    target = container.target_container_name
    if target and target not in targets:
        errors.not_found(f"{path}.targetContainerName", target)
    for name in _NOT_EPHEMERAL:
        if getattr(container, name):
            errors.forbidden(f"{path}.{json_name(name)}", "cannot be set for an Ephemeral Container")
    if container.resources != ResourceRequirements():
        errors.forbidden(f"{path}.resources", "cannot be set for an Ephemeral Container")
    for index, mount in enumerate(container.volume_mounts):
        for name in ("sub_path", "sub_path_expr"):
            if getattr(mount, name):
                where = f"{path}.volumeMounts[{index}].{json_name(name)}"
                errors.forbidden(where, "cannot be set for an Ephemeral Container")


def _env_files(spec: PodSpec, volumes: dict[str, Volume], errors: FieldErrors) -> None:
    """Files of variables are in volumes of the pod that containers write (KEP-3721)."""
    for kind in ("init_containers", "containers", "ephemeral_containers"):
        for number, container in enumerate(getattr(spec, kind)):
            for index, variable in enumerate(container.env):
                reference = None if variable.value_from is None else variable.value_from.file_key_ref
                if reference is None:
                    continue
                path = f"spec.{json_name(kind)}[{number}].env[{index}].valueFrom.fileKeyRef"
                if errors.required(f"{path}.key", reference.key) and (why := names.env_name(reference.key)):
                    errors.invalid(f"{path}.key", reference.key, why)
                if errors.required(f"{path}.path", reference.path) and (why := inner_path(reference.path)):
                    errors.invalid(f"{path}.path", reference.path, why)
                if reference.volume_name not in volumes:
                    errors.not_found(f"{path}.volumeName", reference.volume_name)
                elif volumes[reference.volume_name].empty_dir is None:
                    why = "referenced volume must be of type emptyDir"
                    errors.invalid(f"{path}.volumeName", reference.volume_name, why)


def _container(container: Container | EphemeralContainer, path: str, seen: set[str], errors: FieldErrors) -> None:
    if errors.required(f"{path}.name", container.name):
        if why := names.dns_label(container.name):
            errors.invalid(f"{path}.name", container.name, why)
        if container.name in seen:
            errors.duplicate(f"{path}.name", container.name)
        seen.add(container.name)
    if errors.required(f"{path}.image", container.image) and container.image != container.image.strip():
        errors.invalid(f"{path}.image", container.image, "must not have leading or trailing whitespace")
    if not container.termination_message_path.startswith("/"):
        errors.invalid(f"{path}.terminationMessagePath", container.termination_message_path, "must be an absolute path")
    _ports(container, path, errors)
    for index, variable in enumerate(container.env):
        _env(variable, f"{path}.env[{index}]", errors)
    for index, source in enumerate(container.env_from):
        where = f"{path}.envFrom[{index}]"
        given = [ref for ref in (source.config_map_ref, source.secret_ref) if ref is not None]
        if len(given) != 1:
            errors.add(where, "Invalid value: must name exactly one of configMapRef and secretRef")
        elif not given[0].name:
            errors.add(where, "Required value: name")
        if source.prefix and (why := names.env_name(source.prefix)):
            errors.invalid(f"{where}.prefix", source.prefix, why)
    _resources(container.resources, f"{path}.resources", errors)
    if container.security_context is not None:
        _security(container.security_context, f"{path}.securityContext", errors)


def _ports(container: Container | EphemeralContainer, path: str, errors: FieldErrors) -> None:
    seen: set[str] = set()
    for index, port in enumerate(container.ports):
        where = f"{path}.ports[{index}]"
        if port.name:
            if why := names.port_name(port.name):
                errors.invalid(f"{where}.name", port.name, why)
            if port.name in seen:
                errors.duplicate(f"{where}.name", port.name)
            seen.add(port.name)
        if port.container_port == 0:
            errors.required(f"{where}.containerPort", 0)
        elif not 1 <= port.container_port <= 65535:
            errors.invalid(f"{where}.containerPort", port.container_port, "must be between 1 and 65535")
        if not 0 <= port.host_port <= 65535:
            errors.invalid(f"{where}.hostPort", port.host_port, "must be between 1 and 65535")


def _host_ports(spec: PodSpec, errors: FieldErrors) -> None:
    taken: set[str] = set()
    for number, container in enumerate(spec.containers):
        for index, port in enumerate(container.ports):
            if not port.host_port:
                continue
            text = f"{port.protocol}/{port.host_ip}/{port.host_port}"
            if text in taken:
                errors.duplicate(f"spec.containers[{number}].ports[{index}].hostPort", text)
            taken.add(text)
    if not spec.host_network:
        return
    for number, container in enumerate(spec.containers):
        for index, port in enumerate(container.ports):
            if port.host_port != port.container_port:
                where = f"spec.containers[{number}].ports[{index}].hostPort"
                errors.invalid(where, port.host_port, "must match containerPort when hostNetwork is true")


def _env(variable: EnvVar, path: str, errors: FieldErrors) -> None:
    if errors.required(f"{path}.name", variable.name) and (why := names.env_name(variable.name)):
        errors.invalid(f"{path}.name", variable.name, why)
    source = variable.value_from
    if source is None:
        return
    given = [name for name in _SOURCES if getattr(source, name) is not None]
    if len(given) != 1:
        errors.add(f"{path}.valueFrom", "Invalid value: must name exactly one source")
        return
    if variable.value:
        errors.invalid(f"{path}.valueFrom", json_name(given[0]), "may not be specified when value is not empty")
    for name in ("config_map_key_ref", "secret_key_ref"):
        reference = getattr(source, name)
        if reference is not None:
            errors.required(f"{path}.valueFrom.{json_name(name)}.name", reference.name)
            errors.required(f"{path}.valueFrom.{json_name(name)}.key", reference.key)
    if source.resource_field_ref is not None:
        validate_resource_ref(source.resource_field_ref, f"{path}.valueFrom.resourceFieldRef", errors)
    if source.field_ref is not None:
        field_path = source.field_ref.field_path
        keyed = field_path.startswith(_KEYED) and field_path.endswith("']")
        if field_path not in FIELD_PATHS and not keyed:
            errors.unsupported(f"{path}.valueFrom.fieldRef.fieldPath", field_path, FIELD_PATHS)


def validate_resource_ref(reference: ResourceFieldSelector, path: str, errors: FieldErrors) -> None:
    """Note what is wrong with a reference to a limit or a request."""
    resource = reference.resource
    if not errors.required(f"{path}.resource", resource):
        return
    if not resource.startswith(("limits.hugepages-", "requests.hugepages-")) and resource not in RESOURCE_FIELDS:
        errors.unsupported(f"{path}.resource", resource, RESOURCE_FIELDS)
    if reference.divisor and quantity.parse(reference.divisor) < 0:
        errors.invalid(f"{path}.divisor", reference.divisor, "must be 0 or greater")


def _mounts(
    container: Container | EphemeralContainer, path: str, volumes: dict[str, Volume], errors: FieldErrors
) -> None:
    taken: set[str] = set()
    for index, mount in enumerate(container.volume_mounts):
        where = f"{path}.volumeMounts[{index}]"
        if errors.required(f"{where}.name", mount.name) and mount.name not in volumes:
            errors.not_found(f"{where}.name", mount.name)
        if errors.required(f"{where}.mountPath", mount.mount_path):
            if mount.mount_path in taken:
                errors.invalid(f"{where}.mountPath", mount.mount_path, "must be unique")
            taken.add(mount.mount_path)
            if ".." in mount.mount_path.split("/"):
                errors.invalid(f"{where}.mountPath", mount.mount_path, "must not contain '..'")
        _sub_path(mount, where, errors)
        privileged = container.security_context is not None and container.security_context.privileged
        if mount.mount_propagation == "Bidirectional" and not privileged:
            errors.forbidden(f"{where}.mountPropagation", "Bidirectional is only for privileged containers")


def _sub_path(mount: VolumeMount, path: str, errors: FieldErrors) -> None:
    if mount.sub_path and mount.sub_path_expr:
        errors.invalid(f"{path}.subPathExpr", mount.sub_path_expr, "subPathExpr and subPath are mutually exclusive")
    for name in ("sub_path", "sub_path_expr"):
        value = getattr(mount, name)
        if value and (why := descending_path(value)):
            errors.invalid(f"{path}.{json_name(name)}", value, why)


def _resources(resources: ResourceRequirements, path: str, errors: FieldErrors) -> None:
    for kind in ("limits", "requests"):
        for name, text in getattr(resources, kind).items():
            if quantity.parse(text) < 0:
                errors.invalid(f"{path}.{kind}[{name}]", text, "must be 0 or greater")
    for name, limit in resources.limits.items():
        request = resources.requests.get(name, limit)
        if quantity.parse(request) > quantity.parse(limit):
            errors.invalid(
                f"{path}.requests[{name}]", request, f"must be less than or equal to {name} limit of {limit}"
            )


def _security(security: SecurityContext, path: str, errors: FieldErrors) -> None:
    for field, value in (("runAsUser", security.run_as_user), ("runAsGroup", security.run_as_group)):
        if value is not None and not 0 <= value <= _MAX_ID:
            errors.invalid(f"{path}.{field}", value, f"must be between 0 and {_MAX_ID}")
    if security.allow_privilege_escalation is False:
        if security.privileged:
            errors.invalid(f"{path}.allowPrivilegeEscalation", "false", "cannot be false when privileged is true")
        # kube-apiserver looks for CAP_SYS_ADMIN alone (ValidateSecurityContext); to the agent both names are one.
        if security.capabilities and {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(security.capabilities.add):
            errors.invalid(f"{path}.allowPrivilegeEscalation", "false", "cannot be false when SYS_ADMIN is added")
    validate_profiles(security.seccomp_profile, security.apparmor_profile, path, errors)


def validate_profiles(
    seccomp: SeccompProfile | None, apparmor: AppArmorProfile | None, path: str, errors: FieldErrors
) -> None:
    """Note what is wrong with the profiles of a security context."""
    for name, profile in (("seccompProfile", seccomp), ("appArmorProfile", apparmor)):
        if profile is None:
            continue
        where, file = f"{path}.{name}", profile.localhost_profile
        if not errors.required(f"{where}.type", profile.type):
            continue
        if profile.type == "Localhost":
            named = errors.required(f"{where}.localhostProfile", file)
            if named and name == "seccompProfile" and (why := descending_path(file or "")):
                errors.invalid(f"{where}.localhostProfile", file, why)
        elif file:
            errors.invalid(f"{where}.localhostProfile", file, "can only be set when type is Localhost")
