"""PersistentVolumeClaims."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from podkeep.api import names
from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.cells import AGE, NAME, at, column
from podkeep.apiserver.kinds.field_rules import IMMUTABLE, immutable, not_supported
from podkeep.apiserver.kinds.pods import resources as pod_resources
from podkeep.apiserver.kinds.pods.validation.requirements import is_native, validate_quantity
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.kinds.storage.claim_spec import validate_claim_spec
from podkeep.apiserver.kinds.storage.volume_rules import (
    CLASS_ANNOTATION,
    CLASS_DEPRECATED,
    FILESYSTEM,
    access_text,
    class_of,
    phase_cell,
)
from podkeep.apiserver.meta.objects import Object, keep_field, metadata
from podkeep.apiserver.patch.values import copy, equal
from podkeep.apiserver.schema.table import Kind
from podkeep.base.text import quantity

_BOUND = "Bound"
_CLAIM = "PersistentVolumeClaim"
_SNAPSHOT = ("snapshot.storage.k8s.io", "VolumeSnapshot")
_RESIZE_STATUSES = (
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
)
_ATTRIBUTES_CLASS = "volumeAttributesClassName"


def _default(value: Object) -> None:
    spec = value.setdefault("spec", {})
    spec.setdefault("volumeMode", FILESYSTEM)
    pod_resources.round_requirements(spec.get("resources", {}))
    status = value.setdefault("status", {})
    status["phase"] = status.get("phase") or "Pending"
    for name in ("capacity", "allocatedResources"):
        pod_resources.round_up(status.get(name, {}))


def _drop(new: Object, old: Object | None, _: FeatureGates) -> None:
    """Drop a source in another namespace, a feature that is off by default in Kubernetes 1.36 and not built here."""
    spec = new.get("spec", {})
    if at(spec, "dataSourceRef", "namespace") and at(old or {}, "spec", "dataSourceRef") is None:
        del spec["dataSourceRef"]


def _prepare_create(value: Object) -> None:
    value["status"] = {"phase": "Pending"}
    _data_sources(value["spec"], {})


def _prepare_update(new: Object, old: Object) -> None:
    _data_sources(new["spec"], old.get("spec", {}))


def _data_sources(spec: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Make the two names of one field agree.

    ``dataSource`` alone was once ignored if it was neither a claim nor a snapshot, and still is.
    """
    source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
    if source is not None and reference is None and "dataSource" not in before and "dataSourceRef" not in before:
        kind = source.get("apiGroup", ""), source.get("kind", "")
        if kind not in (("", _CLAIM), _SNAPSHOT):
            del spec["dataSource"]
            return
    if source is not None and reference is None:
        spec["dataSourceRef"] = dict(source)
    elif source is None and reference is not None and not reference.get("namespace"):
        spec["dataSource"] = {name: item for name, item in reference.items() if name != "namespace"}


def _validate(value: Object, errors: FieldErrors) -> None:
    validate_claim_spec(value.get("spec", {}), "spec", errors)


def _validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    spec, before = new.get("spec", {}), old.get("spec", {})
    _immutable_spec(new, old, errors)
    asked = quantity.parse(_storage(spec))
    if asked < quantity.parse(_storage(before)) and asked <= _capacity(old):
        errors.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity")
    immutable(spec.get("volumeMode"), before.get("volumeMode"), "volumeMode", errors)
    current = at(old, "status", "currentVolumeAttributesClassName")
    name = spec.get(_ATTRIBUTES_CLASS)
    if name != before.get(_ATTRIBUTES_CLASS) and current is not None and not name:
        to = "nil" if name is None else "empty string"
        errors.forbidden(
            f"spec.{_ATTRIBUTES_CLASS}",
            f"update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil",
        )


def _storage(spec: Mapping[str, Any]) -> str:
    amount: str = at(spec, "resources", "requests", "storage", default="0")
    return amount


def _capacity(value: Mapping[str, Any]) -> Decimal:
    return quantity.parse(at(value, "status", "capacity", "storage", default="0"))


