"""Taints of nodes by their conditions, and nodes that are not heard of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from podkeep.apiserver.controllers.controller import Change, Item, Patch, Plan
from podkeep.apiserver.controllers.node_health import LEASES, NodeHealth, expected_taints
from podkeep.apiserver.storage.records import Event, EventType, Key, Stored
from support.admission import Objects

NOW = datetime(2026, 11, 23, 6, 0, tzinfo=UTC)
TIME = "2026-11-23T06:00:00Z"


def node(*conditions: tuple[str, str], heartbeat: str = TIME, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "creationTimestamp": TIME},
        "spec": spec,
        "status": {
            "conditions": [
                {"type": kind, "status": status, "lastHeartbeatTime": heartbeat, "lastTransitionTime": TIME}
                for kind, status in conditions
            ]
        },
    }


def taint(name: str, **more: str) -> dict[str, str]:
    return {"key": f"node.kubernetes.io/{name}", "effect": "NoSchedule"} | more


def added(name: str) -> dict[str, str]:
    return taint(name, timeAdded=TIME)


OTHER = {"key": "example.com/mine", "effect": "NoSchedule"}
NO_EXECUTE = taint("not-ready", effect="NoExecute")
READY = ("Ready", "True")


@pytest.mark.parametrize(
    ("value", "taints"),
    [
        (node(READY), None),
        (node(READY, taints=[taint("not-ready")]), []),
        (node(READY, taints=[OTHER, taint("not-ready"), NO_EXECUTE]), [OTHER, NO_EXECUTE]),
        (node(), [added("not-ready")]),
        (node(taints=[taint("not-ready")]), None),
        (node(("Ready", "False"), taints=[OTHER]), [OTHER, added("not-ready")]),
        (node(("Ready", "Unknown"), taints=[taint("not-ready")]), [added("unreachable")]),
        (
            node(READY, ("MemoryPressure", "True"), ("DiskPressure", "True"), ("PIDPressure", "False")),
            [added("disk-pressure"), added("memory-pressure")],
        ),
        (
            node(READY, ("PIDPressure", "True"), ("NetworkUnavailable", "True")),
            [added("network-unavailable"), added("pid-pressure")],
        ),
        (node(READY, ("MemoryPressure", "False"), unschedulable=True), [added("unschedulable")]),
        (node(READY, taints=[taint("unschedulable")]), []),
    ],
)
def test_taints_follow_conditions(value: dict[str, Any], taints: list[dict[str, str]] | None) -> None:
    assert expected_taints(value, NOW) == taints


class World:
    def __init__(self) -> None:
        self.controller = NodeHealth()
        self.now = NOW
        self.node: dict[str, Any] = {}

    def put(self, value: dict[str, Any]) -> list[Item]:
        self.node = value
        return self.told("nodes", "", value)

    def renew(self, when: str, namespace: str = "kube-node-lease") -> list[Item]:
        lease = {"metadata": {"name": "n"}, "spec": {"renewTime": when}}
        return self.told(LEASES, namespace, lease)

    def told(self, resource: str, namespace: str, value: Any, kind: EventType = EventType.MODIFIED) -> list[Item]:
        stored = Stored(Key(resource, namespace, value["metadata"]["name"]), 1, msgspec.json.encode(value))
        return list(self.controller.observe(Change(Event(kind, stored, None), self.now)))

    def plan(self, seconds: float = 0) -> Plan:
        self.now += timedelta(seconds=seconds)
        objects = Objects(("nodes", self.node)) if self.node else Objects()
        return self.controller.reconcile("n", objects, self.now)


def patched(plan: Plan) -> Patch:
    (write,) = plan.writes
    assert isinstance(write, Patch)
    return write


def test_a_node_that_is_not_heard_of_is_unknown() -> None:
    world = World()
    ready = node(READY, ("MemoryPressure", "False"))
    assert world.put(ready) == ["n"]
    assert (list(world.plan().writes), world.plan(20).after) == ([], 30)
    # A lease that is renewed counts, and so does what the node itself says.
    assert world.renew("1") == ["n"]
    assert world.plan(40).after == 10
    assert world.renew("1") == ["n"]
    assert world.plan().after == 10
    assert world.put(node(READY, ("MemoryPressure", "False"), heartbeat="2026-11-23T06:01:00Z")) == ["n"]
    assert world.plan(10).after == 40
    told = patched(world.plan(40))
    assert (told.resource, told.subresource, told.name) == ("nodes", "status", "n")
    unknown = {"status": "Unknown", "lastTransitionTime": "2026-11-23T06:01:50Z"}
    stopped = unknown | {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
    never = unknown | {"reason": "NodeStatusNeverUpdated", "message": "Kubelet never posted node status."}
    said = {"lastHeartbeatTime": "2026-11-23T06:01:00Z"}
    conditions = told.patch["status"]["conditions"]
    assert conditions == [
        {"type": "Ready"} | stopped | said,
        {"type": "MemoryPressure"} | stopped | said,
        {"type": "DiskPressure"} | never,
        {"type": "PIDPressure"} | never,
    ]
    world.put(ready | {"status": {"conditions": conditions}})
    plan = world.plan()
    assert patched(plan).patch["spec"] == {"taints": [taint("unreachable", timeAdded="2026-11-23T06:01:50Z")]}
    assert plan.after is None


def test_a_node_that_never_said_how_it_is_has_longer() -> None:
    world = World()
    world.put(node(taints=[taint("not-ready")]))
    assert (list(world.plan(50).writes), world.plan().after) == ([], 10)
    assert patched(world.plan(10)).subresource == "status"


def test_nodes_and_leases_that_do_not_matter() -> None:
    world = World()
    assert world.renew("1", "default") == []
    world.put(node(READY))
    assert world.told("nodes", "", world.node, EventType.DELETED) == []
    world.node = {}
    assert list(world.plan().writes) == []
