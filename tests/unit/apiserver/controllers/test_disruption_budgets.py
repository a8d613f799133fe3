"""How many pods of a budget may be evicted, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from podkeep.apiserver.controllers.controller import Create, Patch, Plan
from podkeep.apiserver.controllers.disruption_budgets import (
    BUDGETS,
    INTERVAL,
    MOST_REQUIREMENTS,
    PAUSE,
    PIECE,
    PODS,
    DisruptionBudgets,
)
from podkeep.apiserver.meta import selectors
from podkeep.apiserver.storage.records import EventType, Key
from support.admission import CountedObjects, Objects
from support.controllers import NOW, told

KEY = Key(BUDGETS, "default", "b")
SELECTOR = {"matchLabels": {"app": "web"}}
WEB = selectors.of_object(SELECTOR)


def budget(status: dict[str, Any] | None = None, **spec: Any) -> tuple[str, dict[str, Any]]:
    metadata = {
        "name": "b",
        "namespace": "default",
        "uid": "b",
        "resourceVersion": "3",
        "generation": 2,
        "creationTimestamp": "2026-11-23T05:00:00Z",
    }
    begun = dict.fromkeys(("currentHealthy", "desiredHealthy", "expectedPods", "disruptionsAllowed"), 0)
    return BUDGETS, {"metadata": metadata, "spec": {"selector": SELECTOR} | spec, "status": begun | (status or {})}


def pod(name: str, owner: tuple[str, str, str] | None = None, *, ready: bool = True, **more: Any) -> tuple[str, Any]:
    """:param owner: API version, kind and name of its controller, whose uid is its name."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": name,
        "resourceVersion": "7",
        "creationTimestamp": "2026-11-23T05:00:00Z",
        "labels": {"app": "web"},
    }
    if owner is not None:
        metadata["ownerReferences"] = [reference(*owner)]
    conditions = [{"type": "Ready", "status": str(ready)}]
    return PODS, {"metadata": metadata | more, "status": {"phase": "Running", "conditions": conditions}}


