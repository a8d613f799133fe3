"""Validation of pods' specs and annotations (core/validation: ``ValidatePodSpec``), for pods and their templates."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from podkeep.api import class_resources, names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.field_rules import named, required
from podkeep.apiserver.kinds.pods import defaults as pod_defaults
from podkeep.apiserver.kinds.pods.validation import containers as pod_containers
from podkeep.apiserver.kinds.pods.validation import fields as pod_fields
from podkeep.apiserver.kinds.pods.validation import requirements as pod_requirements
from podkeep.apiserver.kinds.pods.validation import scheduling as pod_scheduling
from podkeep.apiserver.kinds.pods.validation import security as pod_security
from podkeep.apiserver.kinds.pods.validation.fields import MAX_INT32, MIRROR, Context, containers
from podkeep.apiserver.kinds.pods.validation.volumes import validate_volumes
from podkeep.apiserver.kinds.services import addresses
from podkeep.apiserver.patch.values import equal
from podkeep.base.text.printable import listed

RESTART_POLICIES = ("Always", "OnFailure", "Never")
DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
PREEMPTION_POLICIES = ("PreemptLowerPriority", "Never")
SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
SECCOMP_CONTAINER = "container.seccomp.security.alpha.kubernetes.io/"
APPARMOR_CONTAINER = "container.apparmor.security.beta.kubernetes.io/"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_COST = re.compile(r"0|-?[0-9]{1,10}")
_CLASSES = ".resources.alpha.kubernetes.io/"
_MAX_SHOWN = 20
_MAX_NAMESERVERS = 3
_MAX_SEARCHES = 32
_MAX_SEARCH_CHARACTERS = 2_048
_MAX_HOSTNAME = 64

Values = Mapping[str, Any]


def validate_pod_spec(spec: Values, path: str, errors: FieldErrors, *, metadata: Values, is_pod: bool) -> None:
    """Note every rule that a defaulted spec breaks.

    :param metadata: of the pod, or of the template.
    """
    volumes = validate_volumes(
        spec.get("volumes", ()),
        f"{path}.volumes",
        errors,
        pod_name=metadata.get("name", "") if is_pod else "",
        is_pod=is_pod,
    )
    claims = frozenset(claim["name"] for claim in spec.get("resourceClaims", ()) if claim.get("name"))
    context = Context(
        spec=spec,
        errors=errors,
        is_pod=is_pod,
        volumes=volumes,
        claims=claims,
        claims_shown=f": {listed(sorted(claims), _MAX_SHOWN)}" if claims else " which is empty",
    )
    if "terminationGracePeriodSeconds" not in spec:
        errors.required(f"{path}.terminationGracePeriodSeconds", "")
    if "resourceClaims" in spec:
        _resource_claims(spec["resourceClaims"], metadata if is_pod else {}, f"{path}.resourceClaims", errors)
    pod_containers.validate_containers(context, path)
    pod_requirements.validate_pod(context, path)
    pod_containers.validate_host_network_ports(context, path)
    field_rules.one_of(f"{path}.restartPolicy", spec.get("restartPolicy", ""), RESTART_POLICIES, errors)
    field_rules.one_of(f"{path}.dnsPolicy", spec.get("dnsPolicy", ""), DNS_POLICIES, errors)
    pod_security.validate_pod(context, path)
    pod_security.validate_host_process(context, path)
    pod_security.validate_host_users(context, path)
    _dns(spec, f"{path}.dnsConfig", errors)
    _placement(spec, path, errors)
    _names(spec, path, errors)
    for index, alias in enumerate(spec.get("hostAliases", ())):
        where = f"{path}.hostAliases[{index}]"
        addresses.validate(f"{where}.ip", alias.get("ip", ""), errors)
        for number, hostname in enumerate(alias.get("hostnames", ())):
            named(f"{where}.hostnames[{number}]", hostname, names.dns_subdomain(hostname), errors)
    pod_fields.in_range(f"{path}.activeDeadlineSeconds", spec.get("activeDeadlineSeconds"), 1, MAX_INT32, errors)
    if "overhead" in spec:
        pod_requirements.validate_overhead(spec["overhead"], f"{path}.overhead", errors)
    pod_security.validate_os(context, path)


def _placement(spec: Values, path: str, errors: FieldErrors) -> None:
    field_rules.labels(spec.get("nodeSelector", {}), f"{path}.nodeSelector", errors)
    if "affinity" in spec:
        pod_scheduling.validate_affinity(spec["affinity"], f"{path}.affinity", errors)
    if tolerations := spec.get("tolerations"):
        pod_scheduling.validate_tolerations(tolerations, f"{path}.tolerations", errors)
    if constraints := spec.get("topologySpreadConstraints"):
        pod_scheduling.validate_spread(constraints, f"{path}.topologySpreadConstraints", errors)
    for index, gate in enumerate(spec.get("readinessGates", ())):
        kind = gate.get("conditionType", "")
        named(f"{path}.readinessGates[{index}].conditionType", kind, names.label_key_problems(kind), errors)
    seen: set[str] = set()
    for index, gate in enumerate(spec.get("schedulingGates", ())):
        where, name = f"{path}.schedulingGates[{index}]", gate.get("name", "")
        named(where, name, names.label_key_problems(name), errors)
        if name in seen:
            errors.duplicate(where, name)
        seen.add(name)
    if "preemptionPolicy" in spec:
        policy = spec["preemptionPolicy"]
        field_rules.one_of(f"{path}.preemptionPolicy", policy, PREEMPTION_POLICIES, errors)
    if "schedulingGroup" in spec:
        where = f"{path}.schedulingGroup.podGroupName"
        group = spec["schedulingGroup"].get("podGroupName")
        if group is None:
            errors.invalid(where, None, "must specify one of: `podGroupName`")
        else:
            named(where, group, names.dns_subdomain(group), errors)


def _names(spec: Values, path: str, errors: FieldErrors) -> None:
    for field in ("serviceAccountName", "nodeName", "priorityClassName"):
        if value := spec.get(field):
            named(f"{path}.{field}", value, names.dns_subdomain(value), errors)
    for field in ("hostname", "subdomain"):
        if value := spec.get(field):
            named(f"{path}.{field}", value, names.dns_label(value), errors)
    if "runtimeClassName" in spec:
        value = spec["runtimeClassName"]
        named(f"{path}.runtimeClassName", value, names.dns_subdomain(value), errors)
    if "hostnameOverride" in spec:
        where, value = f"{path}.hostnameOverride", spec["hostnameOverride"]
        if spec.get("setHostnameAsFQDN"):
            errors.forbidden(where, "may not be specified when setHostnameAsFQDN is true")
        if spec.get("hostNetwork"):
            errors.forbidden(where, "may not be specified when hostNetwork is true")
        field_rules.too_long(where, value, _MAX_HOSTNAME, errors)
        named(where, value, names.dns_subdomain(value), errors)


def _dns(spec: Values, path: str, errors: FieldErrors) -> None:
    config = spec.get("dnsConfig")
    servers = (config or {}).get("nameservers", ())
    if spec.get("dnsPolicy") == "None" and not servers:
        if config is None:
            required(path, "must provide `dnsConfig` when `dnsPolicy` is None", errors)
        else:
            why = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            required(f"{path}.nameservers", why, errors)
        return
    if config is None:
        return
    if len(servers) > _MAX_NAMESERVERS:
        errors.invalid(f"{path}.nameservers", servers, f"must not have more than {_MAX_NAMESERVERS} nameservers")
    for index, server in enumerate(servers):
        addresses.validate(f"{path}.nameservers[{index}]", server, errors)
    searches = config.get("searches", ())
    if len(searches) > _MAX_SEARCHES:
        errors.invalid(f"{path}.searches", searches, f"must not have more than {_MAX_SEARCHES} search paths")
    if len(" ".join(searches)) > _MAX_SEARCH_CHARACTERS:
        why = f"must not have more than {_MAX_SEARCH_CHARACTERS} characters (including spaces) in the search list"
        errors.invalid(f"{path}.searches", searches, why)
    for index, search in enumerate(searches):
        if search != ".":
            domain = search.removesuffix(".")
            named(f"{path}.searches[{index}]", domain, pod_fields.search_domain(domain), errors)
    for index, option in enumerate(config.get("options", ())):
        if not option.get("name"):
            required(f"{path}.options[{index}]", "must not be empty", errors)


def _resource_claims(claims: Sequence[Values], metadata: Values, path: str, errors: FieldErrors) -> None:
    if claims and MIRROR in metadata.get("annotations", {}):
        errors.forbidden("[]", "static pods do not support resource claims")
        return
    seen: set[str] = set()
    kinds = ("resourceClaimName", "resourceClaimTemplateName")
    for index, claim in enumerate(claims):
        where, name = f"{path}[{index}]", claim.get("name", "")
        if name and name in seen:
            errors.duplicate(f"{where}.name", name)
        else:
            pod_fields.name(f"{where}.name", name, errors)
        seen.add(name)
        given = [kind for kind in kinds if kind in claim]
        if len(given) > 1:
            why = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            errors.invalid(where, claim, why)
        elif not given:
            errors.invalid(where, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
        for kind in given:
            named(f"{where}.{kind}", claim[kind], names.dns_subdomain(claim[kind]), errors)


def validate_annotations(
    annotations: Mapping[str, str], spec: Values, spec_path: str, path: str, errors: FieldErrors
) -> None:
    """Note what is wrong with the annotations that mean something for a pod.

    :param spec_path: of the spec; of its containers only.
    :param path: of the annotations.
    """
    if MIRROR in annotations and not spec.get("nodeName"):
        why = "must set spec.nodeName if mirror pod annotation is set"
        errors.invalid(f"{path}[{MIRROR}]", annotations[MIRROR], why)
    cost = annotations.get(DELETION_COST, "0")
    # No plus sign and no leading zeros (upstream: GetDeletionCostFromPodAnnotations).
    if not _COST.fullmatch(cost) or not -MAX_INT32 - 1 <= int(cost) <= MAX_INT32 or (cost[0] == "0" and cost != "0"):
        errors.invalid(f"{path}[{DELETION_COST}]", cost, "must be a 32bit integer")
    for key, value in annotations.items():
        if key == SECCOMP_POD or key.startswith(SECCOMP_CONTAINER):
            _seccomp(value, f"{path}.{key}", errors)
    if any(key.startswith(APPARMOR_CONTAINER) for key in annotations):
        known = {container.get("name", "") for _, container in containers(spec, spec_path)}
        _apparmor(annotations, known, path, errors)
    if any(_CLASSES in key for key in annotations):
        named = [
            (where, container.get("name", ""), container.get("resources", {}).get("classes", {}))
            for where, container in containers(spec, spec_path)
        ]
        class_resources.validate_annotations(annotations, named, path, errors)


def _apparmor(annotations: Mapping[str, str], known: Collection[str], path: str, errors: FieldErrors) -> None:
    for key, profile in annotations.items():
        if not key.startswith(APPARMOR_CONTAINER):
            continue
        name = key.removeprefix(APPARMOR_CONTAINER)
        if name not in known:
            errors.invalid(f"{path}[{key}]", name, "container not found")
        if profile not in ("", "runtime/default", "unconfined") and not profile.startswith("localhost/"):
            errors.invalid(f"{path}[{key}]", profile, f'invalid AppArmor profile name: "{profile}"')


def _seccomp(profile: str, path: str, errors: FieldErrors) -> None:
    if profile.startswith("localhost/"):
        pod_fields.descending(path, profile.removeprefix("localhost/"), errors)
    elif profile not in ("runtime/default", "docker/default", "unconfined"):
        errors.invalid(path, profile, "must be a valid seccomp profile")


def validate_profiles_agree(annotations: Mapping[str, str], spec: Values, path: str, errors: FieldErrors) -> None:
    """Note seccomp and AppArmor profiles that an annotation and a field tell differently.

    :param path: of the spec.
    """
    if not any(key.startswith((SECCOMP_POD, SECCOMP_CONTAINER, APPARMOR_CONTAINER)) for key in annotations):
        return
    of_pod = spec.get("securityContext", {})
    if SECCOMP_POD in annotations and "seccompProfile" in of_pod:
        where = f"{path}.securityContext.seccompProfile"
        _agree(annotations[SECCOMP_POD], of_pod["seccompProfile"], "seccomp", where, errors)
    for where, container in containers(spec, path):
        own = container.get("securityContext", {})
        name = container.get("name", "")
        seccomp = own.get("seccompProfile")
        if seccomp is not None and SECCOMP_CONTAINER + name in annotations:
            text = annotations[SECCOMP_CONTAINER + name]
            _agree(text, seccomp, "seccomp", f"{where}.securityContext.seccompProfile", errors)
        apparmor = own.get("appArmorProfile", of_pod.get("appArmorProfile"))
        linux = spec.get("os", {}).get("name") != "windows"
        if apparmor is not None and linux and APPARMOR_CONTAINER + name in annotations:
            text = annotations[APPARMOR_CONTAINER + name]
            _agree(text, apparmor, "apparmor", f"{where}.securityContext.appArmorProfile", errors)


def _agree(annotation: str, profile: Values, kind: str, path: str, errors: FieldErrors) -> None:
    meant = {"unconfined": "Unconfined", "runtime/default": "RuntimeDefault"}
    if kind == "seccomp":
        meant["docker/default"] = "RuntimeDefault"
    said = "Localhost" if annotation.startswith("localhost/") else meant.get(annotation, "")
    # The field is wrong by itself, and that is told elsewhere.
    if profile.get("type") not in pod_security.PROFILES:
        return
    if said != profile.get("type"):
        errors.forbidden(f"{path}.type", f"{kind} type in annotation and field must match")
    elif said == "Localhost" and annotation.removeprefix("localhost/") != profile.get("localhostProfile"):
        errors.forbidden(f"{path}.localhostProfile", f"{kind} profile in annotation and field must match")


def apparmor_profile(annotation: str) -> dict[str, str] | None:
    """Return the profile that an annotation of older releases means; None: none."""
    if annotation == "unconfined":
        return {"type": "Unconfined"}
    if annotation == "runtime/default":
        return {"type": "RuntimeDefault"}
    name = annotation.removeprefix("localhost/")
    if name and name != annotation:
        return {"type": "Localhost", "localhostProfile": name}
    return None


def take_apparmor_annotations(pod: dict[str, Any]) -> None:
    """Give a new pod's containers the AppArmor profiles that only annotations tell (KEP-24)."""
    annotations = pod.get("metadata", {}).get("annotations", {})
    spec = pod["spec"]
    if spec.get("os", {}).get("name") == "windows":
        return
    of_pod = spec.get("securityContext", {}).get("appArmorProfile")
    for container in pod_defaults.containers(spec):
        key = APPARMOR_CONTAINER + container.get("name", "")
        if key not in annotations or "appArmorProfile" in container.get("securityContext", {}):
            continue
        found = apparmor_profile(annotations[key])
        if found is not None and not equal(found, of_pod):
            container.setdefault("securityContext", {})["appArmorProfile"] = found
