"""StorageClasses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.cells import AGE, at, column
from podkeep.apiserver.kinds.field_rules import immutable, named, not_supported
from podkeep.apiserver.kinds.pods.warnings import DEPRECATED_NODE_LABELS
from podkeep.apiserver.kinds.resources import Column, Resource, Strategy
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.schema.table import Kind

DEFAULT_ANNOTATIONS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
"""Either says that claims which name no class get this one."""
_MAX_PARAMETERS = 512
_MAX_PARAMETER_BYTES = 256 << 10
_POLICIES = ("Delete", "Retain")
_BINDING_MODES = ("Immediate", "WaitForFirstConsumer")


def is_default(value: Mapping[str, Any]) -> bool:
    """Tell whether claims that name no class get this one."""
    annotations = metadata(value).get("annotations", {})
    return any(annotations.get(key) == "true" for key in DEFAULT_ANNOTATIONS)


def _default(value: Object) -> None:
    value.setdefault("reclaimPolicy", _POLICIES[0])
    value.setdefault("volumeBindingMode", _BINDING_MODES[0])


def _validate(value: Object, errors: FieldErrors) -> None:
    provisioner = value.get("provisioner", "")
    if errors.required("provisioner", provisioner):
        named("provisioner", provisioner.lower(), names.label_key_problems(provisioner.lower()), errors)
    _parameters(value.get("parameters", {}), errors)
    policy, mode = value.get("reclaimPolicy", ""), value.get("volumeBindingMode", "")
    if policy and policy not in _POLICIES:
        not_supported("reclaimPolicy", policy, _POLICIES, errors)
    if mode not in _BINDING_MODES:
        not_supported("volumeBindingMode", mode, _BINDING_MODES, errors)
    _topologies(value.get("allowedTopologies", ()), errors)


def _parameters(parameters: Mapping[str, str], errors: FieldErrors) -> None:
    if len(parameters) > _MAX_PARAMETERS:
        errors.add("parameters", f"Too long: may not be more than {_MAX_PARAMETERS} bytes")
        return
    if "" in parameters:
        errors.invalid("parameters", "", "field can not be empty.")
    if sum(len(key.encode()) + len(text.encode()) for key, text in parameters.items()) > _MAX_PARAMETER_BYTES:
        errors.add("parameters", f"Too long: may not be more than {_MAX_PARAMETER_BYTES} bytes")


def _topologies(terms: list[Mapping[str, Any]], errors: FieldErrors) -> None:
    seen: set[frozenset[tuple[str, frozenset[str]]]] = set()
    for index, term in enumerate(terms):
        path = f"allowedTopologies[{index}].matchLabelExpressions"
        found: dict[str, frozenset[str]] = {}
        for number, item in enumerate(term.get("matchLabelExpressions", ())):
            where, key, values = f"{path}[{number}]", item.get("key", ""), item.get("values", [])
            errors.required(f"{where}.values", values)
            labels: set[str] = set()
            for position, label in enumerate(values):
                if label in labels:
                    errors.duplicate(f"{where}.values[{position}]", label)
                labels.add(label)
            named(f"{where}.key", key, names.label_key_problems(key), errors)
            if key in found:
                errors.duplicate(f"{where}.key", key)
            found[key] = frozenset(labels)
        same = frozenset(found.items())
        if same in seen:
            errors.duplicate(path, "")
        seen.add(same)


def _validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    for name in ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"):
        immutable(new.get(name), old.get(name), name, errors)


def _warnings(new: Mapping[str, Any], _: Mapping[str, Any] | None) -> list[str]:
    return [
        f"allowedTopologies[{index}].matchLabelExpressions[{number}].key: {DEPRECATED_NODE_LABELS[item['key']]}"
        for index, term in enumerate(new.get("allowedTopologies", ()))
        for number, item in enumerate(term.get("matchLabelExpressions", ()))
        if item.get("key") in DEPRECATED_NODE_LABELS
    ]


def _name(value: Mapping[str, Any]) -> str:
    name: str = metadata(value).get("name", "")
    return f"{name} (default)" if is_default(value) else name


RESOURCES = (
    Resource(
        kind=Kind("storage.k8s.io", "v1", "StorageClass"),
        plural="storageclasses",
        namespaced=False,
        short_names=("sc",),
        columns=(
            Column(name="Name", format="name", cell=lambda value, _: _name(value)),
            column("Provisioner", lambda value: value.get("provisioner", "")),
            column("ReclaimPolicy", lambda value: value.get("reclaimPolicy", _POLICIES[0])),
            column("VolumeBindingMode", lambda value: value.get("volumeBindingMode", _BINDING_MODES[0])),
            column("AllowVolumeExpansion", lambda value: at(value, "allowVolumeExpansion", default=False)),
            AGE,
        ),
        strategy=Strategy(
            default=_default,
            warnings=_warnings,
            validate=_validate,
            validate_update=_validate_update,
            returns_deleted=True,
        ),
    ),
)
