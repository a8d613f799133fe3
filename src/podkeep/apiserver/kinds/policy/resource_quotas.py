"""ResourceQuotas: what the objects of a namespace may have together.

QoS-class resources that pods may ask for (KEP-3008, access control) are lists of their own. How much is used, and
what a quota refuses, is admission's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.cells import AGE, NAME, at, column
from podkeep.apiserver.kinds.cluster import class_infos
from podkeep.apiserver.kinds.field_rules import IMMUTABLE, required
from podkeep.apiserver.kinds.pods import resources as pod_resources
from podkeep.apiserver.kinds.pods.validation.requirements import validate_quantity
from podkeep.apiserver.kinds.policy.resource_lists import is_for_quota, validate_quota_name
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.schema.table import Kind
from podkeep.base.text import quantity

MAX_HARD = 1_000
"""Resources that a quota limits: each write in its namespace is held against them, and its status has each twice."""
BEST_EFFORT = "BestEffort"
NOT_BEST_EFFORT = "NotBestEffort"
TERMINATING = "Terminating"
NOT_TERMINATING = "NotTerminating"
PRIORITY_CLASS = "PriorityClass"
CROSS_NAMESPACE = "CrossNamespacePodAffinity"
ATTRIBUTES_CLASS = "VolumeAttributesClass"
_PODS = frozenset({"pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"})
_RESOURCES_OF_SCOPES = {
    TERMINATING: _PODS,
    NOT_TERMINATING: _PODS,
    NOT_BEST_EFFORT: _PODS,
    PRIORITY_CLASS: _PODS,
    CROSS_NAMESPACE: _PODS,
    BEST_EFFORT: frozenset({"pods"}),
    ATTRIBUTES_CLASS: frozenset({"persistentvolumeclaims", "requests.storage"}),
}
"""Which resources a quota can limit that has a scope, of those that quotas know by their own name."""
_WITHOUT_VALUES = (BEST_EFFORT, NOT_BEST_EFFORT, TERMINATING, NOT_TERMINATING, CROSS_NAMESPACE)
_CONFLICTS = ({BEST_EFFORT, NOT_BEST_EFFORT}, {TERMINATING, NOT_TERMINATING})


def _default(value: Object) -> None:
    for part, names in (("spec", ("hard",)), ("status", ("hard", "used"))):
        for name in names:
            pod_resources.round_up(at(value, part, name, default={}))


def _drop(new: Object, old: Object | None, gates: FeatureGates) -> None:
    for part in ("spec", "status"):
        class_infos.drop(new, old, part, gates)


def _validate(value: Object, errors: FieldErrors) -> None:
    spec = value.get("spec", {})
    if len(spec.get("hard", ())) > MAX_HARD:
        field_rules.too_many("spec.hard", len(spec["hard"]), MAX_HARD, errors)
    else:
        _amounts(spec, ("hard",), "spec", errors)
    class_infos.validate(spec, "spec", errors)
    _scopes(spec, errors)
    _selector(spec, errors)


def _amounts(part: Mapping[str, Any], fields: Sequence[str], path: str, errors: FieldErrors) -> None:
    for field in fields:
        for name, amount in part.get(field, {}).items():
            where = f"{path}.{field}[{name}]"
            validate_quota_name(name, where, errors)
            validate_quantity(where, name, amount, errors)


def _scopes(spec: Mapping[str, Any], errors: FieldErrors) -> None:
    scopes = spec.get("scopes", [])
    found = set(scopes)  # each message shows all of them: one is enough
    if found - _RESOURCES_OF_SCOPES.keys():
        errors.invalid("spec.scopes", scopes, "unsupported scope")
    if any(_is_unfit(scope, spec) for scope in found & _RESOURCES_OF_SCOPES.keys()):
        errors.invalid("spec.scopes", scopes, "unsupported scope applied to resource")
    _conflicts(scopes, scopes, errors)


def _is_unfit(scope: str, spec: Mapping[str, Any]) -> bool:
    """Tell whether a quota limits something that a scope does not go with."""
    fit = _RESOURCES_OF_SCOPES[scope]
    return any(is_for_quota(name) and name not in fit for name in spec.get("hard", ()))


def _conflicts(found: Collection[str], shown: Sequence[str], errors: FieldErrors) -> None:
    for pair in _CONFLICTS:
        if pair <= set(found):
            errors.invalid("spec.scopes", shown or None, "conflicting scopes")


def _selector(spec: Mapping[str, Any], errors: FieldErrors) -> None:
    selector = spec.get("scopeSelector", {})
    path = "spec.scopeSelector.matchExpressions"
    found = selector.get("matchExpressions", ())
    scopes = {item.get("scopeName", "") for item in found}
    if any(_is_unfit(scope, spec) for scope in scopes & _RESOURCES_OF_SCOPES.keys()):
        errors.invalid(path, selector, "unsupported scope applied to resource")
    for item in found:
        scope, operator, values = item.get("scopeName", ""), item.get("operator", ""), item.get("values", ())
        if scope not in _RESOURCES_OF_SCOPES:
            errors.invalid(f"{path}.scopeName", scope, "unsupported scope")
        if scope in _WITHOUT_VALUES and operator != "Exists":
            errors.invalid(
                f"{path}.operator",
                operator,
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating,"
                " ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or"
                " ResourceQuotaScopeCrossNamespacePodAffinity",
            )
        if operator in ("In", "NotIn"):
            if not values:
                required(
                    f"{path}.values",
                    "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
                    errors,
                )
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                errors.invalid(
                    f"{path}.values",
                    values,
                    "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
                )
        else:
            errors.invalid(f"{path}.operator", operator, "not a valid selector operator")
    _conflicts(scopes, spec.get("scopes", ()), errors)


def _validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    scopes = at(new, "spec", "scopes", default=[])
    if set(scopes) != set(at(old, "spec", "scopes", default=())):
        errors.invalid("spec.scopes", scopes or None, IMMUTABLE)


def _validate_status(new: Object, _: Object, errors: FieldErrors) -> None:
    status = new.get("status", {})
    _amounts(status, ("hard", "used"), "status", errors)
    class_infos.validate(status, "status", errors)


def _warnings(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[str]:
    hard: Mapping[str, str] = at(new, "spec", "hard", default={})
    found = []
    for resource in ("cpu", "memory", "storage", "ephemeral-storage") if old is None else ():
        request, limit = f"requests.{resource}", f"limits.{resource}"
        if request not in hard and resource in ("cpu", "memory"):
            request = resource
        if request in hard and limit in hard and quantity.parse(hard[request]) > quantity.parse(hard[limit]):
            found.append(f"ResourceQuota {request} ({hard[request]}) should be less than {limit} ({hard[limit]})")
    return found


def _usage(value: Mapping[str, Any], *, limits: bool) -> str:
    hard: Mapping[str, str] = at(value, "status", "hard", default={})
    used: Mapping[str, str] = at(value, "status", "used", default={})
    shown = sorted(name for name in hard if name.startswith("limits.") == limits)
    return ", ".join(f"{name}: {used.get(name, '0')}/{hard[name]}" for name in shown)


RESOURCES = (
    Resource(
        kind=Kind("", "v1", "ResourceQuota"),
        plural="resourcequotas",
        short_names=("quota",),
        subresources=frozenset({"status"}),
        columns=(
            NAME,
            column("Request", lambda value: _usage(value, limits=False)),
            column("Limit", lambda value: _usage(value, limits=True)),
            AGE,
        ),
        strategy=Strategy(
            default=_default,
            drop=_drop,
            warnings=_warnings,
            validate=_validate,
            validate_update=_validate_update,
            validate_status=_validate_status,
            status=True,
            returns_deleted=True,
        ),
    ),
)
