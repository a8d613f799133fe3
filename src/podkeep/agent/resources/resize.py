"""Resources that a pod gets while it runs: what was granted, whether a change can be, what a pod is told. Pure.

Rules, reasons and texts: pkg/kubelet/allocation, status (conditions), events/resize.go; KEP-1287, KEP-5419 for the pod
as a whole, KEP-3008 for classes. What is granted is the pod's specification as it was when it was last accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from podkeep.agent.resources import requests
from podkeep.api.containers import Container, ResourceRequirements
from podkeep.api.pod import Pod
from podkeep.api.status import PodCondition
from podkeep.base.frozen import FrozenStruct

PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
DEFERRED, INFEASIBLE, ERROR = "Deferred", "Infeasible", "Error"


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of a pod, by container: those that can change while it runs."""

    containers: dict[str, ResourceRequirements] = {}
    pod: ResourceRequirements | None = None


class Refused(FrozenStruct, kw_only=True):
    """Why a change is not granted now. ``kind`` is the reason of the condition and of the event's text."""

    kind: Literal["Deferred", "Infeasible"]
    message: str


def of(pod: Pod) -> Allocation:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return Allocation(containers={item.name: item.resources for item in containers}, pod=pod.spec.resources)


def filled(granted: Allocation, pod: Pod) -> Allocation:
    """Return an allocation with containers of ``pod`` that it lacks, as one does that an agent wrote which granted
    init containers nothing."""
    return msgspec.structs.replace(granted, containers=of(pod).containers | granted.containers)


def without(allocation: Allocation, containers: Collection[str]) -> Allocation:
    """Return an allocation without some containers."""
    left = {name: item for name, item in allocation.containers.items() if name not in containers}
    return msgspec.structs.replace(allocation, containers=left)


def allocated(pod: Pod, granted: Allocation) -> Pod:
    """Return ``pod`` with the resources that it was granted, whatever its specification says by now."""
    if of(pod) == granted:
        return pod

    def with_granted(container: Container) -> Container:
        resources = granted.containers.get(container.name, container.resources)
        return msgspec.structs.replace(container, resources=resources)

    spec = msgspec.structs.replace(
        pod.spec,
        resources=granted.pod,
        containers=tuple(with_granted(item) for item in pod.spec.containers),
        init_containers=tuple(with_granted(item) for item in pod.spec.init_containers),
    )
    return msgspec.structs.replace(pod, spec=spec)


def same(one: Allocation, other: Allocation) -> bool:
    """Return whether two allocations give a pod the same, however their quantities are written."""
    return _canonical(one) == _canonical(other)


def same_amounts(one: Allocation, other: Allocation) -> bool:
    """Return whether two allocations differ in classes at most."""
    return _canonical(one, classes=False) == _canonical(other, classes=False)


def _canonical(allocation: Allocation, *, classes: bool = True) -> object:
    def plain(given: ResourceRequirements | None) -> object:
        own = given or ResourceRequirements()
        return requests.amounts(own.requests), requests.amounts(own.limits), own.classes if classes else {}

    return plain(allocation.pod), {name: plain(item) for name, item in allocation.containers.items()}


def grows(pod: Pod, before: Pod) -> bool:
    """Return whether ``pod`` requests more CPU or memory than ``before``; what does not is granted first."""
    new, old = requests.pod_requests(pod), requests.pod_requests(before)
    return any(new.get(name, 0) > old.get(name, 0) for name in (requests.CPU, requests.MEMORY))


def immutable_change(pod: Pod, before: Pod, immutable: Mapping[Literal["pod", "container"], frozenset[str]]) -> str:
    """Return why a change of classes is impossible, empty if it is not (KEP-3008: types whose class cannot change).

    :param immutable: types of class resources, by level.
    """
    old, new = before.spec.resources or ResourceRequirements(), pod.spec.resources or ResourceRequirements()
    changed = _changed(old.classes, new.classes) & immutable["pod"]
    where = "the pod"
    if not changed:
        granted = of(before).containers
        for name, item in of(pod).containers.items():
            old_classes = granted[name].classes if name in granted else {}
            changed = _changed(old_classes, item.classes) & immutable["container"]
            where = f"container {name}"
            if changed:
                break
    if not changed:
        return ""
    return f"class resource {min(changed)}: the class of {where} cannot be changed while it runs: the type is immutable"


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> set[str]:
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


# ------------------------------------------------------------------------------------------------ what the pod is told


def started_text(pod: Pod) -> str:
    return f"Pod resize started: {_summary(pod)}"


def completed_text(pod: Pod, generation: int) -> str:
    """Return the message of the event ``ResizeCompleted``; ``generation`` is that of the change."""
    return f"Pod resize completed: {_summary(pod, generation)}"


def error_text(pod: Pod, generation: int, error: str) -> str:
    return f"Pod resize error: {_summary(pod, generation, error)}"


def pending_text(pod: Pod, refused: Refused) -> str:
    """Return the message of the events ``ResizeDeferred`` and ``ResizeInfeasible``."""
    return f"Pod resize {refused.kind}: {_summary(pod, error=refused.message)}"


def pending_condition(pod: Pod, refused: Refused) -> PodCondition:
    """Return the condition of a pod whose specification asks for what it was not granted."""
    return PodCondition(
        type=PENDING,
        status="True",
        reason=refused.kind,
        message=refused.message,
        observed_generation=pod.metadata.generation,
    )


def progress_condition(generation: int, error: str = "") -> PodCondition:
    """Return the condition of a pod that was granted what it does not have yet."""
    return PodCondition(
        type=IN_PROGRESS,
        status="True",
        reason=ERROR if error else "",
        message=error,
        observed_generation=generation,
    )


def _summary(pod: Pod, generation: int | None = None, error: str = "") -> str:
    """Return what a pod asks for, as JSON."""
    found: dict[str, object] = {}
    for name, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        if containers:
            found[name] = [{"name": item.name, "resources": item.resources} for item in containers]
    found["generation"] = pod.metadata.generation if generation is None else generation
    if error:
        found["error"] = error
    return msgspec.json.encode(found).decode()
