"""Pods: ``v1`` ``Pod`` (registry/core/pod/strategy.go)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.pods.binding import set_condition
from podkeep.apiserver.kinds.pods.columns import COLUMNS
from podkeep.apiserver.kinds.pods.defaults import default_pod
from podkeep.apiserver.kinds.pods.gates import drop_pod
from podkeep.apiserver.kinds.pods.resources import qos_class
from podkeep.apiserver.kinds.pods.validation import scheduling as pod_scheduling
from podkeep.apiserver.kinds.pods.validation import spec as pod_spec
from podkeep.apiserver.kinds.pods.validation import status as pod_status
from podkeep.apiserver.kinds.pods.validation import updates as pod_updates
from podkeep.apiserver.kinds.pods.warnings import pod_warnings
from podkeep.apiserver.kinds.resources import Part, Resource, Strategy
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.schema.table import Kind

SUBRESOURCES = frozenset(
    {
        "attach",
        "binding",
        "ephemeralcontainers",
        "eviction",
        "exec",
        "log",
        "portforward",
        "proxy",
        "resize",
        "status",
    }
)
_FINISHED = ("Failed", "Succeeded")


def prepare_create(pod: Object) -> None:
    """Give a new pod its status, and what follows from its labels and annotations."""
    spec, metadata = pod["spec"], pod["metadata"]
    status: dict[str, Any] = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        gated = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }
        set_condition(status, gated, metadata["creationTimestamp"])
    pod["status"] = status
    # Once and for all (KEP-3243, KEP-3633): the labels of a pod may change later.
    pod_scheduling.add_match_label_keys(spec, metadata.get("labels", {}))
    pod_spec.take_apparmor_annotations(pod)


def validate(pod: Object, errors: FieldErrors) -> None:
    """Note every rule that a pod breaks."""
    metadata, spec = pod["metadata"], pod["spec"]
    if annotations := metadata.get("annotations"):
        pod_spec.validate_annotations(annotations, spec, "spec", "metadata.annotations", errors)
    pod_spec.validate_pod_spec(spec, "spec", errors, metadata=metadata, is_pod=True)
    if not spec.get("serviceAccountName"):
        _no_tokens(spec, errors)


def _no_tokens(spec: Mapping[str, Any], errors: FieldErrors) -> None:
    for index, volume in enumerate(spec.get("volumes", ())):
        for number, source in enumerate(volume.get("projected", {}).get("sources", ())):
            if "serviceAccountToken" in source:
                path = f"spec.volumes[{index}].projected.sources[{number}].serviceAccountToken"
                errors.forbidden(path, "must not be specified when serviceAccountName is not set")


def validate_create(pod: Object, errors: FieldErrors) -> None:
    """Note what a new pod cannot have yet."""
    spec = pod["spec"]
    if spec.get("ephemeralContainers"):
        errors.forbidden("spec.ephemeralContainers", "cannot be set on create")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        errors.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")
    pod_spec.validate_profiles_agree(pod["metadata"].get("annotations", {}), spec, "spec", errors)


def _validate_ephemeral(new: Object, old: Object, errors: FieldErrors) -> None:
    validate(new, errors)
    pod_updates.validate_ephemeral(new, old, errors)


def _validate_resize(new: Object, old: Object, errors: FieldErrors) -> None:
    validate(new, errors)
    pod_updates.validate_resize(new, old, errors)


def grace_period(pod: Object, wanted: int | None) -> int:
    """Return the seconds that a deletion waits for the agent; none if no agent has the pod, or it has finished."""
    spec = pod["spec"]
    if not spec.get("nodeName") or pod.get("status", {}).get("phase") in _FINISHED:
        return 0
    seconds: int = spec.get("terminationGracePeriodSeconds", 0) if wanted is None else wanted
    return 1 if seconds < 0 else seconds


def selectable(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return what field selectors may ask for."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    return {
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.restartPolicy": spec.get("restartPolicy", ""),
        "spec.schedulerName": spec.get("schedulerName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "spec.hostNetwork": "true" if spec.get("hostNetwork") else "false",
        "status.phase": status.get("phase", ""),
        "status.podIP": status.get("podIP", ""),
        "status.nominatedNodeName": status.get("nominatedNodeName", ""),
    }


RESOURCES: tuple[Resource, ...] = (
    Resource(
        kind=Kind("", "v1", "Pod"),
        plural="pods",
        short_names=("po",),
        categories=("all",),
        subresources=SUBRESOURCES,
        columns=COLUMNS,
        strategy=Strategy(
            default=default_pod,
            drop=drop_pod,
            warnings=pod_warnings,
            prepare_create=prepare_create,
            prepare_status=pod_status.prepare_status,
            validate=validate,
            validate_create=validate_create,
            validate_update=pod_updates.validate_update,
            validate_status=pod_status.validate_status,
            parts={
                "ephemeralcontainers": Part(prepare=pod_updates.prepare_ephemeral, validate=_validate_ephemeral),
                "resize": Part(prepare=pod_updates.prepare_resize, validate=_validate_resize),
            },
            status=True,
            generation=True,
            grace_period=grace_period,
            returns_deleted=True,
            selectable=selectable,
        ),
    ),
)
