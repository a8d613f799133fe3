"""Pods that nobody will ever end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from podkeep.apiserver.controllers.controller import Delete, Patch
from podkeep.apiserver.controllers.pod_garbage import PodGarbage
from podkeep.apiserver.storage.records import EventType, Key
from support.admission import Objects
from support.controllers import NOW, told

NODE = ("nodes", {"metadata": {"name": "n"}})
KEY = Key("pods", "default", "p")
END = Delete(resource="pods", namespace="default", name="p", uid="u", propagation="", grace_period=0)


def pod(node: str = "n", phase: str = "Running", *, deleting: bool = False) -> tuple[str, dict[str, Any]]:
    metadata = {"name": "p", "namespace": "default", "uid": "u", "resourceVersion": "7"}
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-23T05:00:00Z"
    return "pods", {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": {"phase": phase}}


def test_pods_of_a_node_that_is_gone() -> None:
    controller = PodGarbage()
    assert told(controller, NODE) == []
    assert told(controller, pod()) == [], "its node is there: there are many such pods"
    assert told(controller, pod(deleting=True)) == [KEY]
    assert list(controller.reconcile(KEY, Objects(NODE, pod()), NOW).writes) == []
    assert told(controller, NODE, EventType.DELETED) == [KEY]
    plan = controller.reconcile(KEY, Objects(pod()), NOW + timedelta(seconds=30))
    assert (list(plan.writes), plan.after) == ([], 10)
    plan = controller.reconcile(KEY, Objects(pod()), NOW + timedelta(seconds=40))
    (failed,) = plan.writes
    assert isinstance(failed, Patch)
    assert failed.patch["status"] == {
        "phase": "Failed",
        "conditions": [
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists",
                "lastTransitionTime": "2026-11-23T06:00:40Z",
            }
        ],
    }
    assert plan.then == (END,)
    plan = controller.reconcile(KEY, Objects(pod(phase="Succeeded")), NOW + timedelta(seconds=40))
    assert (list(plan.writes), plan.then) == ([], (END,))
    told(controller, NODE)
    told(controller, pod(), EventType.DELETED)
    assert told(controller, NODE, EventType.DELETED) == []
    assert told(controller, pod()) == [KEY], "bound to what is gone"


def test_a_node_that_nobody_knows_gets_its_time_too() -> None:
    controller = PodGarbage()
    assert told(controller, pod()) == [KEY]
    assert controller.reconcile(KEY, Objects(pod()), NOW).after == 40
    assert controller.reconcile(KEY, Objects(pod()), NOW + timedelta(seconds=41)).then == (END,)


def test_pods_that_go_before_they_got_a_node() -> None:
    controller = PodGarbage()
    assert told(controller, pod("")) == []
    assert told(controller, pod("", deleting=True)) == [KEY]
    assert list(controller.reconcile(KEY, Objects(pod("")), NOW).writes) == []
    assert list(controller.reconcile(KEY, Objects(pod("", deleting=True)), NOW).writes) == [END]
    assert list(controller.reconcile(KEY, Objects(), NOW).writes) == []


def test_pods_that_are_to_go_from_a_node_out_of_service() -> None:
    controller = PodGarbage()
    taints = [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]
    down = {"type": "Ready", "status": "Unknown"}
    node = ("nodes", {"metadata": {"name": "n"}, "spec": {"taints": taints}, "status": {"conditions": [down]}})
    told(controller, NODE)
    told(controller, pod(deleting=True))
    assert list(controller.reconcile(KEY, Objects(NODE, pod(deleting=True)), NOW).writes) == []
    assert told(controller, node) == [KEY]
    plan = controller.reconcile(KEY, Objects(node, pod(deleting=True)), NOW)
    (failed,) = plan.writes
    assert isinstance(failed, Patch)
    assert failed.patch["status"] == {"phase": "Failed"}
    assert plan.then == (END,)
    # Who deletes a pod says that it is to go; the taint says only that nobody else will end it.
    assert list(controller.reconcile(KEY, Objects(node, pod()), NOW).writes) == []
    ready = ("nodes", {**node[1], "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    assert told(controller, ready) == []
    assert list(controller.reconcile(KEY, Objects(ready, pod(deleting=True)), NOW).writes) == []


def ended(name: str, created: int, reason: str = "", *, deleting: bool = False, namespace: str = "default") -> Any:
    _, value = pod(phase="Failed", deleting=deleting)
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": f"2026-11-23T05:00:{created:02}Z"}
    return "pods", {
        **value,
        "metadata": {**value["metadata"], **metadata},
        "status": {"phase": "Failed"} | ({"reason": reason} if reason else {}),
    }


def test_of_the_pods_that_have_ended_the_oldest_go() -> None:
    """Each namespace is counted by itself: who has pods fail does not have others' deleted."""
    controller = PodGarbage(terminated=2)
    others = [ended(f"theirs-{number}", number, namespace="theirs") for number in range(2)]
    pods = [ended("old", 1), ended("new", 9), *others]
    assert [told(controller, item) for item in (NODE, pod(), *pods)] == [[]] * 6
    evicted = ended("evicted", 20, "Evicted")
    (item,) = told(controller, evicted)
    there = Objects(NODE, evicted, *pods)
    (delete,) = controller.reconcile(item, there, NOW).writes
    assert delete == Delete(
        resource="pods", namespace="default", name="evicted", uid="u", propagation="", grace_period=0
    ), "those that were evicted go first"
    assert told(controller, evicted, EventType.DELETED) == []
    assert list(controller.reconcile(item, there, NOW).writes) == []

    (item,) = told(controller, ended("newer", 15))
    (delete,) = controller.reconcile(item, there, NOW).writes
    assert isinstance(delete, Delete)
    assert delete.name == "old"
    assert told(controller, ended("old", 1, deleting=True)) == [KEY._replace(name="old")]
    assert list(controller.reconcile(item, there, NOW).writes) == [], "its finalizers are waited for"
    assert told(controller, ended("old", 1), EventType.DELETED) == []
    for gone in ("new", "newer"):
        assert told(controller, ended(gone, 1), EventType.DELETED) == []
    assert list(controller.reconcile(item, there, NOW).writes) == []


def test_pods_that_wait_for_their_finalizers_cost_nothing() -> None:
    """A namespace may be full of them: with each of their changes all of them were read, on the loop of all users."""
    controller = PodGarbage(terminated=2)
    told(controller, NODE)
    for number in range(20):
        told(controller, ended(f"p{number}", number))
    for number in range(18):
        items = told(controller, ended(f"p{number}", number, deleting=True))
    assert items == [KEY._replace(name="p17")]


def test_pods_that_stand_for_static_ones_are_not_counted() -> None:
    """Their agent makes another one for each that goes, which would be deleted again, for ever."""
    controller = PodGarbage(terminated=1)
    told(controller, NODE)
    for number in range(3):
        resource, value = ended(f"static-{number}", number)
        value["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "hash"}
        assert told(controller, (resource, value)) == []
    assert told(controller, ended("one", 8)) == []
    (item,) = told(controller, ended("two", 9))
    (delete,) = controller.reconcile(item, Objects(NODE), NOW).writes
    assert isinstance(delete, Delete)
    assert delete.name == "one"


def test_a_threshold_of_nothing_keeps_all_pods_that_have_ended() -> None:
    controller = PodGarbage()
    told(controller, NODE)
    assert [told(controller, ended(f"p{number}", number)) for number in range(50)] == [[]] * 50