def _immutable_spec(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note a change of what is fixed, which is all but what a controller fills in, and the size of a bound claim."""
    spec, before = copy(new.get("spec", {})), old.get("spec", {})
    if not before.get("volumeName"):
        keep_field(spec, before, "volumeName")
    annotated = metadata(old).get("annotations", {}).get(CLASS_ANNOTATION)
    given = metadata(new).get("annotations", {}).get(CLASS_ANNOTATION)
    # A class may be set late: as the annotation had it (validateStorageClassUpgradeFromAnnotation), or where there was
    # none (validateStorageClassUpgradeFromNil).
    added = "storageClassName" not in before and "storageClassName" in spec
    if added and annotated is not None and spec["storageClassName"] == annotated and given in (None, annotated):
        del spec["storageClassName"]
    else:
        if given != annotated:
            errors.invalid(f"metadata.annotations.{CLASS_ANNOTATION}", given or "", IMMUTABLE)
        if added and annotated in (None, spec["storageClassName"]):
            del spec["storageClassName"]
    if at(new, "status", "phase") == _BOUND:
        requests = spec.get("resources", {}).get("requests")
        if requests is not None:
            requests["storage"] = _storage(before)
        keep_field(spec, before, _ATTRIBUTES_CLASS)
    if not equal(spec, before):
        errors.forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        )


def _validate_status(new: Object, _: Object, errors: FieldErrors) -> None:
    status = new.get("status", {})
    for name, amount in status.get("capacity", {}).items():
        if quantity.parse(amount) < 0:
            errors.invalid(f"status.capacity[{name}]", quantity.units(amount), "must be a valid resource quantity")
    where = "status.allocatedResourceStatuses"
    for name, state in status.get("allocatedResourceStatuses", {}).items():
        _resource_key(name, where, errors)
        if state not in _RESIZE_STATUSES:
            not_supported(where, name, _RESIZE_STATUSES, errors)
    where = "status.allocatedResources"
    for name, amount in status.get("allocatedResources", {}).items():
        if _resource_key(name, where, errors):
            validate_quantity(f"{where}[{name}]", "storage", amount, errors)


def _resource_key(name: str, path: str, errors: FieldErrors) -> bool:
    if why := names.label_key(name):
        errors.invalid(path, name, why)
    elif is_native(name) and name != "storage":
        not_supported(path, name, ("storage",), errors)
    else:
        return True
    return False


def _warnings(new: Mapping[str, Any], _: Mapping[str, Any] | None) -> list[str]:
    found = []
    if CLASS_ANNOTATION in metadata(new).get("annotations", ()):
        found.append(f"metadata.annotations[{CLASS_ANNOTATION}]: {CLASS_DEPRECATED}")
    for kind in ("requests", "limits"):
        amount = at(new, "spec", "resources", kind, "storage", default="0")
        if quantity.parse(amount) % 1:
            found.append(
                f'spec.resources.{kind}[storage]: fractional byte value "{amount}" is invalid, must be an integer'
            )
    return found


def _of_volume(value: Mapping[str, Any], name: str) -> Any:
    """Return a field of the status of a claim that has a volume."""
    return at(value, "status", name, default={}) if at(value, "spec", "volumeName") else None


def _capacity_cell(value: Mapping[str, Any]) -> str:
    capacity = _of_volume(value, "capacity")
    return "" if capacity is None else capacity.get("storage", "0")


RESOURCES = (
    Resource(
        kind=Kind("", "v1", "PersistentVolumeClaim"),
        plural="persistentvolumeclaims",
        short_names=("pvc",),
        subresources=frozenset({"status"}),
        columns=(
            NAME,
            column("Status", phase_cell),
            column("Volume", lambda value: at(value, "spec", "volumeName", default="")),
            column("Capacity", _capacity_cell),
            column("Access Modes", lambda value: access_text(_of_volume(value, "accessModes") or [])),
            column("StorageClass", class_of),
            column("VolumeAttributesClass", lambda value: at(value, "spec", _ATTRIBUTES_CLASS, default="<unset>")),
            AGE,
            column("VolumeMode", lambda value: at(value, "spec", "volumeMode", default="<unset>"), wide=True),
        ),
        strategy=Strategy(
            default=_default,
            drop=_drop,
            warnings=_warnings,
            prepare_create=_prepare_create,
            prepare_update=_prepare_update,
            validate=_validate,
            validate_update=_validate_update,
            validate_status=_validate_status,
            status=True,
            returns_deleted=True,
        ),
    ),
)