def reference(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": name, "controller": True}


def sized(resource: str, name: str, replicas: int, owner: tuple[str, str, str] | None = None) -> tuple[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": name}
    if owner is not None:
        metadata["ownerReferences"] = [reference(*owner)]
    return resource, {"metadata": metadata, "spec": {"replicas": replicas}}


def counted(*objects: tuple[str, Any], now: datetime = NOW) -> Plan:
    return DisruptionBudgets().reconcile(KEY, Objects(*objects), now)


def status_of(plan: Plan) -> dict[str, Any]:
    """Return what is to be changed in the budget's status."""
    (found,) = (write for write in plan.writes if isinstance(write, Patch) and write.resource == BUDGETS)
    assert found.subresource == "status"
    assert found.patch["metadata"]["resourceVersion"] == "3"
    changed: dict[str, Any] = found.patch["status"]
    return changed


def events(plan: Plan) -> list[tuple[str, str, str, str]]:
    """Return kind of the object, level, reason and message of each event."""
    return [
        (write.value["involvedObject"]["kind"], write.value["type"], write.value["reason"], write.value["message"])
        for write in plan.writes
        if isinstance(write, Create)
    ]


SET = ("apps/v1", "StatefulSet", "s")
OF_DEPLOYMENT = [
    sized("apps/replicasets", "old", 1, ("apps/v1", "Deployment", "d")),
    sized("apps/replicasets", "new", 4, ("apps/v1", "Deployment", "d")),
    sized("apps/deployments", "d", 5),
    pod("p", ("apps/v1", "ReplicaSet", "old")),
    pod("q", ("apps/v1", "ReplicaSet", "new")),
    pod("r", ("apps/v1", "ReplicaSet", "new")),
    pod("s", ("apps/v1", "ReplicaSet", "new"), ready=False),
]


@pytest.mark.parametrize(
    ("spec", "objects", "numbers"),
    [
        ({"minAvailable": 1}, [pod("p"), pod("q"), pod("r", ready=False)], (3, 1, 2, 1)),
        ({"minAvailable": 2}, [pod("p"), pod("q")], (2, 2, 2, 0)),
        ({"minAvailable": 5}, [pod("p"), pod("q")], (2, 5, 2, 0)),
        ({"minAvailable": 0}, [pod("p")], (1, 0, 1, 1)),
        ({"minAvailable": 0}, [], (0, 0, 0, 0)),
        ({}, [pod("p")], (0, 0, 1, 0)),
        ({"minAvailable": 1}, [pod("p"), pod("q", deletionTimestamp="2026-11-23T06:00:00Z")], (2, 1, 1, 0)),
        ({"minAvailable": 1}, [pod("p"), pod("q"), pod("z", labels={"app": "other"})], (2, 1, 2, 1)),
        ({"minAvailable": 1, "selector": {}}, [pod("p"), pod("z", labels={"app": "other"})], (2, 1, 2, 1)),
        ({"minAvailable": "50%"}, [sized("apps/statefulsets", "s", 3), pod("p", SET), pod("q", SET)], (3, 2, 2, 0)),
        ({"maxUnavailable": 1}, [sized("apps/statefulsets", "s", 2), pod("p", SET), pod("q", SET)], (2, 1, 2, 1)),
        ({"maxUnavailable": 9}, [sized("apps/statefulsets", "s", 2), pod("p", SET), pod("q", SET)], (2, 0, 2, 2)),
        ({"maxUnavailable": "34%"}, [sized("apps/statefulsets", "s", 3), pod("p", SET)], (3, 1, 1, 0)),
        ({"maxUnavailable": "50%"}, OF_DEPLOYMENT, (5, 2, 3, 1)),
        # Their Deployment is gone: they count by themselves.
        ({"maxUnavailable": "50%"}, [item for item in OF_DEPLOYMENT if item[0] != "apps/deployments"], (5, 2, 3, 1)),
        ({"maxUnavailable": 1}, [OF_DEPLOYMENT[0], OF_DEPLOYMENT[3]], (1, 0, 1, 1)),
        (
            {"maxUnavailable": 1},
            [sized("replicationcontrollers", "c", 1), pod("p", ("v1", "ReplicationController", "c"))],
            (1, 0, 1, 1),
        ),
    ],
)
def test_what_a_budget_allows(
    spec: dict[str, Any], objects: list[tuple[str, Any]], numbers: tuple[int, int, int, int]
) -> None:
    expected, desired, current, allowed = numbers
    status = status_of(counted(budget(**spec), *objects))
    assert status.pop("observedGeneration") == 2
    (condition,) = status.pop("conditions")
    assert condition.pop("lastTransitionTime") == "2026-11-23T06:00:00Z"
    assert condition == {
        "type": "DisruptionAllowed",
        "status": str(allowed > 0),
        "reason": "SufficientPods" if allowed else "InsufficientPods",
        "message": "",
        "observedGeneration": 2,
    }
    wanted = {
        "expectedPods": expected,
        "desiredHealthy": desired,
        "currentHealthy": current,
        "disruptionsAllowed": allowed,
    }
    assert status == {name: number for name, number in wanted.items() if number}


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        ([pod("p", SET)], 'found no controllers for pod "p"'),
        ([sized("apps/statefulsets", "other", 1), pod("p", SET)], 'found no controllers for pod "p"'),
        ([pod("p", ("apps/v1", "DaemonSet", "d"))], "daemonsets.apps does not implement the scale subresource"),
        ([pod("p", ("example.com/v1", "Thing", "t"))], 'no matches for kind "Thing" in version "example.com/v1"'),
    ],
)
def test_nothing_is_allowed_while_it_is_not_known_how_many_there_should_be(
    objects: list[tuple[str, Any]], why: str
) -> None:
    plan = counted(budget({"disruptionsAllowed": 3, "expectedPods": 4}, maxUnavailable=1), *objects)
    status = status_of(plan)
    assert (status["disruptionsAllowed"], status["observedGeneration"], "expectedPods" in status) == (0, 2, False)
    (condition,) = status["conditions"]
    assert (condition["status"], condition["reason"], condition["message"]) == ("False", "SyncFailed", why)
    message = f"Failed to calculate the number of expected pods: {why}"
    assert events(plan) == [("PodDisruptionBudget", "Warning", "CalculateExpectedPodCountFailed", message)]


