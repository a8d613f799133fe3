"""Conditions of a pod (v1.PodCondition) as kubelet 1.36 sets them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from podkeep.agent.observed import Observed
from podkeep.agent.pod.plan import ALL_RESTARTING, restarting_all
from podkeep.agent.pod.restarts import may_restart_all
from podkeep.api.containers import is_sidecar
from podkeep.api.pod import Pod
from podkeep.api.status import ConditionStatus, ContainerStatus, PodCondition, PodPhase, PodStatus

DISRUPTION_TARGET = "DisruptionTarget"
RESIZE_PENDING, RESIZE_IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
_SCHEDULED, _READY, _INITIALIZED = "PodScheduled", "Ready", "Initialized"
_CONTAINERS_READY, _READY_TO_START = "ContainersReady", "PodReadyToStartContainers"
OWNED = frozenset(
    {
        _SCHEDULED,
        _READY,
        _INITIALIZED,
        _CONTAINERS_READY,
        _READY_TO_START,
        ALL_RESTARTING,
        RESIZE_PENDING,
        RESIZE_IN_PROGRESS,
    }
)
"""Types that a kubelet alone sets; of the others it keeps what the API has. ``DisruptionTarget`` is shared."""


def conditions(
    pod: Pod, observed: Observed, status: PodStatus, previous: PodStatus, own: Iterable[PodCondition]
) -> tuple[PodCondition, ...]:
    """Return the conditions of ``pod``, without the times at which they changed.

    :param status: the new one, with phase and containers.
    :param previous: what was last reported by this agent; conditions of others are those of the pod's object.
    :param own: the agent's own beside those that follow from containers.
    """
    phase = status.phase or "Pending"
    statuses = (*status.init_container_statuses, *status.container_statuses)
    own = tuple(own)
    others = (*(item for item in foreign(pod) if item.type not in {mine.type for mine in own}), *own)
    by_name = {status.name: status for status in statuses}
    ready = _containers_ready(pod, phase, by_name)
    values = [
        _condition(_READY_TO_START, _is_ready_to_start(observed)),
        _initialized(pod, phase, by_name, previous),
        _ready(pod, others, ready),
        ready,
        _condition(_SCHEDULED, True),
    ]
    if may_restart_all(pod):
        values.append(_restarting(pod, observed, phase, previous))
    generation = pod.metadata.generation
    # Others' conditions have the generation that they are about from whoever set them.
    return (*others, *(msgspec.structs.replace(item, observed_generation=generation) for item in values))


def foreign(pod: Pod) -> tuple[PodCondition, ...]:
    return tuple(item for item in pod.status.conditions if item.type not in OWNED)


def is_only_the_sandbox(before: PodStatus, now: PodStatus) -> bool:
    """Return whether a status differs from the one before in nothing but what the pod's sandbox made."""
    return _without_sandbox(before) == _without_sandbox(now)


def _without_sandbox(status: PodStatus) -> PodStatus:
    rest = tuple(item for item in status.conditions if item.type != _READY_TO_START)
    return msgspec.structs.replace(status, conditions=rest, pod_ip="", pod_ips=())


def with_times(new: Sequence[PodCondition], previous: PodStatus, now: str | None) -> tuple[PodCondition, ...]:
    """Return conditions with the time at which each last changed its status."""
    before = {item.type: item for item in previous.conditions}
    timed = []
    for item in new:
        old = before.get(item.type)
        kept = old.last_transition_time if old is not None and old.status == item.status else None
        owned = item.type in OWNED or item.type == DISRUPTION_TARGET
        time = (kept or now) if owned else (item.last_transition_time or kept or now)
        timed.append(msgspec.structs.replace(item, last_transition_time=time))
    return tuple(timed)


def _condition(kind: str, value: bool, reason: str = "", message: str = "") -> PodCondition:
    status: ConditionStatus = "True" if value else "False"
    return PodCondition(type=kind, status=status, reason=reason, message=message)


def _is_ready_to_start(observed: Observed) -> bool:
    ready = [sandbox for sandbox in observed.sandboxes if sandbox.ready]
    return len(ready) == 1 and ready[0] is observed.sandbox


def _unready(what: str, unknown: Sequence[str], unready: Sequence[str]) -> str:
    parts = []
    if unknown:
        parts.append(f"containers with unknown status: [{' '.join(unknown)}]")
    if unready:
        parts.append(f"containers with {what} status: [{' '.join(unready)}]")
    return ", ".join(parts)


def _containers_ready(pod: Pod, phase: PodPhase, statuses: dict[str, ContainerStatus]) -> PodCondition:
    looked_at = [container.name for container in pod.spec.init_containers if is_sidecar(container)]
    looked_at += [container.name for container in pod.spec.containers]
    unknown = [name for name in looked_at if name not in statuses]
    unready = [name for name in looked_at if name in statuses and not statuses[name].ready]
    if phase == "Succeeded" and not unknown:
        return _condition(_CONTAINERS_READY, False, "PodCompleted")
    if phase == "Failed":
        return _condition(_CONTAINERS_READY, False, "PodFailed")
    message = _unready("unready", unknown, unready)
    return _condition(_CONTAINERS_READY, not message, "ContainersNotReady" if message else "", message)


def _ready(pod: Pod, others: Sequence[PodCondition], containers: PodCondition) -> PodCondition:
    """Return whether the pod is ready: its containers are, and every readiness gate is open."""
    if containers.status != "True":
        return msgspec.structs.replace(containers, type=_READY)
    known = {item.type: item.status for item in others}
    problems = []
    for gate in pod.spec.readiness_gates:
        name = gate.condition_type
        if name not in known:
            problems.append(f'corresponding condition of pod readiness gate "{name}" does not exist.')
        elif known[name] != "True":
            problems.append(f'the status of pod readiness gate "{name}" is not "True", but {known[name]}')
    return _condition(_READY, not problems, "ReadinessGatesNotReady" if problems else "", ", ".join(problems))


def _initialized(pod: Pod, phase: PodPhase, statuses: dict[str, ContainerStatus], previous: PodStatus) -> PodCondition:
    inits = pod.spec.init_containers
    unknown = [container.name for container in inits if container.name not in statuses]
    incomplete = [
        container.name
        for container in inits
        if (status := statuses.get(container.name)) is not None
        and not (status.started if is_sidecar(container) else status.ready)
    ]
    if phase == "Succeeded" and not unknown:
        return _condition(_INITIALIZED, True, "PodCompleted")
    # Init containers that run again do not undo it.
    # The runtime may have forgotten the init containers of a pod whose other containers have begun.
    begun = any(
        (status := statuses.get(container.name)) is not None and (status.state.running or status.state.terminated)
        for container in pod.spec.containers
    )
    before = any(item.type == _INITIALIZED and item.status == "True" for item in previous.conditions)
    message = _unready("incomplete", unknown, incomplete)
    done = begun or before or not message
    return _condition(_INITIALIZED, done, "" if done else "ContainersNotInitialized", "" if done else message)


def _restarting(pod: Pod, observed: Observed, phase: PodPhase, previous: PodStatus) -> PodCondition:
    if phase in {"Succeeded", "Failed"}:
        return _condition(ALL_RESTARTING, False, "PodCompleted" if phase == "Succeeded" else "PodFailed")
    gone = not any(observed.containers.get(c.name) for c in (*pod.spec.containers, *pod.spec.init_containers))
    if gone or not restarting_all(pod, observed, previous):
        return _condition(ALL_RESTARTING, False)
    message = "container exited with restart policy rule"
    return _condition(ALL_RESTARTING, True, "RestartAllContainersStarted", message)
