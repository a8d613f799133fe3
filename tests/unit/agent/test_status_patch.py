"""What is written of a pod's status: only what differs, and nothing that is others'."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from podkeep.agent.manager import status_patch
from podkeep.api.status import ContainerStatus, HostIP, PodCondition, PodIP, PodStatus

READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "nothing there": ({}, {"phase": "Pending", "hostIP": "10.0.0.1"}, {"phase": "Pending", "hostIP": "10.0.0.1"}),
    "the same": ({"phase": "Running", "conditions": [READY]}, {"phase": "Running", "conditions": [READY]}, {}),
    "what Go writes out and we leave out": (
        {"containerStatuses": [{"name": "a", "lastState": {}, "ready": False, "state": {"waiting": {"reason": "X"}}}]},
        {"containerStatuses": [{"name": "a", "ready": False, "state": {"waiting": {"reason": "X"}}}]},
        {},
    ),
    "one of others' conditions": (
        {"conditions": [{"type": "example.com/gate", "status": "True"}, READY]},
        {"conditions": [READY | {"status": "False"}]},
        {"conditions": [READY | {"status": "False"}]},
    ),
    "a condition without its reason": (
        {"conditions": [READY | {"reason": "ContainersNotReady", "message": "none"}]},
        {"conditions": [READY]},
        {"conditions": [{"reason": None, "message": None} | READY]},
    ),
    "a kubelet's conditions that it does not say any more, of a pod that was rejected": (
        {"conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "example.com/gate", "status": "True"}]},
        {"phase": "Failed", "reason": "OutOfcpu"},
        {"conditions": [{"$patch": "delete", "type": "PodScheduled"}], "phase": "Failed", "reason": "OutOfcpu"},
    ),
    "addresses are replaced, not merged": (
        {"podIPs": [{"ip": "10.0.0.2"}]},
        {"podIPs": [{"ip": "10.0.0.3"}]},
        {"podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.3"}]},
    ),
    "a reason that is over": ({"reason": "Evicted", "phase": "Failed"}, {"phase": "Failed"}, {"reason": None}),
    "what is never taken back": ({"qosClass": "Burstable", "startTime": "x"}, {}, {}),
    "others' fields": ({"nominatedNodeName": "other", "resourceClaimStatuses": [{"name": "c"}]}, {}, {}),
}


@pytest.mark.parametrize(("there", "wanted", "patch"), CASES.values(), ids=CASES)
def test_difference(there: dict[str, Any], wanted: dict[str, Any], patch: dict[str, Any]) -> None:
    assert status_patch.difference(there, wanted) == patch


def test_a_status_that_the_api_has_is_not_written_again() -> None:
    status = PodStatus(
        phase="Running",
        host_ips=(HostIP(ip="192.0.2.1"),),
        pod_ips=(PodIP(ip="10.0.0.1"),),
        conditions=(PodCondition(type="Ready", status="True"),),
        container_statuses=(ContainerStatus(name="main", image="i", image_id="", ready=True, restart_count=0),),
    )
    there = msgspec.json.decode(msgspec.json.encode(status))
    assert status_patch.difference(there, msgspec.to_builtins(status)) == {}
