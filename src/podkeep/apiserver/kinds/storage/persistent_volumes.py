"""PersistentVolumes."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.cells import AGE, NAME, at, column
from podkeep.apiserver.kinds.field_rules import IMMUTABLE, immutable, not_supported, required
from podkeep.apiserver.kinds.pods import resources as pod_resources
from podkeep.apiserver.kinds.pods.defaults import default_sources
from podkeep.apiserver.kinds.pods.validation.fields import supported
from podkeep.apiserver.kinds.pods.validation.scheduling import validate_node_selector
from podkeep.apiserver.kinds.pods.warnings import DEPRECATED_NODE_LABELS
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.kinds.storage import volume_sources
from podkeep.apiserver.kinds.storage.claim_spec import ACCESS_MODES, VOLUME_MODES
from podkeep.apiserver.kinds.storage.volume_rules import (
    CLASS_ANNOTATION,
    CLASS_DEPRECATED,
    FILESYSTEM,
    access_text,
    class_of,
    phase_cell,
)
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.patch.values import copy, equal
from podkeep.apiserver.schema.table import Kind
from podkeep.base.text import quantity

MOUNT_OPTIONS = "volume.beta.kubernetes.io/mount-options"
_RECYCLE = "Recycle"
_POLICIES = ("Delete", _RECYCLE, "Retain")
_RENAMED = {
    "beta.kubernetes.io/arch": "kubernetes.io/arch",
    "beta.kubernetes.io/instance-type": "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/os": "kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
}
"""Labels of nodes that an affinity may change to others, by their old name."""


def _default(value: Object) -> None:
    spec = value.setdefault("spec", {})
    spec["persistentVolumeReclaimPolicy"] = spec.get("persistentVolumeReclaimPolicy") or "Retain"
    spec.setdefault("volumeMode", FILESYSTEM)
    pod_resources.round_up(spec.get("capacity", {}))
    default_sources(spec)
    if not at(value, "status", "phase"):
        value.setdefault("status", {})["phase"] = "Pending"


def _prepare_create(value: Object) -> None:
    value["status"] = {"phase": "Pending", "lastPhaseTransitionTime": metadata(value)["creationTimestamp"]}


def _prepare_status(new: Object, old: Object) -> None:
    """Note when the phase changed, unless the client did."""
    status, before = new.setdefault("status", {}), old.get("status", {})
    time, last = status.get("lastPhaseTransitionTime"), before.get("lastPhaseTransitionTime")
    if status.get("phase") != before.get("phase"):
        if time in (None, last):
            status["lastPhaseTransitionTime"] = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    elif time is None and last is not None:
        status["lastPhaseTransitionTime"] = last


def _validate(value: Object, errors: FieldErrors) -> None:
    spec = value.get("spec", {})
    errors.required("spec.accessModes", spec.get("accessModes"))
    modes = spec.get("accessModes", ())
    for mode in modes:
        supported("spec.accessModes", mode, ACCESS_MODES, errors)
    # All but the last, which is ReadWriteOncePod.
    if "ReadWriteOncePod" in modes and set(modes) & set(ACCESS_MODES[:-1]):
        errors.forbidden("spec.accessModes", "may not use ReadWriteOncePod with other access modes")
    _capacity(spec.get("capacity", {}), errors)
    policy = spec.get("persistentVolumeReclaimPolicy", "")
    if policy and policy not in _POLICIES:
        not_supported("spec.persistentVolumeReclaimPolicy", policy, _POLICIES, errors)
    if "nodeAffinity" in spec:
        selector = spec["nodeAffinity"].get("required")
        if selector is None:
            required("spec.nodeAffinity.required", "must specify required node constraints", errors)
        else:
            validate_node_selector(selector, "spec.nodeAffinity.required", errors)
    volume_sources.validate(spec, metadata(value).get("name", ""), "spec", errors)
    host_path = at(spec, "hostPath", "path", default="")
    # Python keeps two slashes at the start of a path; Go's path.Clean does not.
    if host_path and posixpath.normpath(host_path) in ("/", "//") and policy == _RECYCLE:
        errors.forbidden("spec.persistentVolumeReclaimPolicy", "may not be 'recycle' for a hostPath mount of '/'")
    name = spec.get("storageClassName", "")
    if name and (why := names.dns_subdomain(name)):
        errors.invalid("spec.storageClassName", name, why)
    if "volumeMode" in spec:
        supported("spec.volumeMode", spec["volumeMode"], VOLUME_MODES, errors)
    _attributes_class(spec, errors)
    if MOUNT_OPTIONS in metadata(value).get("annotations", ()) and not spec.keys() & volume_sources.MOUNT_OPTIONS:
        errors.forbidden(f"metadata.annotations.{MOUNT_OPTIONS}", "may not specify mount options for this volume type")


def _capacity(capacity: Mapping[str, str], errors: FieldErrors) -> None:
    errors.required("spec.capacity", capacity)
    if set(capacity) != {"storage"}:
        not_supported("spec.capacity", capacity or None, ("storage",), errors)
    for name, amount in capacity.items():
        number = quantity.parse(amount)
        if number < 0:
            errors.invalid(f"spec.capacity[{name}]", quantity.units(amount), "must be a valid resource quantity")
        if number <= 0:
            errors.invalid(f"spec.capacity[{name}]", amount, "must be greater than zero")


def _attributes_class(spec: Mapping[str, Any], errors: FieldErrors) -> None:
    name = spec.get("volumeAttributesClassName")
    if name is None:
        return
    where = "spec.volumeAttributesClassName"
    if not name:
        required(where, "an empty string is disallowed", errors)
    elif why := names.dns_subdomain(name):
        errors.invalid(where, name, why)
    if "csi" not in spec:
        required("spec.csi", "has to be specified when using volumeAttributesClassName", errors)


def _validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    spec, before = new.get("spec", {}), old.get("spec", {})
    if not equal(_fixed_source(spec, before), volume_sources.source(before)):
        errors.forbidden("spec.persistentvolumesource", "spec.persistentvolumesource is immutable after creation")
    immutable(spec.get("volumeMode"), before.get("volumeMode"), "volumeMode", errors)
    affinity = before.get("nodeAffinity")
    if affinity is not None and not equal(_renamed(spec.get("nodeAffinity")), _renamed(affinity)):
        errors.invalid(
            "nodeAffinity", spec.get("nodeAffinity"), f"{IMMUTABLE}, except for updating from beta label to GA"
        )
    name = "volumeAttributesClassName"
    if name in before and name not in spec:
        errors.forbidden(f"spec.{name}", "update from non-nil value to nil is forbidden")


def _fixed_source(spec: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source of a volume without what may be added to it later."""
    source = volume_sources.source(spec)
    field = "controllerExpandSecretRef"
    if "csi" in source and "csi" in before and field not in before["csi"]:
        source["csi"] = {name: value for name, value in source["csi"].items() if name != field}
    return source


