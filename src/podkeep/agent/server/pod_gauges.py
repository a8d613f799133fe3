"""How many pods and containers there are: counted from their statuses when somebody asks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from podkeep.agent import metrics as names
from podkeep.agent.metrics import AgentMetrics
from podkeep.agent.resources.critical import is_static
from podkeep.api.pod import Pod
from podkeep.api.status import ContainerStatus, PodCondition, PodStatus

_TERMINAL = frozenset({"Succeeded", "Failed"})
_STATIC = ("", "true")


def update(metrics: AgentMetrics, pods: Iterable[tuple[Pod, PodStatus]]) -> None:
    running = ephemeral = resizing = 0
    pending: Counter[str] = Counter()
    desired: Counter[str] = Counter(dict.fromkeys(_STATIC, 0))
    active: Counter[str] = Counter(dict.fromkeys(_STATIC, 0))
    containers: Counter[str] = Counter()
    for pod, status in pods:
        kind = "true" if is_static(pod) else ""
        desired[kind] += 1
        active[kind] += status.phase not in _TERMINAL
        running += _condition(status, "PodReadyToStartContainers") is not None
        resizing += _condition(status, "PodResizeInProgress") is not None
        waits = _condition(status, "PodResizePending")
        pending.update([waits.reason] if waits is not None else [])
        ephemeral += len(pod.spec.ephemeral_containers)
        statuses = (
            *status.init_container_statuses,
            *status.container_statuses,
            *status.ephemeral_container_statuses,
        )
        containers.update(filter(None, map(_state, statuses)))
    metrics.set(names.RUNNING_PODS, running)
    metrics.set(names.MANAGED_EPHEMERAL_CONTAINERS, ephemeral)
    metrics.set(names.POD_RESIZES_IN_PROGRESS, resizing)
    metrics.replace(names.POD_PENDING_RESIZES, {(reason,): float(count) for reason, count in pending.items()})
    metrics.replace(names.DESIRED_PODS, {(kind,): float(count) for kind, count in desired.items()})
    metrics.replace(names.ACTIVE_PODS, {(kind,): float(count) for kind, count in active.items()})
    metrics.replace(names.RUNNING_CONTAINERS, {(state,): float(count) for state, count in containers.items()})


def _condition(status: PodStatus, kind: str) -> PodCondition | None:
    return next((item for item in status.conditions if item.type == kind and item.status == "True"), None)


def _state(status: ContainerStatus) -> str:
    """Return the state of a container in the runtime; empty: the runtime has none."""
    if status.state.running is not None:
        return "running"
    if status.state.terminated is not None or status.last_state.terminated is not None:
        return "exited"
    return "created" if status.container_id else ""
