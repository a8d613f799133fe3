"""Runtime classes: handlers of the container runtime, what they cost, and where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.cells import AGE, NAME, at, column
from podkeep.apiserver.kinds.field_rules import immutable, labels
from podkeep.apiserver.kinds.pods import resources as pod_resources
from podkeep.apiserver.kinds.pods.validation.requirements import validate_overhead
from podkeep.apiserver.kinds.pods.validation.scheduling import validate_tolerations
from podkeep.apiserver.kinds.pods.warnings import DEPRECATED_NODE_LABELS
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.schema.table import Kind


def _default(value: Object) -> None:
    pod_resources.round_up(at(value, "overhead", "podFixed", default={}))


def _validate(value: Object, errors: FieldErrors) -> None:
    handler = value.get("handler", "")
    if errors.required("handler", handler) and (why := names.dns_label(handler)):
        errors.invalid("handler", handler, why)
    validate_overhead(at(value, "overhead", "podFixed", default={}), "overhead", errors)
    scheduling = value.get("scheduling", {})
    labels(scheduling.get("nodeSelector", {}), "scheduling.nodeSelector", errors)
    tolerations = scheduling.get("tolerations", ())
    validate_tolerations(tolerations, "scheduling.tolerations", errors)
    seen = set()
    for index, toleration in enumerate(tolerations):
        key = tuple(toleration.get(name, "") for name in ("key", "operator", "value", "effect"))
        if key in seen:
            errors.duplicate(f"scheduling.tolerations[{index}]", toleration)
        seen.add(key)


def _validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    immutable(new.get("handler", ""), old.get("handler", ""), "handler", errors)


def _warnings(new: Mapping[str, Any], _: Mapping[str, Any] | None) -> list[str]:
    keys = at(new, "scheduling", "nodeSelector", default=())
    return [f"scheduling.nodeSelector: {DEPRECATED_NODE_LABELS[key]}" for key in keys if key in DEPRECATED_NODE_LABELS]


RESOURCES = (
    Resource(
        kind=Kind("node.k8s.io", "v1", "RuntimeClass"),
        plural="runtimeclasses",
        namespaced=False,
        columns=(NAME, column("Handler", lambda value: value.get("handler", "")), AGE),
        strategy=Strategy(
            default=_default,
            warnings=_warnings,
            validate=_validate,
            validate_update=_validate_update,
            create_on_update=True,
            unconditional_update=False,
        ),
    ),
)
