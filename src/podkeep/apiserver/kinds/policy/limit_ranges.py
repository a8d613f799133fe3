"""LimitRanges: what single pods, containers and claims of a namespace may ask for, and what they get if they do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import default_table
from podkeep.apiserver.kinds.field_rules import required
from podkeep.apiserver.kinds.pods import resources as pod_resources
from podkeep.apiserver.kinds.policy.resource_lists import is_overcommitted, validate_container_name, validate_name
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.schema.table import Kind
from podkeep.base.text import quantity

POD = "Pod"
CONTAINER = "Container"
CLAIM = "PersistentVolumeClaim"
_TYPES = (POD, CONTAINER, CLAIM)
_LISTS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")
_NOT_FOR_PODS = "may not be specified when `type` is 'Pod'"
_ORDERED = (
    ("min", "max", "min", "min"),
    ("min", "defaultRequest", "defaultRequest", "defaultRequest"),
    ("defaultRequest", "max", "defaultRequest", "defaultRequest"),
    ("defaultRequest", "default", "defaultRequest", "defaultRequest"),
    ("min", "default", "default", "min"),
    ("default", "max", "default", "max"),
)
"""A list whose amount must not be above that of another; whose field and amount the message shows."""
_WORDS = {"min": "min", "max": "max", "default": "default", "defaultRequest": "default request"}


def _default(value: Object) -> None:
    for limit in value.get("spec", {}).get("limits", ()):
        for name in _LISTS:
            pod_resources.round_up(limit.get(name, {}))
        if limit.get("type") == CONTAINER:
            # A default that is left out is the maximum; a default request is the default, else the minimum
            # (SetDefaults_LimitRangeItem).
            limits = {**limit.get("max", {}), **limit.get("default", {})}
            requests = {**limit.get("min", {}), **limits, **limit.get("defaultRequest", {})}
            limit |= {name: given for name, given in (("default", limits), ("defaultRequest", requests)) if given}


def _prepare_create(value: Object) -> None:
    fields = value["metadata"]
    fields["name"] = fields.get("name") or fields["uid"]


def _validate(value: Object, errors: FieldErrors) -> None:
    seen = set()
    for index, limit in enumerate(value.get("spec", {}).get("limits", ())):
        path, kind = f"spec.limits[{index}]", limit.get("type", "")
        if why := _type_problem(kind):
            errors.invalid(f"{path}.type", kind, why)
        if kind in seen:
            errors.duplicate(f"{path}.type", kind)
        seen.add(kind)
        _limit(limit, kind, path, errors)


def _type_problem(kind: str) -> str:
    why = names.label_key(kind)
    if not why and "/" not in kind and kind not in _TYPES:
        return "must be a standard limit type or fully qualified"
    return why


def _limit(limit: Mapping[str, Any], kind: str, path: str, errors: FieldErrors) -> None:
    rule = validate_container_name if kind in (POD, CONTAINER) else validate_name
    given: dict[str, Mapping[str, str]] = {}
    for name in _LISTS:
        found = limit.get(name, {})
        if kind == POD and name in ("default", "defaultRequest"):
            if found:
                errors.forbidden(f"{path}.{name}", _NOT_FOR_PODS)
            continue
        given[name] = found
        for key in found:
            rule(key, f"{path}.{name}[{key}]", errors)
    if kind == CLAIM and "storage" not in given["min"] and "storage" not in given["max"]:
        required(
            f"{path}.limits", "either minimum or maximum storage value is required, but neither was provided", errors
        )
    for key in dict.fromkeys(key for found in given.values() for key in found):
        _amounts({name: found[key] for name, found in given.items() if key in found}, key, path, errors)


def _amounts(amounts: Mapping[str, str], key: str, path: str, errors: FieldErrors) -> None:
    """Hold the amounts of one resource against each other; they are by the name of their list."""
    parsed = {name: quantity.parse(text) for name, text in amounts.items()}
    for low, high, field, shown in _ORDERED:
        if low in parsed and high in parsed and parsed[low] > parsed[high]:
            larger = "default limit" if (low, high) == ("defaultRequest", "default") else _WORDS[high]
            why = f"{_WORDS[low]} value {amounts[low]} is greater than {larger} value {amounts[high]}"
            errors.invalid(f"{path}.{field}[{key}]", amounts[shown], why)
    where = f"{path}.maxLimitRequestRatio[{key}]"
    ratio = parsed.get("maxLimitRequestRatio")
    if ratio is not None and ratio < 1:
        errors.invalid(
            where, amounts["maxLimitRequestRatio"], f"ratio {amounts['maxLimitRequestRatio']} is less than 1"
        )
    if ratio is not None and "max" in parsed and parsed.get("min"):
        most = parsed["max"] / parsed["min"]
        if ratio > most:
            given = amounts["maxLimitRequestRatio"]
            errors.invalid(where, given, f"ratio {given} is greater than max/min = {most:.6f}")
    if not is_overcommitted(key) and "default" in parsed and "defaultRequest" in parsed:
        limit, request = amounts["default"], amounts["defaultRequest"]
        if parsed["default"] != parsed["defaultRequest"]:
            why = f"default value {limit} must equal to defaultRequest value {request} in {key}"
            errors.invalid(f"{path}.defaultRequest[{key}]", request, why)


RESOURCES = (
    Resource(
        kind=Kind("", "v1", "LimitRange"),
        plural="limitranges",
        short_names=("limits",),
        columns=default_table.COLUMNS,
        strategy=Strategy(default=_default, prepare_create=_prepare_create, validate=_validate, create_on_update=True),
    ),
)