def _renamed(affinity: Any) -> Any:
    """Return an affinity with the new names of labels."""
    affinity = copy(affinity)
    for term in at(affinity or {}, "required", "nodeSelectorTerms", default=()):
        for item in term.get("matchExpressions", ()):
            item["key"] = _RENAMED.get(item.get("key", ""), item.get("key", ""))
    return affinity


def _warnings(new: Mapping[str, Any], _: Mapping[str, Any] | None) -> list[str]:
    annotations, spec = metadata(new).get("annotations", {}), new.get("spec", {})
    found = [
        f"metadata.annotations[{key}]: {text}"
        for key, text in (
            (CLASS_ANNOTATION, CLASS_DEPRECATED),
            (MOUNT_OPTIONS, 'deprecated since v1.31; use "mountOptions" attribute instead'),
        )
        if key in annotations
    ]
    if spec.get("persistentVolumeReclaimPolicy") == _RECYCLE:
        found.append(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended"
            " approach is to use dynamic provisioning."
        )
    for index, term in enumerate(at(spec, "nodeAffinity", "required", "nodeSelectorTerms", default=())):
        for number, item in enumerate(term.get("matchExpressions", ())):
            if text := DEPRECATED_NODE_LABELS.get(item.get("key", "")):
                where = f"spec.nodeAffinity.required.nodeSelectorTerms[{index}].matchExpressions[{number}].key"
                found.append(f"{where}: {item['key']} is {text}")
    return found + [text for kind, text in volume_sources.DEPRECATED.items() if kind in spec]


def _claim(value: Mapping[str, Any]) -> str:
    claim = at(value, "spec", "claimRef")
    return "" if claim is None else f"{claim.get('namespace', '')}/{claim.get('name', '')}"


RESOURCES = (
    Resource(
        kind=Kind("", "v1", "PersistentVolume"),
        plural="persistentvolumes",
        namespaced=False,
        short_names=("pv",),
        subresources=frozenset({"status"}),
        columns=(
            NAME,
            column("Capacity", lambda value: at(value, "spec", "capacity", "storage", default="0")),
            column("Access Modes", lambda value: access_text(at(value, "spec", "accessModes", default=[]))),
            column("Reclaim Policy", lambda value: at(value, "spec", "persistentVolumeReclaimPolicy", default="")),
            column("Status", phase_cell),
            column("Claim", _claim),
            column("StorageClass", class_of),
            column(
                "VolumeAttributesClass",
                lambda value: at(value, "spec", "volumeAttributesClassName", default="<unset>"),
            ),
            column("Reason", lambda value: at(value, "status", "reason", default="")),
            AGE,
            column("VolumeMode", lambda value: at(value, "spec", "volumeMode", default="<unset>"), wide=True),
        ),
        strategy=Strategy(
            default=_default,
            warnings=_warnings,
            prepare_create=_prepare_create,
            prepare_status=_prepare_status,
            validate=_validate,
            validate_update=_validate_update,
            status=True,
            returns_deleted=True,
        ),
    ),
)
