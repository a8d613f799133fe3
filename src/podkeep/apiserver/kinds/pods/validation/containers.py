"""Validation of containers: init, regular and ephemeral ones (core/validation: ``validateContainers``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.api.validation.containers import FIELD_PATHS, RESOURCE_FIELDS
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.field_rules import named, required
from podkeep.apiserver.kinds.pods.validation import fields as pod_fields
from podkeep.apiserver.kinds.pods.validation import handlers as pod_handlers
from podkeep.apiserver.kinds.pods.validation import mounts as pod_mounts
from podkeep.apiserver.kinds.pods.validation import requirements as pod_requirements
from podkeep.apiserver.kinds.pods.validation import security as pod_security
from podkeep.apiserver.kinds.pods.validation.fields import Context

PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
_RESIZED = ("cpu", "memory")
_RESIZE_POLICIES = ("NotRequired", "RestartContainer")
_RESTART_POLICIES = ("Always", "Never", "OnFailure")
_RULE_ACTIONS = ("Restart", "RestartAllContainers")
_RULE_OPERATORS = ("In", "NotIn")
_MAX_RULES = 20
_MAX_EXIT_CODES = 255
_NOT_EPHEMERAL = (
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
)
_BYTES = ("1", *(f"1{suffix}" for suffix in ("k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")))
_DIVISORS = {
    "cpu": ("cpu", ("1m", "1")),
    "memory": ("memory", _BYTES),
    "ephemeral-storage": ("local ephemeral storage", _BYTES),
}
"""By resource: what messages call it, and the units that it can be told in."""
VOLUME_FIELDS = ("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid")
_FIELDS = frozenset(FIELD_PATHS + VOLUME_FIELDS) | {
    "spec.restartPolicy",
    "spec.schedulerName",
    "status.phase",
    "spec.host",
}
"""Field labels of pods; no other name can even be converted."""
_ENV_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")

Values = Mapping[str, Any]


def validate_containers(context: Context, path: str) -> None:
    """Note every rule that the containers of a pod or template break."""
    spec, errors = context.spec, context.errors
    regular, init = spec.get("containers", ()), spec.get("initContainers", ())
    ephemeral = spec.get("ephemeralContainers", ())
    errors.required(f"{path}.containers", regular)
    seen: set[str] = set()
    for index, container in enumerate(regular):
        where = f"{path}.containers[{index}]"
        _common(container, where, context)
        _unique_name(container, where, seen, errors)
        pod_handlers.validate_handlers(container, where, context)
        _restart_policy(container, where, errors)
    _host_ports(regular, f"{path}.containers", errors)
    for index, container in enumerate(init):
        where = f"{path}.initContainers[{index}]"
        _common(container, where, context)
        _unique_name(container, where, seen, errors)
        _init(container, where, context)
        # Each alone, as kube-apiserver does: init containers run one after the other.
        _host_ports([container], f"{path}.initContainers", errors)
    # Before the ephemeral ones: none of these can be the target of another.
    targets = frozenset(seen)
    for index, container in enumerate(ephemeral):
        where = f"{path}.ephemeralContainers[{index}]"
        _common(container, where, context)
        _image_space(container, where, errors)
        _unique_name(container, where, seen, errors)
        _ephemeral(container, where, targets, errors)
    if context.is_pod:
        for group in ("containers", "initContainers"):
            for index, container in enumerate(spec.get(group, ())):
                _image_space(container, f"{path}.{group}[{index}]", errors)


def _image_space(container: Values, path: str, errors: FieldErrors) -> None:
    image = container.get("image", "")
    if image != image.strip():
        errors.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")


def _unique_name(container: Values, path: str, seen: set[str], errors: FieldErrors) -> None:
    name = container.get("name", "")
    if name in seen:
        errors.duplicate(f"{path}.name", name)
    elif name:
        seen.add(name)


def _common(container: Values, path: str, context: Context) -> None:
    """Note what is wrong with the fields that every container has."""
    errors = context.errors
    pod_fields.name(f"{path}.name", container.get("name", ""), errors)
    errors.required(f"{path}.image", container.get("image"))
    policy = container.get("terminationMessagePolicy", "")
    field_rules.one_of(f"{path}.terminationMessagePolicy", policy, _MESSAGE_POLICIES, errors)
    _ports(container.get("ports", ()), f"{path}.ports", errors)
    for index, variable in enumerate(container.get("env", ())):
        _variable(variable, f"{path}.env[{index}]", context)
    for index, source in enumerate(container.get("envFrom", ())):
        _env_from(source, index, f"{path}.envFrom", errors)
    pod_mounts.validate_mounts(container, path, context)
    field_rules.one_of(f"{path}.imagePullPolicy", container.get("imagePullPolicy", ""), PULL_POLICIES, errors)
    pod_requirements.validate_container(container.get("resources", {}), f"{path}.resources", context)
    _resize_policy(container.get("resizePolicy", ()), f"{path}.resizePolicy", context)
    if "securityContext" in container:
        pod_security.validate_container(container["securityContext"], f"{path}.securityContext", context)


def _ports(ports: Sequence[Values], path: str, errors: FieldErrors) -> None:
    seen: set[str] = set()
    for index, port in enumerate(ports):
        where = f"{path}[{index}]"
        if name := port.get("name", ""):
            if why := names.port_name(name):
                errors.invalid(f"{where}.name", name, why)
            elif name in seen:
                errors.duplicate(f"{where}.name", name)
            seen.add(name)
        number = port.get("containerPort", 0)
        if errors.required(f"{where}.containerPort", number):
            pod_fields.in_range(f"{where}.containerPort", number, 1, 65_535, errors)
        if host_port := port.get("hostPort", 0):
            pod_fields.in_range(f"{where}.hostPort", host_port, 1, 65_535, errors)
        field_rules.one_of(f"{where}.protocol", port.get("protocol", ""), field_rules.PROTOCOLS, errors)


def _host_ports(containers: Sequence[Values], path: str, errors: FieldErrors) -> None:
    """Note ports of the node that are asked for twice."""
    seen: set[str] = set()
    for number, container in enumerate(containers):
        for index, port in enumerate(container.get("ports", ())):
            if not port.get("hostPort"):
                continue
            text = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{port['hostPort']}"
            if text in seen:
                errors.duplicate(f"{path}[{number}].ports[{index}].hostPort", text)
            seen.add(text)


def validate_host_network_ports(context: Context, path: str) -> None:
    """Note ports that cannot be on the node's network; in a template they may be left out."""
    if not context.spec.get("hostNetwork"):
        return
    for number, container in enumerate(context.spec.get("containers", ())):
        for index, port in enumerate(container.get("ports", ())):
            host_port = port.get("hostPort", 0)
            if (context.is_pod or host_port) and host_port != port.get("containerPort", 0):
                where = f"{path}.containers[{number}].ports[{index}].hostPort"
                context.errors.invalid(where, host_port, "must match `containerPort` when `hostNetwork` is true")


