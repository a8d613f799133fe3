"""QoS-class resources that nodes have and quotas allow (KEP-3008): lists of ``{name, classes, immutable}``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api import class_resources
from podkeep.api.feature_gates import CLASS_RESOURCES, FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.meta.objects import Object

POD = "podClassResources"
CONTAINER = "containerClassResources"
FIELDS = (POD, CONTAINER)


def drop(new: Object, old: Mapping[str, Any] | None, part: str, gates: FeatureGates) -> None:
    """Remove both lists from a part of an object (``spec``) if the gate is off, but not those that the old one has."""
    if gates.enabled(CLASS_RESOURCES) or part not in new:
        return
    before = (old or {}).get(part, {})
    for name in FIELDS:
        if name not in before:
            new[part].pop(name, None)


def validate(part: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    """Note what is wrong with both lists of a part of an object."""
    for field in FIELDS:
        seen = set()
        for index, info in enumerate(part.get(field, ())):
            where = f"{path}.{field}[{index}]"
            name = info.get("name", "")
            if errors.required(f"{where}.name", name) and (why := class_resources.type_problem(name)):
                errors.invalid(f"{where}.name", name, why)
            if name in seen:
                errors.duplicate(f"{where}.name", name)
            seen.add(name)
            _classes(info.get("classes", ()), f"{where}.classes", errors)


def _classes(classes: list[str], path: str, errors: FieldErrors) -> None:
    seen = set()
    for index, name in enumerate(classes):
        if why := class_resources.class_problem(name):
            errors.invalid(f"{path}[{index}]", name, why)
        if name in seen:
            errors.duplicate(f"{path}[{index}]", name)
        seen.add(name)
