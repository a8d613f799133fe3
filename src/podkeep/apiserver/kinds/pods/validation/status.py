"""Validation of what agents write into a pod's status (core/validation: ``ValidatePodStatusUpdate``)."""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.field_rules import named, required
from podkeep.apiserver.kinds.pods.validation import fields as pod_fields
from podkeep.apiserver.kinds.pods.validation import spec as pod_spec
from podkeep.apiserver.kinds.pods.validation import updates as pod_updates
from podkeep.apiserver.kinds.pods.validation.fields import MAX_ID
from podkeep.apiserver.kinds.services import addresses
from podkeep.apiserver.meta.objects import Object

_SYSTEM_CONDITIONS = ("PodScheduled", "Ready", "Initialized")
_HEALTH = ("Healthy", "Unhealthy", "Unknown")
_GROUPS = {
    "containerStatuses": "containers",
    "initContainerStatuses": "initContainers",
    "ephemeralContainerStatuses": "ephemeralContainers",
}
_MAX_IMAGE = 256
_MAX_HEALTH_MESSAGE = 256

Values = Mapping[str, Any]


def prepare_status(new: Object, old: Object) -> None:
    """Take back what an agent cannot change, and keep what it left out and must not."""
    after, before = new["metadata"], old["metadata"]
    after.pop("ownerReferences", None)
    if "ownerReferences" in before:
        after["ownerReferences"] = before["ownerReferences"]
    status, was = new.setdefault("status", {}), old.get("status", {})
    for name in ("qosClass", "observedGeneration"):
        if not status.get(name) and was.get(name):
            status[name] = was[name]
    generations: dict[str, deque[int]] = {}
    for condition in was.get("conditions", ()):
        generations.setdefault(condition.get("type", ""), deque()).append(condition.get("observedGeneration", 0))
    for condition in status.get("conditions", ()):
        known = generations.get(condition.get("type", ""))
        generation = known.popleft() if known else 0
        if generation and not condition.get("observedGeneration"):
            condition["observedGeneration"] = generation