def _variable(variable: Values, path: str, context: Context) -> None:
    errors = context.errors
    name = variable.get("name", "")
    if errors.required(f"{path}.name", name):
        named(f"{path}.name", name, names.env_name(name), errors)
    source = variable.get("valueFrom")
    if source is None:
        return
    where = f"{path}.valueFrom"
    given = [kind for kind in _ENV_SOURCES if kind in source]
    for kind in given:
        _ENV_RULES[kind](source[kind], f"{where}.{kind}", context)
    if not given:
        why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        errors.invalid(where, "", why)
    elif variable.get("value"):
        errors.invalid(where, "", "may not be specified when `value` is not empty")
    elif len(given) > 1:
        errors.invalid(where, "", "may not have more than one field specified at a time")


def validate_field_ref(reference: Values, path: str, known: Sequence[str], errors: FieldErrors) -> None:
    """Note what is wrong with a reference to a field of the pod."""
    version, field_path = reference.get("apiVersion", ""), reference.get("fieldPath", "")
    if not errors.required(f"{path}.apiVersion", version) or not errors.required(f"{path}.fieldPath", field_path):
        return
    label, bracket, rest = field_path.partition("['")
    subscripted = bool(label and bracket) and rest.endswith("']")
    if not subscripted:
        label = field_path
    if why := _label_problem(version, field_path, label if subscripted else ""):
        errors.invalid(f"{path}.fieldPath", field_path, f"error converting fieldPath: {why}")
    elif label == "metadata.annotations" and subscripted:
        key = rest.removesuffix("']").lower()
        named(path, key, names.label_key_problems(key), errors)
    elif subscripted:
        key = rest.removesuffix("']")
        named(path, key, names.label_key_problems(key), errors)
    else:
        pod_fields.supported(f"{path}.fieldPath", label, known, errors)


