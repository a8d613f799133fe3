"""StatefulSet (``pkg/apis/apps``). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import cells, field_rules
from podkeep.apiserver.kinds.cells import at
from podkeep.apiserver.kinds.pods.template import default_pod_template, validate_pod_template
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.kinds.storage.claim_spec import validate_claim_spec
from podkeep.apiserver.kinds.workloads import workload_rules
from podkeep.apiserver.kinds.workloads.replicas import READY
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.patch.values import equal
from podkeep.apiserver.schema.table import Kind
from podkeep.base.text import quantity

_COUNTED = ("readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas")
_NUMBERS = ("replicas", *_COUNTED, "observedGeneration", "collisionCount")
_MUTABLE = frozenset(
    {
        "replicas",
        "template",
        "updateStrategy",
        "minReadySeconds",
        "ordinals",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
    }
)
_TIMES = ("whenDeleted", "whenScaled")


def default(value: Object) -> None:
    """Fill in one replica, rolling updates in order, claims that are retained, and ten old revisions."""
    spec = value.setdefault("spec", {})
    default_pod_template(spec.setdefault("template", {}))
    spec["podManagementPolicy"] = spec.get("podManagementPolicy") or "OrderedReady"
    strategy = spec.setdefault("updateStrategy", {})
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
        strategy.setdefault("rollingUpdate", {})
    if strategy["type"] == "RollingUpdate" and "rollingUpdate" in strategy:
        strategy["rollingUpdate"].setdefault("partition", 0)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for name in _TIMES:
        retention[name] = retention.get(name) or "Retain"
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    for claim in spec.get("volumeClaimTemplates", ()):
        claim["apiVersion"], claim["kind"] = "v1", "PersistentVolumeClaim"
        claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
        claim.setdefault("status", {}).setdefault("phase", "Pending")


def _begin_status(value: Object, _: Object | None = None) -> None:
    workload_rules.begin_status(value, replicas=0, availableReplicas=0)


def _prepare_create(value: Object) -> None:
    _begin_status(value)
    at(value, "spec", "updateStrategy", "rollingUpdate", default={}).pop("maxUnavailable", None)


def _prepare_update(new: Object, old: Object) -> None:
    # MaxUnavailableStatefulSet is off in Kubernetes 1.36: the field stays where it is in use.
    if at(old, "spec", "updateStrategy", "rollingUpdate", "maxUnavailable") is None:
        at(new, "spec", "updateStrategy", "rollingUpdate", default={}).pop("maxUnavailable", None)


def validate_create(value: Object, errors: FieldErrors) -> None:
    """Note what is wrong with a new StatefulSet after defaulting."""
    spec = value["spec"]
    _validate_spec(spec, errors)
    for index, claim in enumerate(spec.get("volumeClaimTemplates", ())):
        validate_claim_spec(claim.get("spec", {}), f"spec.volumeClaimTemplates[{index}].spec", errors)
    if service := spec.get("serviceName", ""):
        field_rules.named("spec.serviceName", service, names.dns_label(service), errors)
    validate_pod_template(_templated(spec), "spec.template", errors)


def validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note what an update makes wrong; a template may stay wrong, as may what cannot be changed."""
    spec, before = new["spec"], old["spec"]
    _validate_spec(spec, errors)
    found = FieldErrors()
    validate_pod_template(_templated(spec), "spec.template", found)
    if found.found and _is_valid(before):
        errors.found += found.found
    if not equal(_fixed(spec), _fixed(before)):
        errors.forbidden(
            "spec",
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy',"
            " 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        )


def _is_valid(spec: Mapping[str, Any]) -> bool:
    found = FieldErrors()
    _validate_spec(spec, found)
    validate_pod_template(_templated(spec), "spec.template", found)
    return not found.found


def _fixed(spec: Mapping[str, Any]) -> dict[str, Any]:
    fixed = {name: item for name, item in spec.items() if name not in _MUTABLE}
    return {"serviceName": "", **fixed}  # empty, it is the same as none


def _validate_spec(spec: Mapping[str, Any], errors: FieldErrors) -> None:
    """Note what is wrong with a specification but for its template, claims, and the name of its service."""
    management = spec["podManagementPolicy"]
    if management not in ("OrderedReady", "Parallel"):
        errors.invalid("spec.podManagementPolicy", management, "must be 'OrderedReady' or 'Parallel'")
    _validate_strategy(spec["updateStrategy"], errors)
    for name in _TIMES:
        policy = spec["persistentVolumeClaimRetentionPolicy"][name]
        if policy not in ("Retain", "Delete"):
            path = f"spec.persistentVolumeClaimRetentionPolicy.{name}"
            field_rules.not_supported(path, policy, ("Retain", "Delete"), errors)
    field_rules.not_negative(spec, ("replicas", "minReadySeconds"), "spec", errors)
    field_rules.not_negative(spec.get("ordinals", {}), ("start",), "spec.ordinals", errors)
    selector, template = spec.get("selector"), spec["template"]
    workload_rules.required_selector(spec, "statefulset", errors)
    if not field_rules.is_selector(selector):
        errors.add("spec.selector", f"Invalid value: {msgspec.json.encode(field_rules.shown(selector)).decode()}")
    elif not workload_rules.selector_matches(selector, template):
        workload_rules.note_mismatch(template, "spec.template", errors)
    workload_rules.always_restarted(template, "spec.template", "StatefulSet", errors)


def _validate_strategy(strategy: Mapping[str, Any], errors: FieldErrors) -> None:
    path, rolling = "spec.updateStrategy.rollingUpdate", strategy.get("rollingUpdate")
    if strategy["type"] == "OnDelete":
        if rolling is not None:
            errors.invalid(path, _shown_rolling(rolling), "only allowed for updateStrategy 'RollingUpdate'")
        return
    if strategy["type"] != "RollingUpdate":
        shown = {"Type": strategy["type"], "RollingUpdate": _shown_rolling(rolling)}
        errors.invalid("spec.updateStrategy", shown, "must be 'RollingUpdate' or 'OnDelete'")
        return
    field_rules.not_negative(rolling or {}, ("partition",), path, errors)
    unavailable = at(strategy, "rollingUpdate", "maxUnavailable")
    if unavailable is not None:
        field_rules.number_or_percent(f"{path}.maxUnavailable", unavailable, errors)
        if field_rules.is_zero(unavailable):
            errors.invalid(f"{path}.maxUnavailable", unavailable, "cannot be 0")
        field_rules.at_most_100_percent(f"{path}.maxUnavailable", unavailable, errors)


def _shown_rolling(rolling: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if rolling is None:
        return None
    return {"Partition": rolling.get("partition", 0), "MaxUnavailable": rolling.get("maxUnavailable")}


def _templated(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template as pods get it: with the volumes of the claims, and without the names that each is given."""
    template: dict[str, Any] = spec["template"]
    pod = template["spec"]
    names_of_claims = [at(claim, "metadata", "name", default="") for claim in spec.get("volumeClaimTemplates", ())]
    if not (names_of_claims or pod.get("subdomain") or pod.get("hostname")):
        return template
    claimed = {name: {"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names_of_claims}
    volumes = [*claimed.values(), *(item for item in pod.get("volumes", ()) if item.get("name") not in claimed)]
    pod = {name: item for name, item in pod.items() if name not in ("subdomain", "hostname", "volumes")}
    return {**template, "spec": {**pod, "volumes": volumes}}


def _validate_status(new: Object, old: Object, errors: FieldErrors) -> None:
    status = new.get("status", {})
    workload_rules.validate_replicas(status, _COUNTED, _NUMBERS, errors)
    why = "cannot be greater than status.readyReplicas"
    field_rules.not_above(status, ("availableReplicas",), "readyReplicas", why, errors)
    workload_rules.validate_collisions(new, old, errors)


def warnings(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[str]:
    """Return what is to be said of the template, of claims, and of a history without an end."""
    spec = new["spec"]
    found = workload_rules.template_warnings(new, old)
    # The second path is what kube-apiserver writes.
    path = "spec.volumeClaimTemplates[{}]" if old is None else "spec.volumeClaimTemplates[{}].Spec"
    for index, claim in enumerate(spec.get("volumeClaimTemplates", ())):
        for kind in ("requests", "limits"):
            size = at(claim, "spec", "resources", kind, "storage", default="0")
            if quantity.milli(size) % 1000:
                found.append(
                    f'{path.format(index)}.resources.{kind}[storage]: fractional byte value "{size}" is invalid, must'
                    " be an integer"
                )
    if spec.get("revisionHistoryLimit", 0) < 0:
        found.append(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
        )
    return found


STATEFUL_SETS = Resource(
    kind=Kind("apps", "v1", "StatefulSet"),
    plural="statefulsets",
    unserved=workload_rules.UNSERVED,
    short_names=("sts",),
    categories=("all",),
    subresources=frozenset({"status", "scale"}),
    strategy=Strategy(
        default=default,
        drop=workload_rules.drop_template,
        prepare_create=_prepare_create,
        prepare_update=_prepare_update,
        prepare_status=_begin_status,
        warnings=warnings,
        validate_create=validate_create,
        validate_update=validate_update,
        validate_status=_validate_status,
        name_rule=names.dns_label,
        status=True,
        generation=True,
    ),
    columns=(cells.NAME, READY, cells.AGE, *cells.containers("spec", "template")),
)

RESOURCES = (STATEFUL_SETS,)
