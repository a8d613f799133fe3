"""All kinds that make pods or tell where they are; PodTemplate and ControllerRevision, which only keep something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import cells, field_rules
from podkeep.apiserver.kinds.cells import at, label_text
from podkeep.apiserver.kinds.pods.template import (
    default_pod_template,
    drop_pod_template,
    pod_template_warnings,
    validate_pod_template,
)
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.kinds.services import endpoints, services
from podkeep.apiserver.kinds.workloads import cron_jobs, daemon_sets, disruption_budgets, jobs, replicas, stateful_sets
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.patch.values import equal
from podkeep.apiserver.schema.table import Kind

# PodTemplate


def _default_template(value: Object) -> None:
    default_pod_template(value.setdefault("template", {}))


def _drop_template(new: Object, old: Object | None, gates: FeatureGates) -> None:
    drop_pod_template(new["template"], (old or {}).get("template"), gates)


def _validate_template(value: Object, errors: FieldErrors) -> None:
    validate_pod_template(value["template"], "template", errors)


def _template_warnings(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[str]:
    if old is not None and equal(new["template"], old.get("template")):
        return []
    return pod_template_warnings(new["template"], "template")


POD_TEMPLATES = Resource(
    kind=Kind("", "v1", "PodTemplate"),
    plural="podtemplates",
    strategy=Strategy(
        default=_default_template,
        drop=_drop_template,
        warnings=_template_warnings,
        validate=_validate_template,
        generation=True,
        returns_deleted=True,
    ),
    columns=(
        cells.NAME,
        *cells.containers("template", wide=False),
        cells.column(
            "Pod Labels",
            lambda value: label_text(at(value, "template", "metadata", "labels", default={})),
            description="The labels for the pod template.",
        ),
    ),
)


# ControllerRevision


def _validate_revision(value: Object, errors: FieldErrors) -> None:
    revision = value.get("revision", 0)
    if revision < 0:
        errors.invalid("revision", revision, field_rules.NEGATIVE)


def _validate_data(value: Object, errors: FieldErrors) -> None:
    data = value.get("data")
    if data is None:
        field_rules.required("data", "data is mandatory", errors)
    elif not isinstance(data, dict):
        field_rules.required("data", "data must be a valid JSON object", errors)


def _validate_same_data(new: Object, old: Object, errors: FieldErrors) -> None:
    field_rules.immutable(new.get("data"), old.get("data"), "data", errors)


def _controller(value: Mapping[str, Any]) -> str:
    for owner in metadata(value).get("ownerReferences", ()):
        if owner.get("controller"):
            group, slash, _ = owner["apiVersion"].partition("/")
            kind = f"{owner['kind']}.{group}" if slash else owner["kind"]
            return f"{kind.lower()}/{owner['name']}"
    return cells.NONE


CONTROLLER_REVISIONS = Resource(
    kind=Kind("apps", "v1", "ControllerRevision"),
    plural="controllerrevisions",
    strategy=Strategy(validate=_validate_revision, validate_create=_validate_data, validate_update=_validate_same_data),
    columns=(
        cells.NAME,
        cells.column("Controller", _controller, description="Controller of the object"),
        cells.number("Revision", "revision", type="string"),
        cells.AGE,
    ),
)

RESOURCES: tuple[Resource, ...] = (
    POD_TEMPLATES,
    CONTROLLER_REVISIONS,
    *replicas.RESOURCES,
    *stateful_sets.RESOURCES,
    *daemon_sets.RESOURCES,
    *jobs.RESOURCES,
    *cron_jobs.RESOURCES,
    *disruption_budgets.RESOURCES,
    *services.RESOURCES,
    *endpoints.RESOURCES,
)
