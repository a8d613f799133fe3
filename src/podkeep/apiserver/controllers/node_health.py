"""Taints of nodes by their conditions, and nodes that are not heard of (kube-controller-manager: nodelifecycle).

No taint evicts pods: kube-controller-manager evicts none either when no node of a zone is ready, as it is on one
machine. Those of an administrator do (``taint_eviction``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from podkeep.apiserver.auth.node import LEASE_NAMESPACE
from podkeep.apiserver.controllers.controller import (
    NOTHING,
    Change,
    Item,
    Patch,
    Plan,
    revised,
    service_account,
    with_conditions,
)
from podkeep.apiserver.controllers.scheduling import NO_SCHEDULE, UNSCHEDULABLE
from podkeep.apiserver.meta.lister import Lister

NODES = "nodes"
LEASES = "coordination.k8s.io/leases"
GRACE = timedelta(seconds=50)
"""How long a node may say nothing (kube-controller-manager: ``--node-monitor-grace-period``)."""
STARTUP_GRACE = timedelta(minutes=1)
"""The same for a node that has never said how it is (``--node-startup-grace-period``)."""
READY = "Ready"
_PREFIX = "node.kubernetes.io/"
_TAINTS = {
    (READY, "False"): f"{_PREFIX}not-ready",
    (READY, "Unknown"): f"{_PREFIX}unreachable",
    ("MemoryPressure", "True"): f"{_PREFIX}memory-pressure",
    ("DiskPressure", "True"): f"{_PREFIX}disk-pressure",
    ("NetworkUnavailable", "True"): f"{_PREFIX}network-unavailable",
    ("PIDPressure", "True"): f"{_PREFIX}pid-pressure",
}
_OURS = frozenset({*_TAINTS.values(), UNSCHEDULABLE})
_HEARTBEATS = (READY, "MemoryPressure", "DiskPressure", "PIDPressure")
"""Conditions that are unknown when a node is not heard of."""


class NodeHealth:
    """The controller. It remembers when it heard of each node last, by its own clock."""

    name = "node-controller"
    user = service_account(name)
    resources = frozenset({NODES, LEASES})

    def __init__(self) -> None:
        self._heard: dict[str, tuple[str, datetime]] = {}
        """The renewal of a node's lease, or its heartbeat, and when it was seen."""

    def observe(self, change: Change) -> Iterator[Item]:
        key = change.key
        if key.resource == LEASES and key.namespace != LEASE_NAMESPACE:
            return
        if change.is_deletion:
            if key.resource == NODES:
                self._heard.pop(key.name, None)
            return
        if key.resource == LEASES:
            said = f"lease {change.value.get('spec', {}).get('renewTime', '')}"
        else:
            ready = _condition(change.value, READY)
            said = f"node {ready.get('lastHeartbeatTime', '')}" if _knows(ready) else ""
        before, _ = self._heard.get(key.name, ("", change.at))
        # The clock of a node may be wrong: its times are not compared with ours, only with those that it said before.
        if said and said != before:
            self._heard[key.name] = said, change.at
        yield key.name

    def reconcile(self, item: Item, lister: Lister, now: datetime) -> Plan:
        name = str(item)
        node = lister.get(NODES, "", name)
        if node is None:
            return NOTHING
        created = datetime.fromisoformat(node["metadata"]["creationTimestamp"])
        _, heard = self._heard.get(name, ("", created))
        left = (heard + (GRACE if _condition(node, READY) else STARTUP_GRACE) - now).total_seconds()
        # Taints follow from conditions: this write comes back as a change, and the node is looked at again.
        if left <= 0 and (conditions := unknown_conditions(node, now)) is not None:
            patch = revised(node, {"status": {"conditions": conditions}})
            return Plan(writes=[Patch(resource=NODES, namespace="", name=name, subresource="status", patch=patch)])
        taints = expected_taints(node, now)
        after = left if left > 0 else None
        if taints is None:
            return Plan(after=after)
        patch = revised(node, {"spec": {"taints": taints or None}})
        return Plan(writes=[Patch(resource=NODES, namespace="", name=name, patch=patch)], after=after)


def _condition(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    conditions = node.get("status", {}).get("conditions", ())
    return next((item for item in conditions if item.get("type") == name), {})


def _knows(ready: Mapping[str, Any]) -> bool:
    """Tell whether a node's agent has said how it is."""
    return bool(ready) and ready.get("status") != "Unknown"


def unknown_conditions(node: Mapping[str, Any], now: datetime) -> list[Mapping[str, Any]] | None:
    """Return the conditions of a node that is not heard of; None if it has them."""
    wanted = []
    for name in _HEARTBEATS:
        old = _condition(node, name)
        if old.get("status") == "Unknown":
            continue
        reason, message = (
            ("NodeStatusUnknown", "Kubelet stopped posting node status.")
            if old
            else ("NodeStatusNeverUpdated", "Kubelet never posted node status.")
        )
        wanted.append({"type": name, "status": "Unknown", "reason": reason, "message": message})
    return with_conditions(node.get("status", {}).get("conditions", ()), wanted, now)


def expected_taints(node: Mapping[str, Any], now: datetime) -> list[Mapping[str, Any]] | None:
    """Return the taints of a node by its conditions, beside those of others; None if it has them.

    A node that has not said whether it is ready is not.
    """
    conditions = node.get("status", {}).get("conditions", ())
    wanted = {_TAINTS.get((item.get("type", ""), item.get("status", "")), "") for item in conditions} - {""}
    if not _condition(node, READY):
        wanted.add(_TAINTS[READY, "False"])
    spec = node.get("spec", {})
    if spec.get("unschedulable"):
        wanted.add(UNSCHEDULABLE)
    kept: list[Mapping[str, Any]] = [
        taint
        for taint in spec.get("taints", ())
        if taint.get("key") in wanted or taint.get("key") not in _OURS or taint.get("effect") != NO_SCHEDULE
    ]
    there = {taint.get("key") for taint in kept if taint.get("effect") == NO_SCHEDULE}
    added: list[Mapping[str, Any]] = [
        {"key": key, "effect": NO_SCHEDULE, "timeAdded": f"{now:%Y-%m-%dT%H:%M:%SZ}"} for key in sorted(wanted - there)
    ]
    return kept + added if added or len(kept) != len(spec.get("taints", ())) else None
