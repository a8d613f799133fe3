"""The conditions of a Node: reasons, messages and times as a kubelet has them (pkg/kubelet/nodestatus). Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import aggregated

READY = "Ready"
MEMORY, DISK, PID = "MemoryPressure", "DiskPressure", "PIDPressure"

Condition = Mapping[str, Any]


class _Pressure(FrozenStruct, kw_only=True):
    """What one kind of pressure is called while it is there, and while not; ``event``: the reasons of events."""

    reasons: tuple[str, str]
    messages: tuple[str, str]
    events: tuple[str, str]


_PRESSURES: Mapping[str, _Pressure] = {
    MEMORY: _Pressure(
        reasons=("KubeletHasInsufficientMemory", "KubeletHasSufficientMemory"),
        messages=("kubelet has insufficient memory available", "kubelet has sufficient memory available"),
        events=("NodeHasInsufficientMemory", "NodeHasSufficientMemory"),
    ),
    DISK: _Pressure(
        reasons=("KubeletHasDiskPressure", "KubeletHasNoDiskPressure"),
        messages=("kubelet has disk pressure", "kubelet has no disk pressure"),
        events=("NodeHasDiskPressure", "NodeHasNoDiskPressure"),
    ),
    PID: _Pressure(
        reasons=("KubeletHasInsufficientPID", "KubeletHasSufficientPID"),
        messages=("kubelet has insufficient PID available", "kubelet has sufficient PID available"),
        events=("NodeHasInsufficientPID", "NodeHasSufficientPID"),
    ),
}
"""In the order in which a Node has them; Ready is the last."""


class Conditions(FrozenStruct, kw_only=True):
    """The conditions that are to be reported, and the reasons of events about those that turned."""

    values: tuple[dict[str, Any], ...]
    events: tuple[str, ...]


def conditions(before: Sequence[Condition], pressures: Collection[str], errors: Sequence[str], now: str) -> Conditions:
    """Return the conditions of a Node.

    :param before: those that the Node has; what others than a kubelet wrote is left alone.
    :param pressures: types of the pressures that there are.
    :param errors: why the node is not ready, in order.
    :param now: as Kubernetes writes a time.
    """
    known = {condition.get("type"): condition for condition in before}
    values, events = [], []
    for kind, words in _PRESSURES.items():
        there = kind in pressures
        which = 0 if there else 1
        values.append(_condition(known.get(kind), kind, there, words.reasons[which], words.messages[which], now))
        if known.get(kind, {}).get("status") != values[-1]["status"]:
            events.append(words.events[which])
    ready = ("KubeletNotReady", aggregated(errors)) if errors else ("KubeletReady", "kubelet is posting ready status")
    values.append(_condition(known.get(READY), READY, not errors, *ready, now))
    if READY in known and known[READY].get("status") != values[-1]["status"]:
        events.append("NodeNotReady" if errors else "NodeReady")
    return Conditions(values=tuple(values), events=tuple(events))


def _condition(before: Condition | None, kind: str, there: bool, reason: str, message: str, now: str) -> dict[str, Any]:
    status = "True" if there else "False"
    same = before is not None and before.get("status") == status
    return {
        "type": kind,
        "status": status,
        "lastHeartbeatTime": now,
        "lastTransitionTime": before["lastTransitionTime"]
        if same and before and before.get("lastTransitionTime")
        else now,
        "reason": reason,
        "message": message,
    }


def differ(one: Sequence[Condition], other: Sequence[Condition]) -> bool:
    """Say whether conditions of one list are not in the other like that, heartbeats aside."""
    known = {item.get("type"): _without_heartbeat(item) for item in other}
    return any(known.get(item["type"]) != _without_heartbeat(item) for item in one)


def _without_heartbeat(condition: Condition) -> dict[str, Any]:
    return {key: value for key, value in condition.items() if key != "lastHeartbeatTime"}
