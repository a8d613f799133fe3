"""Nodes. Whoever registers one gives its status, too; QoS-class resources in it are KEP-3008's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podkeep.api import names
from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.cells import AGE, NAME, NONE, at, column
from podkeep.apiserver.kinds.cluster import class_infos
from podkeep.apiserver.kinds.field_rules import named, not_supported
from podkeep.apiserver.kinds.pods.validation.requirements import validate_quantity
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.kinds.services import addresses
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.schema.decode import WrongType, decode
from podkeep.apiserver.schema.table import Kind, kubernetes

TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TAINTS = "scheduler.alpha.kubernetes.io/taints"
_TAINT = "io.k8s.api.core.v1.Taint"
_ROLE_PREFIX = "node-role.kubernetes.io/"
_ROLE = "kubernetes.io/role"
_FEATURE = re.compile(r"[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*")
_NO_FEATURE = (
    "must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or"
    " MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
)
_ASSIGNED = 'except from "" to valid'


def _default(node: Object) -> None:
    status = node.get("status", {})
    if "capacity" in status and "allocatable" not in status:
        status["allocatable"] = dict(status["capacity"])
    spec = node.get("spec", {})
    first, networks = spec.get("podCIDR", ""), spec.get("podCIDRs", [])
    # Two names of one field: the older one wins.
    if first and (not networks or networks[0] != first):
        spec["podCIDRs"] = [first]
    elif networks:
        spec["podCIDR"] = networks[0]


def _drop(new: Object, old: Object | None, gates: FeatureGates) -> None:
    class_infos.drop(new, old, "status", gates)
    # A feature that Kubernetes has given up.
    if old is None or not at(old, "spec", "configSource"):
        new.get("spec", {}).pop("configSource", None)
    if old is None or not at(old, "status", "config"):
        new.get("status", {}).pop("config", None)


def _warnings(new: Mapping[str, Any], _: Mapping[str, Any] | None) -> list[str]:
    spec = new.get("spec", {})
    found = []
    if "configSource" in spec:
        found.append("spec.configSource: the feature is removed")
    if spec.get("externalID"):
        found.append("spec.externalID: this field is deprecated, and is unused by Kubernetes")
    for index, network in enumerate(spec.get("podCIDRs", ())):
        found += addresses.network_warnings(f"spec.podCIDRs[{index}]", network)
    return found


def _validate(node: Object, errors: FieldErrors) -> None:
    _annotations(node, errors)
    spec = node.get("spec", {})
    # Upstream's paths, too, begin with metadata.
    validate_taints(spec.get("taints", ()), "metadata.taints", errors)
    swap = at(node, "status", "nodeInfo", "swap", "capacity")
    if swap is not None and swap <= 0:
        errors.invalid("metadata.nodeSwapStatus.capacity", swap, "must be greater than zero")
    _status(node, errors)
    networks = spec.get("podCIDRs", ())
    for index, network in enumerate(networks):
        addresses.validate_network(f"spec.podCIDRs[{index}]", network, errors)
    families = [":" in network for network in networks]
    if len(families) != len(set(families)):
        errors.invalid("spec.podCIDRs", networks, "may specify no more than one CIDR for each IP family")


def _annotations(node: Mapping[str, Any], errors: FieldErrors) -> None:
    text = at(node, "metadata", "annotations", _TAINTS, default="")
    if not text:
        return
    try:
        found = msgspec.json.decode(text, type=list)
        taints = [decode(taint, kubernetes().struct(_TAINT)).value for taint in found]
    except (msgspec.DecodeError, WrongType, RecursionError) as error:
        errors.invalid("metadata.annotations", _TAINTS, str(error))
        return
    validate_taints(taints, f"metadata.annotations.{_TAINTS}", errors)


def validate_taints(taints: Sequence[Mapping[str, Any]], path: str, errors: FieldErrors) -> None:
    """Note what is wrong with the taints of a node."""
    seen = set()
    for index, taint in enumerate(taints):
        where = f"{path}[{index}]"
        key, value, effect = taint.get("key", ""), taint.get("value", ""), taint.get("effect", "")
        named(f"{where}.key", key, names.label_key_problems(key), errors)
        named(f"{where}.value", value, names.label_value(value), errors)
        if errors.required(f"{where}.effect", effect) and effect not in TAINT_EFFECTS:
            not_supported(f"{where}.effect", effect, TAINT_EFFECTS, errors)
        if (effect, key) in seen:
            shown = msgspec.json.encode(taint).decode()
            errors.add(where, f"Duplicate value: {shown}: taints must be unique by key and effect pair")
        seen.add((effect, key))


def _status(node: Mapping[str, Any], errors: FieldErrors) -> None:
    status = node.get("status", {})
    for field in ("capacity", "allocatable"):
        for name, amount in status.get(field, {}).items():
            validate_quantity(f"status.{field}.{name}", name, amount, errors)
    class_infos.validate(status, "status", errors)
    features = status.get("declaredFeatures", ())
    for index, feature in enumerate(features):
        where = f"status.declaredFeatures[{index}]"
        if len(feature) > 253:
            errors.invalid(where, feature, f'invalid feature name "{feature}": must be no more than 253 characters')
        elif not _FEATURE.fullmatch(feature):
            errors.invalid(where, feature, f'invalid feature name "{feature}": {_NO_FEATURE}')
        if index and feature == features[index - 1]:
            errors.duplicate(where, feature)
        elif index and feature < features[index - 1]:
            errors.invalid(where, feature, "list must be sorted alphabetically")


def _validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    spec, before = new.get("spec", {}), old.get("spec", {})
    _addresses(new, errors)
    if before.get("podCIDRs") and spec.get("podCIDRs", []) != before["podCIDRs"]:
        errors.forbidden("spec.podCIDRs", f"node updates may not change podCIDR {_ASSIGNED}")
    if before.get("providerID") and spec.get("providerID", "") != before["providerID"]:
        errors.forbidden("spec.providerID", f"node updates may not change providerID {_ASSIGNED}")
    if "configSource" in spec:
        _config_source(spec["configSource"], "spec.configSource", errors, assigned=False)
    for name, source in at(new, "status", "config", default={}).items():
        if isinstance(source, dict):
            _config_source(source, f"status.config.{name}", errors, assigned=True)
    if spec.get("externalID", "") != before.get("externalID", ""):
        errors.forbidden("spec.externalID", "may not be updated")


def _addresses(node: Mapping[str, Any], errors: FieldErrors) -> None:
    seen = set()
    for index, address in enumerate(at(node, "status", "addresses", default=())):
        pair = address.get("type", ""), address.get("address", "")
        if pair in seen:
            errors.duplicate(f"status.addresses[{index}]", address)
        seen.add(pair)


def _config_source(source: Mapping[str, Any], path: str, errors: FieldErrors, *, assigned: bool) -> None:
    """Hold a field of a feature that Kubernetes has given up against its rules, since old objects may have it."""
    found = source.get("configMap")
    if found is None:
        errors.invalid(path, source, "exactly one reference subfield must be non-nil")
        return
    for name in ("uid", "resourceVersion"):
        where = f"{path}.configMap.{name}"
        if assigned:
            errors.required(where, found.get(name))
        elif found.get(name):
            errors.forbidden(where, f"{name} must not be set in spec")
    for name, rule in (
        ("namespace", names.dns_label),
        ("name", names.dns_subdomain),
        ("kubeletConfigKey", names.config_key),
    ):
        value, where = found.get(name, ""), f"{path}.configMap.{name}"
        if errors.required(where, value) and (why := rule(value)):
            errors.invalid(where, value, why)


def _validate_status(new: Object, old: Object, errors: FieldErrors) -> None:
    _annotations(new, errors)
    _status(new, errors)
    _validate_update(new, old, errors)
    validate_taints(at(new, "spec", "taints", default=()), "metadata.taints", errors)


def _status_cell(node: Mapping[str, Any]) -> str:
    conditions = at(node, "status", "conditions", default=())
    ready = [item.get("status") == "True" for item in conditions if item.get("type") == "Ready"]
    # Of several conditions the last counts (printNode).
    shown = ("Ready" if ready[-1] else "NotReady") if ready else "Unknown"
    return f"{shown},SchedulingDisabled" if at(node, "spec", "unschedulable") else shown


def _roles(node: Mapping[str, Any]) -> str:
    found = set()
    for key, value in metadata(node).get("labels", {}).items():
        if key.startswith(_ROLE_PREFIX):
            found.add(key.removeprefix(_ROLE_PREFIX))
        elif key == _ROLE:
            found.add(value)
    return ",".join(sorted(found - {""})) or NONE


def _address(node: Mapping[str, Any], kind: str) -> str:
    for item in at(node, "status", "addresses", default=()):
        if item.get("type") == kind:
            found: str = item.get("address", "")
            return found
    return NONE


def _info(node: Mapping[str, Any], name: str) -> str:
    found: str = at(node, "status", "nodeInfo", name) or "<unknown>"
    return found


def _kernel(node: Mapping[str, Any]) -> str:
    machine = at(node, "status", "nodeInfo", "architecture")
    version = _info(node, "kernelVersion")
    return f"{version} ({machine})" if machine else version


RESOURCES = (
    Resource(
        kind=Kind("", "v1", "Node"),
        plural="nodes",
        namespaced=False,
        short_names=("no",),
        subresources=frozenset({"proxy", "status"}),
        columns=(
            NAME,
            column("Status", _status_cell),
            column("Roles", _roles),
            AGE,
            column("Version", lambda node: at(node, "status", "nodeInfo", "kubeletVersion", default="")),
            column("Internal-IP", lambda node: _address(node, "InternalIP"), wide=True),
            column("External-IP", lambda node: _address(node, "ExternalIP"), wide=True),
            column("OS-Image", lambda node: _info(node, "osImage"), wide=True),
            column("Kernel-Version", _kernel, wide=True),
            column("Container-Runtime", lambda node: _info(node, "containerRuntimeVersion"), wide=True),
        ),
        strategy=Strategy(
            default=_default,
            drop=_drop,
            warnings=_warnings,
            validate=_validate,
            validate_update=_validate_update,
            validate_status=_validate_status,
            status=True,
            status_on_create=True,
            selectable=lambda node: {"spec.unschedulable": "true" if at(node, "spec", "unschedulable") else "false"},
        ),
    ),
)
