"""Validation of ``resources`` of containers and pods: limits, requests, claims and classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from podkeep.api import class_resources, names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.field_rules import named, required
from podkeep.apiserver.kinds.pods.resources import HUGE_PAGES, aggregate, is_pod_level
from podkeep.apiserver.kinds.pods.validation import fields as pod_fields
from podkeep.apiserver.kinds.pods.validation.fields import Context
from podkeep.base.text import quantity

_STORAGE = "ephemeral-storage"
_COMPUTE = ("cpu", "memory", _STORAGE)
_COUNTS = frozenset(
    {
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    }
)
_STANDARD = (
    _COUNTS
    | {"storage", "requests.storage", *_COMPUTE}
    | {f"{kind}.{name}" for kind in ("limits", "requests") for name in _COMPUTE}
)
"""Resources without a domain that Kubernetes knows; containers have few of them."""
_POD_LEVEL = ("cpu", HUGE_PAGES, "memory")

Values = Mapping[str, Any]


def is_native(name: str) -> bool:
    """Return whether a resource is Kubernetes' own."""
    return "/" not in name or "kubernetes.io/" in name


def is_extended(name: str) -> bool:
    """Return whether a resource is somebody's own, which is counted in whole units."""
    return not is_native(name) and not name.startswith("requests.") and not names.label_key(f"requests.{name}")


def name_problem(name: str) -> str:
    """Return why a text names no resource, or nothing."""
    if why := names.label_key(name):
        return why
    if "/" in name or name in _STANDARD or name.startswith((HUGE_PAGES, f"requests.{HUGE_PAGES}")):
        return ""
    return "must be a standard resource type or fully qualified"


def validate_quantity(path: str, name: str, value: str, errors: FieldErrors) -> Decimal:
    """Note a quantity that a resource cannot have; return its number."""
    number = quantity.parse(value)
    if number < 0:
        errors.invalid(path, value, "must be greater than or equal to 0")
    if number % 1 and (name in _COUNTS or is_extended(name)):
        errors.invalid(path, value, "must be an integer")
    return number


def validate_container(resources: Values, path: str, context: Context) -> None:
    """Note every rule that the ``resources`` of a container break."""
    if not resources:
        return
    _requirements(resources, path, context.errors, pod_level=False)
    _claims(resources.get("claims", ()), f"{path}.claims", context)
    class_resources.validate_classes(resources.get("classes", {}), f"{path}.classes", context.errors)


def validate_overhead(overhead: Mapping[str, str], path: str, errors: FieldErrors) -> None:
    """Note every rule that ``spec.overhead`` breaks."""
    _requirements({"limits": overhead}, path, errors, pod_level=False)


def validate_pod(context: Context, path: str) -> None:
    """Note every rule that ``spec.resources`` breaks, those of a pod as a whole."""
    spec, errors = context.spec, context.errors
    resources = spec.get("resources")
    if resources is None:
        return
    where = f"{path}.resources"
    if context.os == "windows":
        errors.forbidden(where, "may not be set for a windows pod")
        return
    if resources.get("claims"):
        errors.forbidden(f"{where}.claims", "claims may not be set for Resources at pod-level")
        _claims(resources["claims"], f"{where}.claims", context)
    _requirements(resources, where, errors, pod_level=True)
    _consistent(spec, resources, where, errors)
    class_resources.validate_pod_classes(resources.get("classes", {}), f"{where}.classes", errors)


def _requirements(resources: Values, path: str, errors: FieldErrors, *, pod_level: bool) -> None:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    bounds = {}
    for name, value in limits.items():
        bounds[name] = _resource(name, value, f"{path}.limits[{name}]", errors, pod_level=pod_level)
    for name, value in requests.items():
        number = _resource(name, value, f"{path}.requests[{name}]", errors, pod_level=pod_level)
        overcommitted = is_native(name) and not name.startswith(HUGE_PAGES)
        if name in bounds:
            if number != bounds[name] and not overcommitted:
                errors.invalid(f"{path}.requests", value, f"must be equal to {name} limit of {limits[name]}")
            elif number > bounds[name]:
                why = f"must be less than or equal to {name} limit of {limits[name]}"
                errors.invalid(f"{path}.requests", value, why)
        elif not overcommitted:
            required(f"{path}.limits", "Limit must be set for non overcommitable resources", errors)
    used = limits.keys() | requests.keys()
    if any(name.startswith(HUGE_PAGES) for name in used) and not used & {"cpu", "memory"}:
        errors.forbidden(path, "HugePages require cpu or memory")


def _resource(name: str, value: str, path: str, errors: FieldErrors, *, pod_level: bool) -> Decimal:
    why = name_problem(name)
    named(path, name, why, errors)
    if pod_level:
        if not why and not is_pod_level(name):
            pod_fields.supported(path, name, _POD_LEVEL, errors)
    elif "/" not in name:
        if name not in _COMPUTE and not name.startswith(HUGE_PAGES):
            errors.invalid(path, name, "must be a standard resource for containers")
    elif not is_native(name) and not is_extended(name):
        errors.invalid(path, name, "doesn't follow extended resource name standard")
    number = validate_quantity(path, name, value, errors)
    if name.startswith(HUGE_PAGES) and not _divisible(name, number):
        errors.invalid(path, value, f"{value} is not positive integer multiple of {name}")
    return number


def _divisible(name: str, number: Decimal) -> bool:
    try:
        size = quantity.parse(name.removeprefix(HUGE_PAGES))
    except ValueError:
        return False
    return size > 0 and not size % 1 and not math.ceil(number) % int(size)


def _claims(claims: Sequence[Values], path: str, context: Context) -> None:
    errors = context.errors
    seen: set[str] = set()
    begun: set[str] = set()
    for index, claim in enumerate(claims):
        where = f"{path}[{index}]"
        name, request = claim.get("name", ""), claim.get("request", "")
        if not errors.required(where, name):
            continue
        key = f"{name}/{request}" if request else name
        if request and name not in seen:
            named(f"{where}.request", request, names.dns_label(request), errors)
        if name in seen or (not request and name in begun):
            errors.duplicate(where, name)
        elif key in seen:
            errors.duplicate(where, key)
        seen.add(key)
        if request:
            begun.add(name)
        if name not in context.claims:
            why = f"must be one of the names in pod.spec.resourceClaims{context.claims_shown}"
            errors.add(where, f'Not found: "{name}": {why}')


def _consistent(spec: Values, resources: Values, path: str, errors: FieldErrors) -> None:
    """Note where containers ask for more than their pod as a whole."""
    for kind in ("requests", "limits"):
        given = resources.get(kind, {})
        total = aggregate(spec, kind) if given else {}
        for name, value in total.items():
            # Limits of containers may be more than their pod's together, but for huge pages, which are never
            # overcommitted.
            if kind == "limits" and not name.startswith(HUGE_PAGES):
                continue
            if name in given and quantity.parse(value) > quantity.parse(given[name]):
                why = f"must be greater than or equal to aggregate container {kind} of {value}"
                errors.invalid(f"{path}.{kind}[{name}]", given[name], why)
    limits = resources.get("limits", {})
    for index, container in enumerate(spec.get("containers", ())):
        for name, value in container.get("resources", {}).get("limits", {}).items():
            if name in limits and quantity.parse(value) > quantity.parse(limits[name]):
                why = f"must be less than or equal to pod limits of {limits[name]}"
                errors.invalid(f"{path}.containers[{index}][{name}].limits", value, why)
