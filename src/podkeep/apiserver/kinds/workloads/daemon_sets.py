"""DaemonSet (``pkg/apis/apps``). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import cells, field_rules
from podkeep.apiserver.kinds.cells import at, label_text
from podkeep.apiserver.kinds.pods.template import default_pod_template
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.kinds.workloads import workload_rules
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.patch.values import equal
from podkeep.apiserver.schema.table import Kind

TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
"""The annotation that counts the changes of the template; kube-controller-manager puts it on pods."""
_REQUIRED = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
_NUMBERS = (
    *_REQUIRED,
    "observedGeneration",
    "updatedNumberScheduled",
    "numberAvailable",
    "numberUnavailable",
    "collisionCount",
)


def default(value: Object) -> None:
    """Fill in rolling updates, one node after the other, and ten old revisions."""
    spec = value.setdefault("spec", {})
    default_pod_template(spec.setdefault("template", {}))
    strategy = spec.setdefault("updateStrategy", {})
    strategy["type"] = strategy.get("type") or "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    spec.setdefault("revisionHistoryLimit", 10)


def _template_generation(value: Mapping[str, Any]) -> int:
    text = at(value, "metadata", "annotations", TEMPLATE_GENERATION, default="")
    # A client may have written anything there; 18 digits always fit into Go's int64.
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


def _set_template_generation(value: Object, generation: int) -> None:
    value["metadata"].setdefault("annotations", {})[TEMPLATE_GENERATION] = str(generation)


def _begin_status(value: Object, _: Object | None = None) -> None:
    workload_rules.begin_status(value, **dict.fromkeys(_REQUIRED, 0))


def _prepare_create(value: Object) -> None:
    _begin_status(value)
    _set_template_generation(value, max(1, _template_generation(value)))


def _prepare_update(new: Object, old: Object) -> None:
    # Counted on from the old one, whatever the client says.
    same = equal(new["spec"]["template"], old["spec"]["template"])
    _set_template_generation(new, _template_generation(old) + (0 if same else 1))


def _prepare_status(new: Object, old: Object) -> None:
    _begin_status(new)
    if TEMPLATE_GENERATION in metadata(old).get("annotations", {}):
        _set_template_generation(new, _template_generation(old))


def validate_create(value: Object, errors: FieldErrors) -> None:
    """Note what is wrong with a new DaemonSet after defaulting."""
    _validate(value["spec"], errors, any_value=False)


def validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note what an update makes wrong."""
    now, before = new["spec"].get("selector"), old["spec"].get("selector")
    field_rules.immutable(field_rules.shown(now), field_rules.shown(before), "spec.selector", errors)
    _validate(new["spec"], errors, any_value=field_rules.has_wrong_values(before))


def _validate(spec: Mapping[str, Any], errors: FieldErrors, *, any_value: bool) -> None:
    selector, template = spec.get("selector"), spec["template"]
    field_rules.label_selector(selector, "spec.selector", errors, any_value=any_value)
    if field_rules.is_selector(selector) and not workload_rules.selector_matches(selector, template):
        workload_rules.note_mismatch(template, "spec.template", errors)
    if selector is not None and field_rules.is_empty(selector):
        errors.invalid("spec.selector", field_rules.shown(selector), "empty selector is invalid for daemonset")
    workload_rules.long_running_template(template, "spec.template", "DaemonSet", errors)
    field_rules.not_negative(spec, ("minReadySeconds",), "spec", errors)
    _validate_strategy(spec["updateStrategy"], errors)
    field_rules.not_negative(spec, ("revisionHistoryLimit",), "spec", errors)


def _validate_strategy(strategy: Mapping[str, Any], errors: FieldErrors) -> None:
    path, rolling = "spec.updateStrategy.rollingUpdate", strategy.get("rollingUpdate")
    if strategy["type"] == "OnDelete":
        return
    if strategy["type"] != "RollingUpdate":
        shown = {"Type": strategy["type"], "RollingUpdate": workload_rules.shown_rolling(rolling)}
        field_rules.not_supported("spec.updateStrategy", shown, ("RollingUpdate", "OnDelete"), errors)
        return
    unavailable, surge = rolling["maxUnavailable"], rolling["maxSurge"]  # type: ignore[index] # defaulted
    for rule in (field_rules.number_or_percent, field_rules.at_most_100_percent):
        rule(f"{path}.maxUnavailable", unavailable, errors)
        rule(f"{path}.maxSurge", surge, errors)
    if field_rules.is_zero(unavailable) and field_rules.is_zero(surge):
        field_rules.required(f"{path}.maxUnavailable", "cannot be 0 when maxSurge is 0", errors)
    elif not field_rules.is_zero(unavailable) and not field_rules.is_zero(surge):
        errors.invalid(f"{path}.maxSurge", surge, "may not be set when maxUnavailable is non-zero")


def _validate_status(new: Object, old: Object, errors: FieldErrors) -> None:
    field_rules.not_negative(new.get("status", {}), _NUMBERS, "status", errors)
    workload_rules.validate_collisions(new, old, errors)


DAEMON_SETS = Resource(
    kind=Kind("apps", "v1", "DaemonSet"),
    plural="daemonsets",
    unserved=workload_rules.UNSERVED,
    short_names=("ds",),
    categories=("all",),
    subresources=frozenset({"status"}),
    strategy=Strategy(
        default=default,
        drop=workload_rules.drop_template,
        warnings=workload_rules.template_warnings,
        prepare_create=_prepare_create,
        prepare_update=_prepare_update,
        prepare_status=_prepare_status,
        validate_create=validate_create,
        validate_update=validate_update,
        validate_status=_validate_status,
        status=True,
        generation=True,
    ),
    columns=(
        cells.NAME,
        cells.number("Desired", "status", "desiredNumberScheduled"),
        cells.number("Current", "status", "currentNumberScheduled"),
        cells.number("Ready", "status", "numberReady"),
        cells.number("Up-to-date", "status", "updatedNumberScheduled"),
        cells.number("Available", "status", "numberAvailable"),
        cells.column(
            "Node Selector",
            lambda value: label_text(at(value, "spec", "template", "spec", "nodeSelector", default={})),
        ),
        cells.AGE,
        *cells.containers("spec", "template"),
        cells.selector("spec", "selector"),
    ),
)

RESOURCES = (DAEMON_SETS,)
