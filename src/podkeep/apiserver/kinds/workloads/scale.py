"""The subresource ``scale`` of what has replicas, as ``autoscaling/v1`` (``pkg/registry/apps/*/storage``). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import cells, field_rules
from podkeep.apiserver.kinds.cells import at, selector_text
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.schema.table import Kind

SCALE = Kind("autoscaling", "v1", "Scale")
_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_PRECONDITIONS = ("uid", "resourceVersion")


def to_scale(value: Mapping[str, Any]) -> Object:
    """Return the ``Scale`` of a Deployment, ReplicaSet, StatefulSet or ReplicationController."""
    fields = {name: metadata(value)[name] for name in _METADATA if name in metadata(value)}
    status: dict[str, Any] = {"replicas": at(value, "status", "replicas", default=0)}
    if selector := _selector(at(value, "spec", "selector", default={})):
        status["selector"] = selector
    return {
        "kind": SCALE.kind,
        "apiVersion": SCALE.api_version,
        "metadata": fields,
        "spec": {"replicas": at(value, "spec", "replicas", default=0)},
        "status": status,
    }


def _selector(selector: Mapping[str, Any]) -> str:
    if "matchLabels" in selector or "matchExpressions" in selector:
        return selector_text(selector)
    # The selector of a ReplicationController is a map of labels.
    return ",".join(sorted(f"{key}={label}" for key, label in selector.items()))


def from_scale(value: Mapping[str, Any], scale: Mapping[str, Any], errors: FieldErrors) -> Object:
    """Return an object with the replicas that a ``Scale`` asks for; what is wrong with it is noted.

    The UID and resourceVersion are those of the ``Scale``, which the write has to be held against.
    """
    replicas = at(scale, "spec", "replicas", default=0)
    if replicas < 0:
        errors.invalid("spec.replicas", replicas, field_rules.NEGATIVE)
    fields = {name: item for name, item in metadata(value).items() if name not in _PRECONDITIONS}
    fields |= {name: metadata(scale)[name] for name in _PRECONDITIONS if metadata(scale).get(name)}
    return {**value, "metadata": fields, "spec": {**value.get("spec", {}), "replicas": replicas}}


def as_applied(config: Mapping[str, Any], kind: Kind, errors: FieldErrors) -> Object:
    """Return what an applied ``Scale`` says of the object that is scaled; what is wrong with it is noted."""
    wanted: Object = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": dict(metadata(config))}
    replicas = at(config, "spec", "replicas", default=None)
    if replicas is not None:
        wanted["spec"] = {"replicas": replicas}
        if replicas < 0:
            errors.invalid("spec.replicas", replicas, field_rules.NEGATIVE)
    return wanted


COLUMNS = (
    cells.NAME,
    cells.number("Desired", "spec", "replicas"),
    cells.number("Available", "status", "replicas"),
    cells.AGE,
)
"""Of a table of ``Scale`` objects."""
