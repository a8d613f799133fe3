"""What ``kubectl get pods`` shows (pkg/printers/internalversion: ``printPod``)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from podkeep.apiserver.kinds import cells
from podkeep.apiserver.kinds.pods.validation.containers import is_sidecar
from podkeep.apiserver.kinds.resources import Column
from podkeep.apiserver.meta.objects import has_condition

_FINISHED = ("Failed", "Succeeded")

Values = Mapping[str, Any]


class Summary(NamedTuple):
    """The states of a pod's containers, put together; ``last_restart`` is a time, or empty."""

    ready: str
    status: str
    restarts: int
    last_restart: str


def summary(pod: Values) -> Summary:
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
    # Restarts of init containers are told while these run; sidecars go on (printPod).
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
    # From the last to the first, so that the reason of the first is left (printPod).
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
        if running and has_condition(status, "Ready"):
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


def _restarts(pod: Values, now: datetime) -> str:
    found = summary(pod)
    if found.restarts and found.last_restart:
        return f"{found.restarts} ({cells.since(found.last_restart, now)} ago)"
    return str(found.restarts)


def _readiness_gates(pod: Values) -> str:
    gates = pod.get("spec", {}).get("readinessGates", ())
    if not gates:
        return cells.NONE
    true = sum(_condition(pod.get("status", {}), gate.get("conditionType", "")) for gate in gates)
    return f"{true}/{len(gates)}"


COLUMNS = (
    cells.NAME,
    cells.column("Ready", lambda pod: summary(pod).ready, description="How many of the pod's containers are ready."),
    cells.column("Status", lambda pod: summary(pod).status, description="What the pod's containers do, put together."),
    Column(
        name="Restarts",
        cell=_restarts,
        description="How many times containers of the pod were started again, and when that was last.",
    ),
    cells.AGE,
    cells.column(
        "IP",
        lambda pod: cells.at(pod, "status", "podIP") or cells.NONE,
        wide=True,
        description="The pod's first address.",
    ),
    cells.column(
        "Node",
        lambda pod: cells.at(pod, "spec", "nodeName") or cells.NONE,
        wide=True,
        description="The node that the pod is bound to.",
    ),
    cells.column(
        "Nominated Node",
        lambda pod: cells.at(pod, "status", "nominatedNodeName") or cells.NONE,
        wide=True,
        description="The node where others are being removed for the pod.",
    ),
    cells.column(
        "Readiness Gates",
        _readiness_gates,
        wide=True,
        description="How many of the conditions hold that the pod's readiness also depends on.",
    ),
)
