"""Binding a pod to a node: what ``pods/binding`` does (registry/core/pod/storage: ``assignPod``). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.pods.validation import fields as pod_fields
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.meta.status import MODIFIED, bad_request, conflict, invalid
from podkeep.apiserver.patch.values import copy


def bind(pod: Object, binding: Mapping[str, Any], now: str) -> Object:
    """Return a pod as it is on the node that a ``Binding`` names; its generation stays.

    :param pod: as it is stored; not changed.
    :param now: the time, RFC 3339: the condition ``PodScheduled`` gets it.
    :raises StatusError: 400, 409 or 422.
    """
    given, target = binding.get("metadata", {}), binding.get("target", {})
    name = pod["metadata"]["name"]
    if given.get("name") != name:
        raise bad_request("name in URL does not match name in Binding object")
    errors = FieldErrors()
    if target.get("kind") not in (None, "", "Node"):
        pod_fields.supported("target.kind", target["kind"], ("Node", "<empty>"), errors)
    errors.required("target.name", target.get("name"))
    if errors.found:
        raise invalid("Binding", "", name, errors.found)
    _check_preconditions(pod, given)
    if why := _obstacle(pod, name):
        raise conflict("pods/binding", "", name, why)
    bound = copy(pod)
    bound["spec"]["nodeName"] = target["name"]
    for kind in ("annotations", "labels"):
        if given.get(kind):
            bound["metadata"][kind] = {**bound["metadata"].get(kind, {}), **given[kind]}
    status = bound.setdefault("status", {})
    status.pop("nominatedNodeName", None)
    set_condition(status, {"type": "PodScheduled", "status": "True"}, now)
    return bound


def _check_preconditions(pod: Object, given: Mapping[str, Any]) -> None:
    fields = pod["metadata"]
    if given.get("uid") and given["uid"] != fields.get("uid"):
        why = f"Precondition failed: UID in precondition: {given['uid'][:80]}, UID in object meta: {fields.get('uid')}"
        raise conflict("pods", "", fields["name"], why)
    if given.get("resourceVersion") and given["resourceVersion"] != fields.get("resourceVersion"):
        raise conflict("pods", "", fields["name"], MODIFIED)


def _obstacle(pod: Object, name: str) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if node := pod["spec"].get("nodeName"):
        return f'pod {name} is already assigned to node "{node}"'
    return f"pod {name} has non-empty .spec.schedulingGates" if pod["spec"].get("schedulingGates") else ""


def set_condition(status: dict[str, Any], condition: Mapping[str, Any], now: str) -> None:
    """Put a condition into a status; the time of its last change stays if it says the same as before."""
    conditions = status.setdefault("conditions", [])
    for index, old in enumerate(conditions):
        if old.get("type") == condition["type"]:
            changed = old.get("status") != condition["status"]
            since = now if changed else old.get("lastTransitionTime", now)
            conditions[index] = {**condition, "lastTransitionTime": since}
            return
    conditions.append({**condition, "lastTransitionTime": now})
