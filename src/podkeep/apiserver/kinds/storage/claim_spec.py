"""Validation of what a claim of a volume asks for (core/validation: ``ValidatePersistentVolumeClaimSpec``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.field_rules import named, required
from podkeep.apiserver.kinds.pods.validation import fields as pod_fields
from podkeep.base.text import quantity

ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
VOLUME_MODES = ("Block", "Filesystem")

Values = Mapping[str, Any]


def validate_claim_template(template: Values, path: str, errors: FieldErrors) -> None:
    """Note every rule that a template of a claim breaks."""
    metadata = template.get("metadata", {})
    for key in metadata.get("annotations", ()):
        named(f"{path}.metadata.annotations", key, names.label_key_problems(key.lower()), errors)
    field_rules.labels(metadata.get("labels", {}), f"{path}.metadata.labels", errors)
    for name, value in metadata.items():
        if value and name not in ("annotations", "labels"):
            errors.forbidden(f"{path}.metadata.{name}", "cannot be set")
    validate_claim_spec(template.get("spec", {}), f"{path}.spec", errors)


def validate_claim_spec(spec: Values, path: str, errors: FieldErrors) -> None:
    """Note every rule that the spec of a claim breaks."""
    modes = spec.get("accessModes", ())
    if not modes:
        required(f"{path}.accessModes", "at least 1 access mode is required", errors)
    field_rules.label_selector(spec.get("selector"), f"{path}.selector", errors)
    for access in modes:
        pod_fields.supported(f"{path}.accessModes", access, ACCESS_MODES, errors)
    if "ReadWriteOncePod" in modes and set(modes) & set(ACCESS_MODES[:-1]):
        errors.forbidden(f"{path}.accessModes", "may not use ReadWriteOncePod with other access modes")
    _storage(spec.get("resources", {}).get("requests", {}).get("storage"), f"{path}.resources[storage]", errors)
    for name in ("storageClassName", "volumeAttributesClassName"):
        if spec.get(name):
            named(f"{path}.{name}", spec[name], names.dns_subdomain(spec[name]), errors)
    if "volumeMode" in spec:
        pod_fields.supported(f"{path}.volumeMode", spec["volumeMode"], VOLUME_MODES, errors)
    _data_sources(spec, path, errors)


def _storage(storage: str | None, path: str, errors: FieldErrors) -> None:
    if storage is None:
        errors.required(path, "")
    elif quantity.parse(storage) <= 0:
        errors.invalid(path, storage, "must be greater than zero")


def _data_sources(spec: Values, path: str, errors: FieldErrors) -> None:
    for name in ("dataSource", "dataSourceRef"):
        if name not in spec:
            continue
        given, where = spec[name], f"{path}.{name}"
        errors.required(f"{where}.name", given.get("name"))
        kind, group = given.get("kind", ""), given.get("apiGroup", "")
        errors.required(f"{where}.kind", kind)
        if not group and kind != "PersistentVolumeClaim":
            why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
            errors.invalid(where, kind, why)
        if group:
            named(f"{where}.apiGroup", group, names.dns_subdomain(group), errors)
        if given.get("namespace"):
            named(f"{where}.namespace", given["namespace"], names.dns_label(given["namespace"]), errors)
    if "dataSource" not in spec or "dataSourceRef" not in spec:
        return
    left, right = spec["dataSource"], spec["dataSourceRef"]
    if right.get("namespace"):
        why = "may not be specified when dataSourceRef.namespace is specified"
        errors.invalid(path, f"{path}.dataSource", why)
    elif any(left.get(name) != right.get(name) for name in ("apiGroup", "kind", "name")):
        errors.invalid(path, f"{path}.dataSource", "must match dataSourceRef")
