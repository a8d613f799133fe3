"""Pods that do not tolerate what their node is tainted with."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from podkeep.apiserver.controllers.controller import Create, Delete, Patch
from podkeep.apiserver.controllers.scheduling import Taint
from podkeep.apiserver.controllers.taint_eviction import TaintEviction, tolerated_seconds
from podkeep.apiserver.storage.records import EventType, Key
from support.admission import Objects
from support.controllers import NOW, told

KEY = Key("pods", "default", "p")
END = Delete(resource="pods", namespace="default", name="p", uid="u", propagation="")
GPU = Taint("gpu", "yes", "NoExecute")


def node(*taints: dict[str, str]) -> tuple[str, dict[str, Any]]:
    return "nodes", {"metadata": {"name": "n"}, "spec": {"taints": list(taints)}}


def pod(*tolerations: dict[str, Any], deleting: bool = False) -> tuple[str, dict[str, Any]]:
    metadata = {"name": "p", "namespace": "default", "uid": "u", "resourceVersion": "7"}
    metadata["creationTimestamp"] = "2026-11-23T05:00:00Z"
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-23T05:00:00Z"
    return "pods", {"metadata": metadata, "spec": {"nodeName": "n", "tolerations": list(tolerations)}, "status": {}}


TAINTED = node({"key": "gpu", "value": "yes", "effect": "NoExecute"})


def test_a_pod_that_does_not_tolerate_the_taint_goes_at_once() -> None:
    controller = TaintEviction()
    assert told(controller, node()) == []
    assert told(controller, pod()) == [], "its node is not tainted: there are many such pods"
    assert controller.reconcile(KEY, Objects(node(), pod()), NOW).then == ()
    assert told(controller, node({"key": "gpu", "effect": "NoSchedule"})) == []
    assert told(controller, TAINTED) == [KEY]
    plan = controller.reconcile(KEY, Objects(TAINTED, pod()), NOW)
    event, patch = plan.writes
    assert isinstance(event, Create)
    assert (event.value["reason"], event.value["message"]) == (
        "TaintManagerEviction",
        "Marking for deletion Pod default/p",
    )
    assert isinstance(patch, Patch)
    (condition,) = patch.patch["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("DisruptionTarget", "DeletionByTaintManager")
    assert plan.then == (END,)
    assert controller.reconcile(KEY, Objects(TAINTED, pod(deleting=True)), NOW).then == ()


def test_a_pod_stays_for_as_long_as_it_tolerates_the_taint() -> None:
    controller = TaintEviction()
    lasting = pod({"key": "gpu", "operator": "Exists", "tolerationSeconds": 60})
    told(controller, TAINTED)
    assert told(controller, lasting) == [KEY]
    assert controller.reconcile(KEY, Objects(TAINTED, lasting), NOW).after == 60
    later = NOW + timedelta(seconds=20)
    assert controller.reconcile(KEY, Objects(TAINTED, lasting), later).after == 40
    assert told(controller, node()) == [KEY], "it may stay"
    assert controller.reconcile(KEY, Objects(node(), lasting), later).after is None
    assert told(controller, TAINTED) == [KEY]
    assert controller.reconcile(KEY, Objects(TAINTED, lasting), later).after == 60, "its time begins anew"
    assert controller.reconcile(KEY, Objects(TAINTED, lasting), later + timedelta(seconds=60)).then == (END,)
    assert told(controller, lasting, EventType.DELETED) == []
    assert told(controller, TAINTED) == []


def test_a_pod_is_looked_at_whichever_is_told_first_it_or_the_taint() -> None:
    controller = TaintEviction()
    assert told(controller, pod()) == []
    assert told(controller, TAINTED) == [KEY]
    assert told(controller, pod()) == [KEY]
    assert told(controller, TAINTED, EventType.DELETED) == []
    assert told(controller, pod()) == []


@pytest.mark.parametrize(
    ("tolerations", "seconds"),
    [
        ([], 0),
        ([{"operator": "Exists"}], None),
        ([{"key": "gpu", "value": "no"}], 0),
        ([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}], 0),
        ([{"key": "gpu", "value": "yes", "tolerationSeconds": 30}, {"operator": "Exists"}], 30),
        ([{"key": "gpu", "value": "yes", "tolerationSeconds": -5}], 0),
        ([{"key": "gpu", "value": "yes", "tolerationSeconds": (1 << 63) - 1}], 1 << 32),
    ],
)
def test_how_long_a_taint_is_tolerated(tolerations: list[dict[str, Any]], seconds: int | None) -> None:
    assert tolerated_seconds(tolerations, [GPU]) == seconds


def test_all_taints_have_to_be_tolerated() -> None:
    other = Taint("other", "", "NoExecute")
    first, second = {"key": "gpu", "value": "yes", "tolerationSeconds": 30}, {"key": "other", "tolerationSeconds": 20}
    assert tolerated_seconds([first], [GPU, other]) == 0
    assert tolerated_seconds([first, second], [GPU, other]) == 20
    assert tolerated_seconds([], []) is None