def test_what_is_told() -> None:
    none = counted(budget(minAvailable=1))
    assert events(none) == [("PodDisruptionBudget", "Normal", "NoPods", "No matching pods found")]
    (found,) = (write for write in none.writes if isinstance(write, Create))
    assert found.value["involvedObject"]["apiVersion"] == "policy/v1"
    assert events(counted(budget(minAvailable=1), pod("p"))) == []
    ((_, kind, reason, message),) = events(counted(budget(maxUnavailable=1), pod("p")))
    assert (kind, reason) == ("Warning", "UnmanagedPods")
    assert message.startswith(
        "Pods selected by this PodDisruptionBudget (selector: app=web) were found to be unmanaged."
    )


def test_an_eviction_counts_until_its_pod_is_about_to_end() -> None:
    granted = {"disruptedPods": {"p": "2026-11-23T05:59:00Z", "gone": "2026-11-23T05:59:00Z"}}
    plan = counted(budget(granted, minAvailable=1), pod("p"), pod("q"), pod("r"))
    status = status_of(plan)
    assert (status["currentHealthy"], status["disruptionsAllowed"]) == (2, 1)
    assert status["disruptedPods"] == {"gone": None}
    assert plan.after == 60
    ending = pod("p", deletionTimestamp="2026-11-23T06:00:30Z")
    assert status_of(counted(budget(granted, minAvailable=1), ending, pod("q"), pod("r")))["disruptedPods"] is None


def test_an_eviction_that_nothing_came_of_counts_for_two_minutes() -> None:
    granted = {"disruptedPods": {"p": "2026-11-23T05:57:59Z"}}
    plan = counted(budget(granted, minAvailable=1), pod("p"), pod("q"))
    status = status_of(plan)
    assert (status["currentHealthy"], status["disruptionsAllowed"], status["disruptedPods"]) == (2, 1, None)
    message = "Pod was expected by PDB default/b to be deleted but it wasn't"
    assert events(plan) == [("Pod", "Warning", "NotDeleted", message)]
    assert plan.after is None


def test_what_is_counted_is_not_written_again() -> None:
    objects = [pod("p"), pod("q")]
    status = status_of(counted(budget(minAvailable=1), *objects))
    later = NOW + timedelta(hours=1)
    assert counted(budget(status, minAvailable=1), *objects, now=later) == Plan(writes=[])


def test_pods_that_change_at_once_are_counted_together() -> None:
    controller, objects = DisruptionBudgets(), Objects(budget(minAvailable=1), pod("p"))
    assert controller.reconcile(KEY, objects, NOW).writes
    soon = controller.reconcile(KEY, objects, NOW + INTERVAL / 4)
    assert (list(soon.writes), soon.after) == ([], pytest.approx(INTERVAL.total_seconds() * 3 / 4))
    assert controller.reconcile(KEY, objects, NOW + INTERVAL).writes


class Counted(CountedObjects):
    """Pods whose sizes are known are not read for that."""

    def sizes(self, resource: str, namespace: str) -> Iterator[tuple[str, int]]:
        return Objects(*self._objects).sizes(resource, namespace)


def large(name: str, **more: Any) -> tuple[str, Any]:
    """Return a pod that is a piece by itself."""
    resource, value = pod(name, **more)
    return resource, value | {"spec": {"containers": [{"args": ["x" * PIECE]}]}}


def test_many_large_pods_are_read_in_pieces() -> None:
    """They held up the whole API: 0.7 s for 256 MiB of pods, ten if that were labels, each time that one changed."""
    controller, now = DisruptionBudgets(), NOW
    objects = Counted(budget(minAvailable=1), *(large(f"p{number}") for number in range(5)), large("q", labels={}))
    assert told(controller, objects._objects[0]) == [KEY]
    for turn in range(1, 7):
        for _ in range(3):  # other budgets of the namespace: it is not read on for each of them
            plan = controller.reconcile(KEY, objects, now)
            assert (list(plan.writes), plan.after) == ([], pytest.approx(PAUSE.total_seconds()))
        assert len([name for name in objects.read if name[0] in "pq"]) == turn
        told(controller, large("p3", ready=False))
        now += PAUSE
    # What was read is counted, though it has changed meanwhile; and then what has changed.
    plan = controller.reconcile(KEY, objects, now)
    assert status_of(plan)["expectedPods"] == 5
    assert plan.after == INTERVAL.total_seconds()
    assert not any("labels" in found["metadata"] for read in controller._read.values() for found in read.pods[WEB])