def _label_problem(version: str, field_path: str, subscripted: str) -> str:
    if version != "v1":
        return f"unsupported pod version: {version}"
    if subscripted:
        keyed = subscripted in ("metadata.annotations", "metadata.labels")
        return "" if keyed else f"field label does not support subscript: {field_path}"
    return "" if field_path in _FIELDS else f"field label not supported: {field_path}"


def validate_resource_ref(reference: Values, path: str, errors: FieldErrors, *, in_volume: bool) -> None:
    """Note what is wrong with a reference to a container's limit or request."""
    resource = reference.get("resource", "")
    huge = resource.startswith(("limits.hugepages-", "requests.hugepages-"))
    if in_volume and not reference.get("containerName"):
        errors.required(f"{path}.containerName", "")
    elif not resource:
        errors.required(f"{path}.resource", "")
    elif not huge:
        pod_fields.supported(f"{path}.resource", resource, RESOURCE_FIELDS, errors)
    divisor = reference.get("divisor", "0")
    shown, units = ("hugepages", _BYTES) if huge else _DIVISORS.get(resource.partition(".")[2], ("", ()))
    if divisor != "0" and units and divisor not in units:
        listed = " and ".join(units) if len(units) == 2 else ", ".join(units)
        why = f"only divisor's values {listed} are supported with the {shown} resource"
        errors.invalid(f"{path}.divisor", resource, why)


def _env_field(reference: Values, path: str, context: Context) -> None:
    validate_field_ref(reference, path, FIELD_PATHS, context.errors)


def _env_resource(reference: Values, path: str, context: Context) -> None:
    validate_resource_ref(reference, path, context.errors, in_volume=False)


def _env_key(reference: Values, path: str, context: Context) -> None:
    errors = context.errors
    name, key = reference.get("name", ""), reference.get("key", "")
    named(f"{path}.name", name, names.dns_subdomain(name), errors)
    if errors.required(f"{path}.key", key):
        named(f"{path}.key", key, names.config_key(key), errors)


def _env_file(reference: Values, path: str, context: Context) -> None:
    errors = context.errors
    key, volume, inner = (reference.get(name, "") for name in ("key", "volumeName", "path"))
    if errors.required(f"{path}.key", key):
        named(f"{path}.key", key, names.env_name(key), errors)
    pod_fields.name(f"{path}.volumeName", volume, errors)
    if errors.required(f"{path}.path", inner):
        pod_fields.no_backsteps(f"{path}.path", inner, errors)
    if volume not in context.volumes:
        errors.not_found(f"{path}.volumeName", volume)
    elif "emptyDir" not in context.volumes[volume]:
        errors.invalid(f"{path}.volumeName", volume, "referenced volume must be of type emptyDir")


_ENV_RULES = {
    "fieldRef": _env_field,
    "resourceFieldRef": _env_resource,
    "configMapKeyRef": _env_key,
    "secretKeyRef": _env_key,
    "fileKeyRef": _env_file,
}


