"""PodDisruptionBudget (``pkg/apis/policy``). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import cells, field_rules
from podkeep.apiserver.kinds.cells import at
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.kinds.workloads import workload_rules
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.schema.table import Kind

MAX_REQUIREMENTS = 100
"""Labels and expressions of a selector: each change of a pod is held against all of those of its namespace."""
_POLICIES = ("AlwaysAllow", "IfHealthyBudget")
_NUMBERS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")


def _begin_status(value: Object, _: Object | None = None) -> None:
    workload_rules.begin_status(value, **dict.fromkeys(_NUMBERS, 0))


def validate_create(value: Object, errors: FieldErrors) -> None:
    """Note what is wrong with a new budget."""
    _validate(value.get("spec", {}), errors, any_value=False, most=MAX_REQUIREMENTS)


def validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note what an update makes wrong."""
    before = at(old, "spec", "selector")
    # One that was stored with more stays, and may become less.
    most = max(MAX_REQUIREMENTS, _requirements(before))
    _validate(new.get("spec", {}), errors, any_value=not field_rules.is_selector(before), most=most)


def _requirements(selector: Mapping[str, Any] | None) -> int:
    given = selector or {}
    return len(given.get("matchLabels", ())) + len(given.get("matchExpressions", ()))


def _validate(spec: Mapping[str, Any], errors: FieldErrors, *, any_value: bool, most: int) -> None:
    if "minAvailable" in spec and "maxUnavailable" in spec:
        shown = {
            "MinAvailable": spec["minAvailable"],
            "Selector": field_rules.shown(spec.get("selector")),
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        errors.invalid("spec", shown, "minAvailable and maxUnavailable cannot be both set")
    for name in ("minAvailable", "maxUnavailable"):
        if name in spec:
            field_rules.number_or_percent(f"spec.{name}", spec[name], errors)
            field_rules.at_most_100_percent(f"spec.{name}", spec[name], errors)
    field_rules.label_selector(spec.get("selector"), "spec.selector", errors, any_value=any_value)
    field_rules.too_many("spec.selector", _requirements(spec.get("selector")), most, errors)
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in _POLICIES:
        field_rules.not_supported("spec.unhealthyPodEvictionPolicy", policy, _POLICIES, errors)


def _validate_status(new: Object, _: Object, errors: FieldErrors) -> None:
    status = new.get("status", {})
    field_rules.conditions(status.get("conditions", ()), "status.conditions", errors)
    field_rules.not_negative(status, _NUMBERS, "status", errors)


def _shown(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda value: str(at(value, "spec", name, default="N/A"))


DISRUPTION_BUDGETS = Resource(
    kind=Kind("policy", "v1", "PodDisruptionBudget"),
    plural="poddisruptionbudgets",
    short_names=("pdb",),
    subresources=frozenset({"status"}),
    strategy=Strategy(
        prepare_create=_begin_status,
        prepare_status=_begin_status,
        validate_create=validate_create,
        validate_update=validate_update,
        validate_status=_validate_status,
        status=True,
        generation=True,
        unconditional_update=False,
    ),
    columns=(
        cells.NAME,
        cells.column(
            "Min Available",
            _shown("minAvailable"),
            description="The minimum number of pods that must be available.",
        ),
        cells.column(
            "Max Unavailable",
            _shown("maxUnavailable"),
            description="The maximum number of pods that may be unavailable.",
        ),
        cells.number("Allowed Disruptions", "status", "disruptionsAllowed"),
        cells.AGE,
    ),
)

RESOURCES = (DISRUPTION_BUDGETS,)
