"""CSIDrivers and CSINodes: a kubelet is not ready before it has written its CSINode, and schedulers read both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.cells import AGE, NAME, NONE, at, column
from podkeep.apiserver.kinds.field_rules import immutable, not_negative, not_supported
from podkeep.apiserver.kinds.pods.validation.volumes import validate_driver_name
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.schema.table import Kind

_MAX_NODE_ID = 192
_MIN_UPDATE_PERIOD_S = 10
_MIN_TOKEN_S = 600
_MAX_TOKEN_S = 1 << 32
_FS_GROUP_POLICIES = ("File", "None", "ReadWriteOnceWithFSType")
_MODES = ("Persistent", "Ephemeral")
_DRIVER_DEFAULTS = {
    "attachRequired": True,
    "podInfoOnMount": False,
    "storageCapacity": False,
    "fsGroupPolicy": "ReadWriteOnceWithFSType",
    "requiresRepublish": False,
    "seLinuxMount": False,
}
_TOKENS_LOGGED = (
    "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible"
    " logging of tokens in volume attributes"
)


# drivers


def _default_driver(value: Object) -> None:
    spec = value.setdefault("spec", {})
    for name, default in _DRIVER_DEFAULTS.items():
        spec.setdefault(name, default)
    if not spec.get("volumeLifecycleModes"):
        spec["volumeLifecycleModes"] = [_MODES[0]]


def _validate_driver(value: Object, errors: FieldErrors) -> None:
    spec = value.get("spec", {})
    if (policy := spec.get("fsGroupPolicy")) not in (None, *_FS_GROUP_POLICIES):
        not_supported("spec.fsGroupPolicy", policy, _FS_GROUP_POLICIES, errors)
    _token_requests(spec.get("tokenRequests", ()), errors)
    for mode in spec.get("volumeLifecycleModes", ()):
        if mode not in _MODES:
            not_supported("spec.volumeLifecycleModes", mode, _MODES, errors)
    period = spec.get("nodeAllocatableUpdatePeriodSeconds")
    if period is not None and period < _MIN_UPDATE_PERIOD_S:
        why = f"must be greater than or equal to {_MIN_UPDATE_PERIOD_S} seconds"
        errors.invalid("spec.nodeAllocatableUpdatePeriodSeconds", period, why)
    in_secrets = spec.get("serviceAccountTokenInSecrets")
    if in_secrets is not None and not spec.get("tokenRequests"):
        why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified"
        errors.invalid("spec.serviceAccountTokenInSecrets", in_secrets, why)


def _token_requests(requests: list[Mapping[str, Any]], errors: FieldErrors) -> None:
    seen = set()
    for index, request in enumerate(requests):
        path, audience = f"spec.tokenRequests[{index}]", request.get("audience", "")
        if audience in seen:
            errors.duplicate(f"{path}.audience", audience)
            continue
        seen.add(audience)
        seconds = request.get("expirationSeconds", _MIN_TOKEN_S)
        if seconds < _MIN_TOKEN_S:
            errors.invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
        if seconds > _MAX_TOKEN_S:
            errors.invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")


def _validate_driver_update(new: Object, old: Object, errors: FieldErrors) -> None:
    for name, path in (("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")):
        immutable(at(new, "spec", name), at(old, "spec", name), f"spec.{path}", errors)


def _driver_warnings(new: Mapping[str, Any], _: Mapping[str, Any] | None) -> list[str]:
    spec = new.get("spec", {})
    logged = spec.get("tokenRequests") and "serviceAccountTokenInSecrets" not in spec
    return [_TOKENS_LOGGED] if logged else []


def _audiences(value: Mapping[str, Any]) -> str:
    requests = at(value, "spec", "tokenRequests")
    return "<unset>" if requests is None else ",".join(request.get("audience", "") for request in requests)


def _flag(title: str, name: str) -> Any:
    return column(title, lambda value: at(value, "spec", name, default=_DRIVER_DEFAULTS[name]), type="boolean")


# nodes


def _validate_node(value: Object, errors: FieldErrors) -> None:
    seen = set()
    for index, driver in enumerate(at(value, "spec", "drivers", default=())):
        path, name = f"spec.drivers[{index}]", driver.get("name", "")
        validate_driver_name(name, f"{path}.name", errors)
        node_id = driver.get("nodeID", "")
        errors.required(f"{path}.nodeID", node_id)
        if len(node_id.encode()) > _MAX_NODE_ID:
            errors.invalid(f"{path}.nodeID", node_id, f"must be {_MAX_NODE_ID} characters or less")
        not_negative(driver.get("allocatable", {}), ["count"], f"{path}.allocatable", errors)
        if name in seen:
            errors.duplicate(f"{path}.name", name)
        seen.add(name)
        _topology_keys(driver.get("topologyKeys", ()), path, errors)


def _topology_keys(keys: list[str], path: str, errors: FieldErrors) -> None:
    seen: set[str] = set()
    for key in keys:
        errors.required(path, key)
        if key in seen:
            errors.duplicate(path, key)
        seen.add(key)
        if why := names.label_key(key):
            errors.invalid(path, key, why)


def _validate_node_update(new: Object, old: Object, errors: FieldErrors) -> None:
    stored = {driver["name"]: driver for driver in at(old, "spec", "drivers", default=())}
    for driver in at(new, "spec", "drivers", default=()):
        if (before := stored.get(driver.get("name", ""))) is not None:
            immutable(_fixed(driver), _fixed(before), "spec.drivers", errors)


def _fixed(driver: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a driver on a node may not change: all but how many volumes it takes."""
    return {name: value for name, value in driver.items() if name != "allocatable"}


RESOURCES = (
    Resource(
        kind=Kind("storage.k8s.io", "v1", "CSIDriver"),
        plural="csidrivers",
        namespaced=False,
        columns=(
            NAME,
            _flag("AttachRequired", "attachRequired"),
            _flag("PodInfoOnMount", "podInfoOnMount"),
            _flag("StorageCapacity", "storageCapacity"),
            column("TokenRequests", _audiences),
            _flag("RequiresRepublish", "requiresRepublish"),
            column("Modes", lambda value: ",".join(at(value, "spec", "volumeLifecycleModes", default=())) or NONE),
            AGE,
        ),
        strategy=Strategy(
            default=_default_driver,
            validate=_validate_driver,
            validate_update=_validate_driver_update,
            warnings=_driver_warnings,
            generation=True,
            unconditional_update=False,
        ),
    ),
    Resource(
        kind=Kind("storage.k8s.io", "v1", "CSINode"),
        plural="csinodes",
        namespaced=False,
        columns=(
            NAME,
            column("Drivers", lambda value: len(at(value, "spec", "drivers", default=())), type="integer"),
            AGE,
        ),
        strategy=Strategy(validate=_validate_node, validate_update=_validate_node_update, unconditional_update=False),
    ),
)