def validate_status(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note what is wrong with a status, or does not follow from the one before."""
    pod_updates.validate_annotations(new, old, errors)
    annotations = new["metadata"].get("annotations", {})
    if annotations != old["metadata"].get("annotations", {}):
        pod_spec.validate_annotations(annotations, old["spec"], "spec", "metadata.annotations", errors)
    spec, status, was = old["spec"], new.get("status", {}), old.get("status", {})
    for index, condition in enumerate(status.get("conditions", ())):
        where = f"status.conditions[{index}]"
        _generation(condition, where, errors)
        kind = condition.get("type", "")
        if kind not in _SYSTEM_CONDITIONS:
            named(f"{where}.Type", kind, names.label_key_problems(kind), errors)  # this path is kube-apiserver's
    nominated = status.get("nominatedNodeName", "")
    if nominated and nominated != was.get("nominatedNodeName", ""):
        named("status.nominatedNodeName", nominated, names.dns_subdomain(nominated), errors)
        if spec.get("nodeName"):
            why = "may not be set on pods that are already bound to a node"
            errors.forbidden("status.nominatedNodeName", why)
    _generation(status, "status", errors)
    if status.get("qosClass", "") != was.get("qosClass", ""):
        errors.invalid("status.qosClass", status.get("qosClass", ""), "field is immutable")
    for group, containers in _GROUPS.items():
        known = {container.get("name", ""): container for container in spec.get(containers, ())}
        if group == "ephemeralContainerStatuses":
            _transitions(status, was, group, {}, spec, errors)
        elif not _all_may_restart(spec):
            _transitions(status, was, group, known, spec, errors)
        for index, container in enumerate(status.get(group, ())):
            _container(container, f"status.{group}[{index}]", group, known, spec, errors)
    _claims(status.get("resourceClaimStatuses", ()), spec, errors)
    _addresses(status, was, "podIPs", errors)
    if hosts := status.get("hostIPs"):
        if hosts[0].get("ip", "") != status.get("hostIP", ""):
            errors.invalid("status.hostIPs[0].ip", hosts[0].get("ip", ""), "must be equal to `hostIP`")
        _addresses(status, was, "hostIPs", errors)


def _generation(value: Values, path: str, errors: FieldErrors) -> None:
    if value.get("observedGeneration", 0) < 0:
        number = value["observedGeneration"]
        errors.invalid(f"{path}.observedGeneration", number, "must be a non-negative integer")


def _transitions(
    status: Values, was: Values, group: str, known: Mapping[str, Values], spec: Values, errors: FieldErrors
) -> None:
    """Note containers that ended for good and run again; those that are not known never may."""
    running = {item.get("name", "") for item in status.get(group, ()) if "terminated" not in item.get("state", {})}
    for index, item in enumerate(was.get(group, ())):
        ended, name = item.get("state", {}).get("terminated"), item.get("name", "")
        if ended is None or name not in running:
            continue
        if name not in known or not _restarts(known[name], ended.get("exitCode", 0), spec):
            errors.forbidden(f"status.{group}[{index}].state", "may not be transitioned to non-terminated state")


def _all_may_restart(spec: Values) -> bool:
    """Return whether some container's end restarts all of them."""
    return any(
        rule.get("action") == "RestartAllContainers"
        for group in ("initContainers", "containers")
        for container in spec.get(group, ())
        for rule in container.get("restartPolicyRules", ())
    )


def _restarts(container: Values, exit_code: int, spec: Values) -> bool:
    policy = container.get("restartPolicy")
    for rule in container.get("restartPolicyRules", ()):
        codes = rule.get("exitCodes", {})
        # The first rule that fits decides (KEP-5307).
        if (exit_code in codes.get("values", ())) is (codes.get("operator") == "In"):
            if policy is not None and rule.get("action") == "Restart":
                return True
            break
    policy = policy or spec.get("restartPolicy", "Always")
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _container(
    container: Values, path: str, group: str, known: Mapping[str, Values], spec: Values, errors: FieldErrors
) -> None:
    if user := container.get("user", {}).get("linux"):
        if spec.get("os", {}).get("name") == "windows":
            errors.forbidden(f"{path}.user.linux", "cannot be set for a windows pod")
        else:
            ids = [("uid", user.get("uid", 0)), ("gid", user.get("gid", 0))]
            ids += [
                (f"supplementalGroups[{index}]", gid) for index, gid in enumerate(user.get("supplementalGroups", ()))
            ]
            for name, value in ids:
                pod_fields.in_range(f"{path}.user.linux.{name}", value, 0, MAX_ID, errors)
    if allocated := container.get("allocatedResourcesStatus"):
        if group == "ephemeralContainerStatuses":
            errors.forbidden(f"{path}.allocatedResourcesStatus", "must not be specified in container status")
        else:
            asking = known.get(container.get("name", ""))
            _allocated(allocated, asking, f"{path}.allocatedResourcesStatus", errors)
    for index, mount in enumerate(container.get("volumeMounts", ())):
        image = mount.get("volumeStatus", {}).get("image")
        if image is None:
            continue
        where = f"{path}.volumeMounts[{index}].volumeStatus.imageVolumeStatus.imageRef"
        if not image.get("imageRef"):
            required(where, "imageRef must not be empty", errors)
        else:
            field_rules.too_long(where, image["imageRef"], _MAX_IMAGE, errors)


def _allocated(allocated: Sequence[Values], container: Values | None, path: str, errors: FieldErrors) -> None:
    for index, given in enumerate(allocated):
        where, name = f"{path}[{index}]", given.get("name", "")
        if container is not None and (why := _not_asked_for(name, container.get("resources", {}))):
            errors.invalid(f"{where}.name", name, why)
        seen: set[str] = set()
        for number, resource in enumerate(given.get("resources", ())):
            at = f"{where}.resources[{number}]"
            pod_fields.supported(f"{at}.health", resource.get("health", ""), _HEALTH, errors)
            message = resource.get("message", "?")
            if not message:
                required(f"{at}.message", "must be non-empty if specified", errors)
            else:
                field_rules.too_long(f"{at}.message", message, _MAX_HEALTH_MESSAGE, errors)
            identity = resource.get("resourceID", "")
            if identity in seen:
                errors.duplicate(f"{at}.resourceID", identity)
            seen.add(identity)


def _not_asked_for(name: str, resources: Values) -> str:
    if not name.startswith("claim:"):
        asked = name in resources.get("requests", ())
        return "" if asked else "must match one of the container's resource requests"
    for claim in resources.get("claims", ()):
        request = f"/{claim['request']}" if claim.get("request") else ""
        if name == f"claim:{claim.get('name', '')}{request}":
            return ""
    return (
        "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or"
        " 'claim:<claimName>' if request is empty"
    )


def _claims(statuses: Sequence[Values], spec: Values, errors: FieldErrors) -> None:
    known = {claim.get("name", "") for claim in spec.get("resourceClaims", ())}
    seen: set[str] = set()
    for index, status in enumerate(statuses):
        where, name = f"status.resourceClaimStatuses[{index}]", status.get("name", "")
        if name not in known:
            why = "must match the name of an entry in `spec.resourceClaims`"
            errors.invalid(f"{where}.name", name, why)
        if name in seen:
            errors.duplicate(f"{where}.name", name)
        seen.add(name)
        if claim := status.get("resourceClaimName"):
            named(f"{where}.resourceClaimName", claim, names.dns_subdomain(claim), errors)


def _addresses(status: Values, was: Values, name: str, errors: FieldErrors) -> None:
    given = status.get(name, ())
    kept = {item.get("ip", "") for item in was.get(name, ())}
    for index, item in enumerate(given):
        if item.get("ip", "") not in kept:
            addresses.validate(f"status.{name}[{index}]", item.get("ip", ""), errors)
    if len(given) > 1:
        versions = {_version(item.get("ip", "")) for item in given}
        if len(given) > 2 or versions != {4, 6}:
            why = "may specify no more than one IP for each IP family"
            errors.invalid(f"status.{name}", given, why)


def _version(address: str) -> int:
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return 0
