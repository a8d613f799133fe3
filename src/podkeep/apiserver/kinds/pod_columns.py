"""What ``kubectl get pods`` shows (pkg/printers/internalversion: ``printPod``)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from podkeep.apiserver.kinds.pod_containers import is_sidecar
from podkeep.apiserver.kinds.resources import Column

_FINISHED = ("Failed", "Succeeded")

Values = Mapping[str, Any]


class Summary(NamedTuple):
    """The states of a pod's containers, put together; ``last_restart`` is a time, or empty."""

    ready: str
    status: str
    restarts: int
    last_restart: str


def summary(pod: Values) -> Summary:
    """Return what a pod is doing."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    reason = status.get("reason") or status.get("phase", "")
    if any(
        condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated"
        for condition in status.get("conditions", ())
    ):
        reason = "SchedulingGated"
    init = {container.get("name"): container for container in spec.get("initContainers", ())}
    total = len(spec.get("containers", ())) + sum(map(is_sidecar, init.values()))
    ready = restarts = sidecar_restarts = 0
    last = last_sidecar = ""
    initializing = False
    for index, container in enumerate(status.get("initContainerStatuses", ())):
        sidecar = is_sidecar(init.get(container.get("name"), {}))
        restarts += container.get("restartCount", 0)
        last = max(last, _ended(container))
        if sidecar:
            sidecar_restarts += container.get("restartCount", 0)
            last_sidecar = max(last_sidecar, _ended(container))
        state = container.get("state", {})
        if "terminated" in state and not state["terminated"].get("exitCode"):
            continue
        if sidecar and container.get("started"):
            ready += bool(container.get("ready"))
            continue
        reason = f"Init:{_init_reason(state) or f'{index}/{len(init)}'}"
        initializing = True
        break
    if not initializing or _condition(status, "Initialized"):
        restarts, last = sidecar_restarts, last_sidecar
        reason, ready_now, more, latest = _running(status, reason)
        ready, restarts, last = ready + ready_now, restarts + more, max(last, latest)
    if "deletionTimestamp" in pod.get("metadata", {}):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif status.get("phase") not in _FINISHED:
            reason = "Terminating"
    return Summary(f"{ready}/{total}", reason, restarts, last)


def _running(status: Values, reason: str) -> tuple[str, int, int, str]:
    """Return the reason that the containers give, how many are ready, their restarts and the last one's time."""
    ready = restarts = 0
    last, error = "", ""
    running = False
    for container in reversed(status.get("containerStatuses", ())):
        restarts += container.get("restartCount", 0)
        last = max(last, _ended(container))
        state = container.get("state", {})
        if state.get("waiting", {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif "terminated" in state:
            reason = _end_reason(state["terminated"])
            if state["terminated"].get("exitCode"):
                error = reason
        elif container.get("ready") and "running" in state:
            running = True
            ready += 1
    if reason == "Completed":
        if running and _condition(status, "Ready"):
            reason = "Running"
        elif error:
            reason = error
        elif running:
            reason = "NotReady"
    return reason, ready, restarts, last


def _ended(container: Values) -> str:
    ended: str = container.get("lastState", {}).get("terminated", {}).get("finishedAt", "")
    return ended


def _end_reason(ended: Values) -> str:
    if reason := ended.get("reason"):
        return str(reason)
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _init_reason(state: Values) -> str:
    if "terminated" in state:
        return _end_reason(state["terminated"])
    reason: str = state.get("waiting", {}).get("reason", "")
    return "" if reason == "PodInitializing" else reason


def _condition(status: Values, kind: str) -> bool:
    for condition in status.get("conditions", ()):
        if condition.get("type") == kind:
            return bool(condition.get("status") == "True")
    return False


def human_duration(seconds: int) -> str:
    """Return a duration in two or three digits, as kubectl does (apimachinery: ``HumanDuration``)."""
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    if seconds < 60 * 2:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 60 * 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 24 * 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if hours < 24 * 365 * 2:
        return f"{days}d"
    years = days // 365
    if hours < 24 * 365 * 8 and days % 365:
        return f"{years}y{days % 365}d"
    return f"{years}y"


def since(time: str, now: datetime) -> str:
    """Return how long ago a time was."""
    if not time:
        return "<unknown>"
    return human_duration(int((now - datetime.fromisoformat(time)).total_seconds()))


def _restarts(pod: Values, now: datetime) -> str:
    found = summary(pod)
    if found.restarts and found.last_restart:
        return f"{found.restarts} ({since(found.last_restart, now)} ago)"
    return str(found.restarts)


def _readiness_gates(pod: Values) -> str:
    gates = pod.get("spec", {}).get("readinessGates", ())
    if not gates:
        return "<none>"
    true = sum(_condition(pod.get("status", {}), gate.get("conditionType", "")) for gate in gates)
    return f"{true}/{len(gates)}"


def _of(part: str, name: str) -> Any:
    return lambda pod, _: pod.get(part, {}).get(name) or "<none>"


COLUMNS = (
    Column(
        name="Name",
        format="name",
        cell=lambda pod, _: pod["metadata"]["name"],
        description="The name, unique among the pods of a namespace.",
    ),
    Column(
        name="Ready",
        cell=lambda pod, _: summary(pod).ready,
        description="How many of the pod's containers are ready.",
    ),
    Column(
        name="Status",
        cell=lambda pod, _: summary(pod).status,
        description="What the pod's containers do, put together.",
    ),
    Column(
        name="Restarts",
        cell=_restarts,
        description="How many times containers of the pod were started again, and when that was last.",
    ),
    Column(
        name="Age",
        cell=lambda pod, now: since(pod["metadata"].get("creationTimestamp", ""), now),
        description="How long ago the pod was created.",
    ),
    Column(name="IP", cell=_of("status", "podIP"), priority=1, description="The pod's first address."),
    Column(name="Node", cell=_of("spec", "nodeName"), priority=1, description="The node that the pod is bound to."),
    Column(
        name="Nominated Node",
        cell=_of("status", "nominatedNodeName"),
        priority=1,
        description="The node where others are being removed for the pod.",
    ),
    Column(
        name="Readiness Gates",
        cell=lambda pod, _: _readiness_gates(pod),
        priority=1,
        description="How many of the conditions hold that the pod's readiness also depends on.",
    ),
)
