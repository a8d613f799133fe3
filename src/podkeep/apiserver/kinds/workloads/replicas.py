"""ReplicationController, ReplicaSet and Deployment: what keeps a number of equal pods (``pkg/apis/apps``). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import cells, field_rules
from podkeep.apiserver.kinds.cells import at
from podkeep.apiserver.kinds.pods.template import default_pod_template
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.kinds.workloads import workload_rules
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.meta.selectors import LabelSelector, Requirement
from podkeep.apiserver.patch.values import equal
from podkeep.apiserver.schema.table import Kind

_QUARTER = "25%"
_STRATEGIES = ("Recreate", "RollingUpdate")
_COUNTED = ("fullyLabeledReplicas", "readyReplicas", "availableReplicas")
_NUMBERS = ("replicas", *_COUNTED, "observedGeneration", "terminatingReplicas")
_DEPLOYMENT_COUNTED = ("updatedReplicas", "readyReplicas", "availableReplicas")
_DEPLOYMENT_NUMBERS = (
    "observedGeneration",
    "replicas",
    *_DEPLOYMENT_COUNTED,
    "unavailableReplicas",
    "terminatingReplicas",
    "collisionCount",
)


def _selectable(value: Mapping[str, Any]) -> dict[str, str]:
    return {"status.replicas": str(at(value, "status", "replicas", default=0))}


def _begin_status(value: Object, _: Object | None = None) -> None:
    workload_rules.begin_status(value, replicas=0)


def _validate_status(new: Object, _: Object, errors: FieldErrors) -> None:
    status = new.get("status", {})
    workload_rules.validate_replicas(status, _COUNTED, _NUMBERS, errors)
    _available(status, errors)


def _available(status: Mapping[str, Any], errors: FieldErrors) -> None:
    why = "cannot be greater than readyReplicas"
    field_rules.not_above(status, ("availableReplicas",), "readyReplicas", why, errors)


def _warnings(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[str]:
    return workload_rules.name_warnings(new, old) + workload_rules.template_warnings(new, old)


_STRATEGY = Strategy(
    drop=workload_rules.drop_template,
    prepare_create=_begin_status,
    prepare_status=_begin_status,
    warnings=_warnings,
    validate_status=_validate_status,
    status=True,
    generation=True,
    selectable=_selectable,
)
"""What ReplicationControllers and ReplicaSets have in common; so have their columns."""
_COLUMNS = (
    cells.NAME,
    cells.number("Desired", "spec", "replicas"),
    cells.number("Current", "status", "replicas"),
    cells.number("Ready", "status", "readyReplicas"),
    cells.AGE,
    *cells.containers("spec", "template"),
)


# ReplicationController


def default_controller(value: Object) -> None:
    """Fill in one replica; a selector and labels as the template has them."""
    spec = value.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    if (template := spec.get("template")) is None:
        return
    default_pod_template(template)
    if labels := workload_rules.template_labels(template):
        if not spec.get("selector"):
            spec["selector"] = dict(labels)
        if not metadata(value).get("labels"):
            value["metadata"]["labels"] = dict(labels)


def validate_controller(value: Object, errors: FieldErrors) -> None:
    """Note what is wrong with a ReplicationController after defaulting."""
    spec = value.get("spec", {})
    field_rules.not_negative(spec, ("minReadySeconds",), "spec", errors)
    selector = spec.get("selector", {})
    errors.required("spec.selector", selector)
    field_rules.not_negative(spec, ("replicas",), "spec", errors)
    template = spec.get("template")
    if template is None:
        errors.required("spec.template", "")
        return
    needed = LabelSelector(tuple(Requirement(key, "in", frozenset({label})) for key, label in selector.items()))
    if not needed.matches(workload_rules.template_labels(template)):
        workload_rules.note_mismatch(template, "spec.template", errors)
    workload_rules.long_running_template(template, "spec.template", "ReplicationController", errors)


REPLICATION_CONTROLLERS = Resource(
    kind=Kind("", "v1", "ReplicationController"),
    plural="replicationcontrollers",
    unserved=workload_rules.UNSERVED,
    short_names=("rc",),
    categories=("all",),
    subresources=frozenset({"status", "scale"}),
    strategy=structs.replace(_STRATEGY, default=default_controller, validate=validate_controller),
    columns=(*_COLUMNS, cells.label_selector("spec", "selector")),
)


# ReplicaSet


def default_replica_set(value: Object) -> None:
    spec = value.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    default_pod_template(spec.setdefault("template", {}))


def validate_replica_set(value: Object, errors: FieldErrors) -> None:
    """Note what is wrong with a ReplicaSet after defaulting."""
    spec = value["spec"]
    field_rules.not_negative(spec, ("replicas", "minReadySeconds"), "spec", errors)
    _validate_pods(spec, errors)


def _validate_pods(spec: dict[str, Any], errors: FieldErrors) -> None:
    """Note what is wrong with the selector and the template of a ReplicaSet or Deployment."""
    # kube-apiserver says `deployment` of ReplicaSets, and `ReplicaSet` of Deployments' templates.
    workload_rules.required_selector(spec, "deployment", errors)
    selector, template = spec.get("selector"), spec["template"]
    if not field_rules.is_selector(selector):
        errors.invalid("spec.selector", field_rules.shown(selector), "invalid label selector")
        return
    if not workload_rules.selector_matches(selector, template):
        workload_rules.note_mismatch(template, "spec.template", errors)
    workload_rules.long_running_template(template, "spec.template", "ReplicaSet", errors)


def _same_selector(new: Object, old: Object, errors: FieldErrors) -> None:
    now, before = at(new, "spec", "selector"), at(old, "spec", "selector")
    field_rules.immutable(field_rules.shown(now), field_rules.shown(before), "spec.selector", errors)


REPLICA_SETS = Resource(
    kind=Kind("apps", "v1", "ReplicaSet"),
    plural="replicasets",
    unserved=workload_rules.UNSERVED,
    short_names=("rs",),
    categories=("all",),
    subresources=frozenset({"status", "scale"}),
    strategy=structs.replace(
        _STRATEGY, default=default_replica_set, validate=validate_replica_set, validate_update=_same_selector
    ),
    columns=(*_COLUMNS, cells.selector("spec", "selector")),
)


# Deployment


def default_deployment(value: Object) -> None:
    """Fill in one replica, rolling updates by a quarter, ten old ReplicaSets, and ten minutes for progress."""
    spec = value.setdefault("spec", {})
    default_pod_template(spec.setdefault("template", {}))
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    strategy["type"] = strategy.get("type") or "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", _QUARTER)
        rolling.setdefault("maxSurge", _QUARTER)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)


def _prepare_new_deployment(value: Object) -> None:
    value["status"] = {}


def _prepare_deployment(new: Object, old: Object) -> None:
    # Annotations are copied to ReplicaSets, so that they count as a change of what is wanted.
    if not equal(metadata(new).get("annotations"), metadata(old).get("annotations")):
        new["metadata"]["generation"] = metadata(old).get("generation", 0) + 1


def _prepare_deployment_status(new: Object, old: Object) -> None:
    new["metadata"].pop("labels", None)
    if "labels" in metadata(old):
        new["metadata"]["labels"] = dict(metadata(old)["labels"])


def validate_deployment(value: Object, errors: FieldErrors) -> None:
    """Note what is wrong with a Deployment after defaulting."""
    spec = value["spec"]
    field_rules.not_negative(spec, ("replicas",), "spec", errors)
    _validate_pods(spec, errors)
    _validate_strategy(spec["strategy"], errors)
    field_rules.not_negative(
        spec, ("minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"), "spec", errors
    )
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None and deadline <= spec.get("minReadySeconds", 0):
        errors.invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds")


def _validate_strategy(strategy: Mapping[str, Any], errors: FieldErrors) -> None:
    path, rolling = "spec.strategy.rollingUpdate", strategy.get("rollingUpdate")
    if strategy["type"] == "Recreate":
        if rolling is not None:
            errors.forbidden(path, "may not be specified when strategy `type` is 'Recreate'")
        return
    if strategy["type"] != "RollingUpdate":
        shown = {"Type": strategy["type"], "RollingUpdate": workload_rules.shown_rolling(rolling)}
        field_rules.not_supported("spec.strategy", shown, _STRATEGIES, errors)
        return
    unavailable, surge = rolling["maxUnavailable"], rolling["maxSurge"]  # type: ignore[index] # defaulted
    field_rules.number_or_percent(f"{path}.maxUnavailable", unavailable, errors)
    field_rules.number_or_percent(f"{path}.maxSurge", surge, errors)
    if field_rules.is_zero(unavailable) and field_rules.is_zero(surge):
        errors.invalid(f"{path}.maxUnavailable", unavailable, "may not be 0 when `maxSurge` is 0")
    field_rules.at_most_100_percent(f"{path}.maxUnavailable", unavailable, errors)


def _validate_deployment_status(new: Object, old: Object, errors: FieldErrors) -> None:
    status = new.get("status", {})
    workload_rules.validate_replicas(status, _DEPLOYMENT_COUNTED, _DEPLOYMENT_NUMBERS, errors)
    _available(status, errors)
    workload_rules.validate_collisions(new, old, errors)


def _ready(value: Mapping[str, Any]) -> str:
    return f"{at(value, 'status', 'readyReplicas', default=0)}/{at(value, 'spec', 'replicas', default=0)}"


READY = cells.column("Ready", _ready, description="Number of the pod with ready state")
"""How many of the wanted pods are ready: ``2/3``."""

DEPLOYMENTS = Resource(
    kind=Kind("apps", "v1", "Deployment"),
    plural="deployments",
    unserved=workload_rules.UNSERVED,
    short_names=("deploy",),
    categories=("all",),
    subresources=frozenset({"status", "scale"}),
    strategy=Strategy(
        default=default_deployment,
        drop=workload_rules.drop_template,
        prepare_create=_prepare_new_deployment,
        prepare_update=_prepare_deployment,
        prepare_status=_prepare_deployment_status,
        warnings=_warnings,
        validate=validate_deployment,
        validate_update=_same_selector,
        validate_status=_validate_deployment_status,
        status=True,
        generation=True,
    ),
    columns=(
        cells.NAME,
        READY,
        cells.number("Up-to-date", "status", "updatedReplicas", type="string"),
        cells.number("Available", "status", "availableReplicas", type="string"),
        cells.AGE,
        *cells.containers("spec", "template"),
        cells.selector("spec", "selector", none=""),
    ),
)

RESOURCES = (DEPLOYMENTS, REPLICA_SETS, REPLICATION_CONTROLLERS)