def test_a_budget_that_selects_others_has_them_read() -> None:
    controller, objects = DisruptionBudgets(), Objects(budget(minAvailable=1), pod("p"))
    assert controller.reconcile(KEY, objects, NOW).writes
    controller._counted.clear()
    other = Objects(budget(minAvailable=1, selector={}), pod("p"), pod("z", labels={"app": "other"}))
    soon = controller.reconcile(KEY, other, NOW + INTERVAL / 2)
    assert (list(soon.writes), soon.after) == ([], INTERVAL.total_seconds() / 2)
    assert status_of(controller.reconcile(KEY, other, NOW + INTERVAL))["expectedPods"] == 2


def test_budgets_for_whose_selectors_there_is_no_room_allow_nothing() -> None:
    """Thousands of budgets with a hundred expressions each made each change of a pod take a second."""
    many = {"matchExpressions": [{"key": f"k{number}", "operator": "DoesNotExist"} for number in range(100)]}
    controller, found = DisruptionBudgets(), []
    for number in range(MOST_REQUIREMENTS // 101 + 2):
        resource, value = budget(minAvailable=0, selector=many)
        found.append((resource, value | {"metadata": value["metadata"] | {"name": f"b{number}", "uid": f"b{number}"}}))
    keys = [key for item in found for key in told(controller, item)]
    objects = Objects(*found, pod("p"))
    assert told(controller, pod("p")) == keys[:-2]
    refused = controller.reconcile(keys[-1], objects, NOW)
    (condition,) = status_of(refused)["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "SyncFailed")
    assert f"more than {MOST_REQUIREMENTS} labels and expressions" in condition["message"]
    assert status_of(controller.reconcile(keys[0], objects, NOW))["disruptionsAllowed"] == 1
    # Those that wait get the room of others.
    assert told(controller, found[3]) == [keys[3]]
    assert told(controller, found[0], EventType.DELETED) == [keys[-2]]
    assert status_of(controller.reconcile(keys[-2], objects, NOW + INTERVAL))["disruptionsAllowed"] == 1
    assert told(controller, pod("p")) == [*keys[1:3], *keys[4:-2], keys[3], keys[-2]]
    for item in found:
        told(controller, item, EventType.DELETED)
    assert told(controller, pod("p")) == []
    assert [*controller._selectors, *controller._requirements, *controller._beyond] == []


def test_all_budgets_that_wait_for_room_get_it_in_their_turn() -> None:
    """One large budget that went gave room to one of them, and the others allowed nothing until another one went."""

    def named(name: str, labels: int, status: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        expressions = [{"key": f"k{number}", "operator": "DoesNotExist"} for number in range(labels)]
        resource, value = budget(status, minAvailable=0, selector={"matchExpressions": expressions})
        return resource, value | {"metadata": value["metadata"] | {"name": name, "uid": name}}

    large = named("large", MOST_REQUIREMENTS - 2, {})
    waiting = {"much": MOST_REQUIREMENTS - 1} | {f"b{number}": 1 for number in range(5)}
    controller = DisruptionBudgets()
    keys = [key for item in (large, *(named(*item, {}) for item in waiting.items())) for key in told(controller, item)]
    objects = Objects(large, *(named(*item, {}) for item in waiting.items()), pod("p"))
    statuses = {key.name: status_of(controller.reconcile(key, objects, NOW)) for key in keys[1:]}
    objects = Objects(*(named(*item, statuses[item[0]]) for item in waiting.items()), pod("p"))

    queue, turns = told(controller, large, EventType.DELETED), 0
    while queue:
        turns += 1
        (key,) = queue
        statuses[key.name] |= status_of(controller.reconcile(key, objects, NOW + turns * INTERVAL))
        # What is written is told to the controller.
        own, *queue = told(controller, named(key.name, waiting[key.name], statuses[key.name]))
        assert own == key
    allowed = [name for name in waiting if statuses[name].get("disruptionsAllowed") == 1]
    assert allowed == [f"b{number}" for number in range(5)]


def test_pods_are_read_once_for_all_budgets_of_a_namespace() -> None:
    """Each budget had all pods decoded, whole, for each of them that changed: seconds, with ten of them."""
    pods = [pod(f"p{number}") for number in range(50)]
    budgets = []
    for number in range(20):
        resource, value = budget(minAvailable=1)
        budgets.append((resource, value | {"metadata": value["metadata"] | {"name": f"b{number}"}}))
    controller, objects = DisruptionBudgets(), Counted(*budgets, *pods)
    keys = [key for item in budgets for key in told(controller, item)]
    assert len(keys) == 20

    def plans(now: datetime) -> list[Plan]:
        objects.read.clear()
        return [controller.reconcile(key, objects, now) for key in keys]

    assert all(plan.writes for plan in plans(NOW))
    assert sum(name.startswith("p") for name in objects.read) == 50
    # What has changed since is not read before its time, and is not missed.
    soon = NOW + INTERVAL * 5 / 4
    assert all(plan.writes for plan in plans(soon))
    controller._counted.clear()
    assert set(told(controller, pod("p1", ready=False))) == set(keys)
    assert {plan.after for plan in plans(soon + INTERVAL / 2)} == {INTERVAL.total_seconds() / 2}
    assert not any(name.startswith("p") for name in objects.read)
    assert all(plan.writes for plan in plans(soon + INTERVAL))
    assert sum(name.startswith("p") for name in objects.read) == 50


def test_budgets_are_counted_when_their_pods_change() -> None:
    controller = DisruptionBudgets()
    assert told(controller, pod("p")) == []
    assert told(controller, budget(minAvailable=1)) == [KEY]
    assert told(controller, pod("p")) == [KEY]
    assert told(controller, pod("z", labels={"app": "other"})) == []
    assert told(controller, pod("p"), EventType.DELETED) == [KEY]
    assert told(controller, budget(minAvailable=1, selector={})) == [KEY]
    assert told(controller, pod("z", labels={"app": "other"})) == [KEY]
    assert told(controller, budget(minAvailable=1), EventType.DELETED) == []
    assert told(controller, pod("p")) == []
    assert controller.reconcile(KEY, Objects(), NOW) == Plan()


def test_a_budget_without_a_specification_covers_no_pod() -> None:
    resource, value = budget()
    del value["spec"]
    controller = DisruptionBudgets()
    assert told(controller, (resource, value)) == [KEY]
    assert told(controller, pod("p")) == []
    changed = status_of(controller.reconcile(KEY, Objects((resource, value), pod("p")), NOW))
    assert changed["observedGeneration"] == 2
    assert "expectedPods" not in changed  # it is 0, as before


def test_a_pod_that_stayed_is_not_said_to_be_disrupted_for_ever() -> None:
    key = Key(PODS, "default", "p")
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    resource, value = pod("p")
    value["status"]["conditions"].append(target | {"lastTransitionTime": "2026-11-23T05:59:00Z"})
    controller = DisruptionBudgets()
    assert told(controller, (resource, value)) == [key]
    assert controller.reconcile(key, Objects((resource, value)), NOW).after == 60
    (patch,) = controller.reconcile(key, Objects((resource, value)), NOW + timedelta(minutes=1)).writes
    assert isinstance(patch, Patch)
    found = next(item for item in patch.patch["status"]["conditions"] if item["type"] == "DisruptionTarget")
    assert (found["status"], found["reason"]) == ("False", "")
    value["status"]["conditions"][-1]["reason"] = "TerminationByKubelet"
    assert told(controller, (resource, value)) == []
    value["status"]["conditions"][-1]["reason"] = "EvictionByEvictionAPI"
    value["status"]["phase"] = "Failed"
    assert told(controller, (resource, value)) == []