def _env_from(source: Values, index: int, path: str, errors: FieldErrors) -> None:
    prefix = source.get("prefix", "")
    if prefix:
        named(f"{path}[{index}].prefix", prefix, names.env_name(prefix), errors)
    given = [kind for kind in ("configMapRef", "secretRef") if kind in source]
    for kind in given:
        where = f"{path}[{index}].{kind}.name"
        name = source[kind].get("name", "")
        if errors.required(where, name):
            # Upstream takes a prefix of a name here.
            named(where, name, names.dns_subdomain(name.removesuffix("-") or name), errors)
    if not given:
        errors.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")
    elif len(given) > 1:
        errors.invalid(path, "", "may not have more than one field specified at a time")


def _resize_policy(policies: Sequence[Values], path: str, context: Context) -> None:
    errors = context.errors
    seen: set[str] = set()
    for index, given in enumerate(policies):
        name, policy = given.get("resourceName", ""), given.get("restartPolicy", "")
        if name in seen:
            errors.duplicate(f"{path}[{index}]", name)
        seen.add(name)
        field_rules.one_of(path, name, _RESIZED, errors)
        field_rules.one_of(path, policy, _RESIZE_POLICIES, errors)
        if context.spec.get("restartPolicy") == "Never" and policy != "NotRequired":
            errors.invalid(path, policy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")


def _restart_policy(container: Values, path: str, errors: FieldErrors) -> None:
    policy, rules = container.get("restartPolicy"), container.get("restartPolicyRules", ())
    if policy is not None:
        pod_fields.supported(f"{path}.restartPolicy", policy, _RESTART_POLICIES, errors)
    elif rules:
        _no_policy(path, errors)
    field_rules.too_many(f"{path}.restartPolicyRules", len(rules), _MAX_RULES, errors)
    for index, rule in enumerate(rules):
        where = f"{path}.restartPolicyRules[{index}]"
        pod_fields.supported(f"{where}.action", rule.get("action", ""), _RULE_ACTIONS, errors)
        codes = rule.get("exitCodes")
        if codes is None:
            required(f"{where}.exitCodes", "must be specified", errors)
            continue
        pod_fields.supported(f"{where}.exitCodes.operator", codes.get("operator", ""), _RULE_OPERATORS, errors)
        field_rules.too_many(f"{where}.exitCodes.values", len(codes.get("values", ())), _MAX_EXIT_CODES, errors)


def _no_policy(path: str, errors: FieldErrors) -> None:
    required(f"{path}.restartPolicy", "must specify restartPolicy when restart rules are used", errors)


def is_sidecar(container: Values) -> bool:
    """Return whether an init container goes on running beside the others (KEP-753)."""
    return container.get("restartPolicy") == "Always"


def _init(container: Values, path: str, context: Context) -> None:
    errors = context.errors
    if "restartPolicy" in container:
        _restart_policy(container, path, errors)
    elif container.get("restartPolicyRules"):
        _no_policy(path, errors)
    if is_sidecar(container):
        pod_handlers.validate_handlers(container, path, context)
        return
    for name in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
        if name in container:
            errors.forbidden(f"{path}.{name}", "may not be set for init containers without restartPolicy=Always")
    for index, given in enumerate(container.get("resizePolicy", ())):
        if given.get("restartPolicy") == "RestartContainer":
            why = "must not be set to 'RestartContainer' for non-sidecar initContainers"
            errors.invalid(f"{path}.resizePolicy[{index}].restartPolicy", "RestartContainer", why)


def _ephemeral(container: Values, path: str, targets: Collection[str], errors: FieldErrors) -> None:
    target = container.get("targetContainerName", "")
    if target and target not in targets:
        errors.not_found(f"{path}.targetContainerName", target)
    why = "cannot be set for an Ephemeral Container"
    for name in _NOT_EPHEMERAL:
        if container.get(name) or (name in container and name not in ("ports", "resources")):
            errors.forbidden(f"{path}.{name}", why)
    for index, mount in enumerate(container.get("volumeMounts", ())):
        for name in ("subPath", "subPathExpr"):
            if mount.get(name):
                errors.forbidden(f"{path}.volumeMounts[{index}].{name}", why)
