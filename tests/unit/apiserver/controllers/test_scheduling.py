"""Where pods may run, in kube-scheduler's words, and what the scheduler writes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from podkeep.api.feature_gates import FeatureGates
from podkeep.apiserver.controllers.controller import Bind, Change, Create, Item, Patch, Plan
from podkeep.apiserver.controllers.scheduler import Scheduler
from podkeep.apiserver.controllers.scheduling import NO_NODES, Place, Usage, amount, decide, needs, node_state, running
from podkeep.apiserver.storage.records import Event, EventType, Key, Stored
from support.admission import Objects

NOW = datetime(2026, 11, 23, 6, 0, tzinfo=UTC)
TIME = "2026-11-23T06:00:00Z"
RDT = "rdt.resources.alpha.kubernetes.io"


def node(
    name: str = "n1", *, labels: dict[str, str] | None = None, spec: Any = None, status: Any = None, **allocatable: str
) -> dict[str, Any]:
    given = {"cpu": "2", "memory": "4Gi", "pods": "10"} | allocatable
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})},
        "spec": spec or {},
        "status": {"allocatable": given} | (status or {}),
    }


def pod(name: str = "p", *, labels: dict[str, str] | None = None, requests: Any = None, **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "a", "image": "x"}
    if requests:
        container["resources"] = {"requests": requests}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "creationTimestamp": TIME,
            "labels": labels or {},
        },
        "spec": {"containers": [container]} | spec,
    }


def place(value: dict[str, Any], *pods: dict[str, Any]) -> Place:
    usage = Usage()
    for index, other in enumerate(pods):
        usage.add(index, needs(other, classes=True))
    return Place(node_state(value), usage)


def decided(value: dict[str, Any], *places: Place) -> str:
    decision = decide(needs(value, classes=True), places)
    return decision.node or decision.message.removeprefix(f"0/{len(places)} nodes are available: ")


def affinity(kind: str, *expressions: dict[str, Any], required: bool = True, **more: Any) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions)} if expressions else more
    if required:
        inner: Any = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    else:
        inner = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "preference": term}]}
    return {kind: inner}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


NO_SCHEDULE = {"key": "k", "value": "v", "effect": "NoSchedule"}
UNTOLERATED = "1 node(s) had untolerated taint(s)."
AFFINITY = "1 node(s) didn't match Pod's node affinity/selector."
PORTS = "1 node(s) didn't have free ports for the requested pod ports."


def ports(*given: tuple[int, str, str]) -> list[dict[str, Any]]:
    found = [{"containerPort": 1, "hostPort": port, "protocol": kind, "hostIP": ip} for port, kind, ip in given]
    return [{"name": "a", "ports": found}]


@pytest.mark.parametrize(
    ("value", "where", "running", "expected"),
    [
        (pod(), node(), [], "n1"),
        (pod(), node(spec={"unschedulable": True}), [], "1 node(s) were unschedulable."),
        (
            pod(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]),
            node(spec={"unschedulable": True}),
            [],
            "n1",
        ),
        # Taints
        (pod(), node(spec={"taints": [NO_SCHEDULE]}), [], UNTOLERATED),
        (pod(), node(spec={"taints": [NO_SCHEDULE | {"effect": "NoExecute"}]}), [], UNTOLERATED),
        (pod(), node(spec={"taints": [NO_SCHEDULE | {"effect": "PreferNoSchedule"}]}), [], "n1"),
        (pod(tolerations=[{"key": "k", "value": "v"}]), node(spec={"taints": [NO_SCHEDULE]}), [], "n1"),
        (pod(tolerations=[{"key": "k", "operator": "Equal"}]), node(spec={"taints": [NO_SCHEDULE]}), [], UNTOLERATED),
        (pod(tolerations=[{"key": "k", "operator": "Exists"}]), node(spec={"taints": [NO_SCHEDULE]}), [], "n1"),
        (pod(tolerations=[{"operator": "Exists"}]), node(spec={"taints": [NO_SCHEDULE]}), [], "n1"),
        (
            pod(tolerations=[{"operator": "Exists", "effect": "NoExecute"}]),
            node(spec={"taints": [NO_SCHEDULE]}),
            [],
            UNTOLERATED,
        ),
        # Labels of the node
        (pod(nodeSelector={"disk": "ssd"}), node(labels={"disk": "ssd"}), [], "n1"),
        (pod(nodeSelector={"disk": "ssd"}), node(labels={"disk": "hdd"}), [], AFFINITY),
        (
            pod(affinity=affinity("nodeAffinity", expression("cores", "Gt", "4"))),
            node(labels={"cores": "8"}),
            [],
            "n1",
        ),
        (
            pod(affinity=affinity("nodeAffinity", expression("cores", "Lt", "4"))),
            node(labels={"cores": "8"}),
            [],
            AFFINITY,
        ),
        (pod(affinity=affinity("nodeAffinity", expression("a", "In", "b", "c"))), node(labels={"a": "c"}), [], "n1"),
        (pod(affinity=affinity("nodeAffinity", expression("a", "NotIn", "b"))), node(), [], "n1"),
        (pod(affinity=affinity("nodeAffinity", expression("a", "Exists"))), node(), [], AFFINITY),
        (pod(affinity=affinity("nodeAffinity", expression("a", "DoesNotExist"))), node(), [], "n1"),
        (pod(affinity=affinity("nodeAffinity")), node(), [], AFFINITY),
        (
            pod(affinity=affinity("nodeAffinity", matchFields=[expression("metadata.name", "In", "n1")])),
            node(),
            [],
            "n1",
        ),
        (
            pod(affinity=affinity("nodeAffinity", matchFields=[expression("metadata.name", "In", "n2")])),
            node(),
            [],
            AFFINITY,
        ),
        # Ports of the node
        (pod(containers=ports((80, "TCP", ""))), node(), [pod(containers=ports((80, "TCP", "10.0.0.1")))], PORTS),
        (pod(containers=ports((80, "TCP", ""))), node(), [pod(containers=ports((80, "UDP", "")))], "n1"),
        (
            pod(containers=ports((80, "TCP", "10.0.0.2"))),
            node(),
            [pod(containers=ports((80, "TCP", "10.0.0.1")))],
            "n1",
        ),
        (
            pod(initContainers=[ports((80, "TCP", ""))[0] | {"restartPolicy": "Always"}]),
            node(),
            [pod(containers=ports((80, "TCP", "")))],
            PORTS,
        ),
        (pod(initContainers=ports((80, "TCP", ""))), node(), [pod(containers=ports((80, "TCP", "")))], "n1"),
        # Resources
        (pod(requests={"cpu": "2"}), node(), [], "n1"),
        (pod(requests={"cpu": "2001m"}), node(), [], "1 Insufficient cpu."),
        (pod(requests={"cpu": "1500m"}), node(), [pod(requests={"cpu": "600m"})], "1 Insufficient cpu."),
        (
            pod(requests={"cpu": "3", "memory": "5Gi", "example.com/gpu": "1", "ephemeral-storage": "1"}),
            node(pods="0"),
            [],
            "1 Insufficient cpu, 1 Insufficient ephemeral-storage, 1 Insufficient example.com/gpu, 1 Insufficient"
            " memory, 1 Too many pods.",
        ),
        (pod(requests={"example.com/gpu": "1"}), node(**{"example.com/gpu": "1"}), [], "n1"),
        (pod(), node(pods="1"), [pod()], "1 Too many pods."),
        (pod(requests={"cpu": "0"}), node(cpu="1"), [pod(requests={"cpu": "2"})], "n1"),
        (pod(overhead={"memory": "5Gi"}), node(), [], "1 Insufficient memory."),
        (pod(resources={"requests": {"cpu": "3"}}), node(), [], "1 Insufficient cpu."),
        (
            pod(initContainers=[{"name": "i", "resources": {"requests": {"cpu": "3"}}}]),
            node(),
            [],
            "1 Insufficient cpu.",
        ),
    ],
)
def test_filters(value: dict[str, Any], where: dict[str, Any], running: list[dict[str, Any]], expected: str) -> None:
    assert decided(value, place(where, *running)) == expected


def test_reasons_are_counted() -> None:
    places = [
        place(node("n1", cpu="1")),
        place(node("n2", cpu="1")),
        place(node("n3", spec={"unschedulable": True})),
    ]
    decision = decide(needs(pod(requests={"cpu": "2"}), classes=True), places)
    assert decision.message == "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu."
    assert decide(needs(pod(), classes=True), []) == NO_NODES
    assert NO_NODES.message == "no nodes available to schedule pods"


# Class resources (KEP-3008)

OFFERS = {
    "podClassResources": [{"name": "net", "classes": ["fast"]}],
    "containerClassResources": [{"name": "rdt", "classes": ["gold", "silver"]}],
}


def classy(pod_class: str = "", container_class: str = "", annotation: str = "") -> dict[str, Any]:
    value = pod()
    if pod_class:
        value["spec"]["resources"] = {"classes": {"net": pod_class}}
    if container_class:
        value["spec"]["containers"][0]["resources"] = {"classes": {"rdt": container_class}}
    if annotation:
        value["metadata"]["annotations"] = {f"{RDT}/default": annotation}
    return value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (classy("fast", "gold"), "n2"),
        (classy(annotation="silver"), "n2"),
        (classy(container_class="default"), "n2"),
        (
            classy("slow"),
            "2 node(s) didn't offer class slow of class resource net to pods.",
        ),
        (
            classy(annotation="bronze"),
            "2 node(s) didn't offer class bronze of class resource rdt to containers.",
        ),
        (classy("gold"), "2 node(s) didn't offer class gold of class resource net to pods."),
    ],
)
@pytest.mark.requirement("Q67")
def test_nodes_that_offer_every_class(value: dict[str, Any], expected: str) -> None:
    assert decided(value, place(node("n1")), place(node("n2", status=OFFERS))) == expected


# Affinity between pods


def near(kind: str, app: str, key: str = "kubernetes.io/hostname", **more: Any) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}} | more
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


WEB, DB = {"app": "web"}, {"app": "db"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (pod(affinity=near("podAffinity", "db")), "n2"),
        (pod(affinity=near("podAffinity", "db", "zone")), "n1"),
        (
            pod(affinity=near("podAffinity", "web")),
            "2 node(s) didn't match pod affinity rules.",
        ),
        (pod(labels=WEB, affinity=near("podAffinity", "web")), "n1"),
        (pod(affinity=near("podAffinity", "db", namespaces=["other"])), "2 node(s) didn't match pod affinity rules."),
        (pod(affinity=near("podAffinity", "db", namespaceSelector={})), "n2"),
        (pod(labels=DB, affinity=near("podAntiAffinity", "db")), "n1"),
        (
            pod(affinity=near("podAntiAffinity", "db", "zone")),
            "2 node(s) didn't match pod anti-affinity rules.",
        ),
        (pod(affinity=near("podAffinity", "db", "nowhere")), "2 node(s) didn't match pod affinity rules."),
    ],
)
def test_affinity_between_pods(value: dict[str, Any], expected: str) -> None:
    busy = pod("db", labels=DB)
    assert decided(value, place(node("n1", labels={"zone": "a"})), place(node("n2", labels={"zone": "a"}), busy)) == (
        expected
    )


class Counted(dict[str, str]):
    """Labels that count how often they are looked at."""

    looked = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looked += 1
        return super().get(key, default)


def test_affinity_looks_once_at_each_pod_for_each_term() -> None:
    """It did so for each term again: a pod with a hundred terms kept the API waiting for seconds."""
    labels = Counted(DB)
    busy = replace(needs(pod("db"), classes=True), labels=labels)
    terms = near("podAffinity", "db")["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] * 50
    value = pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
    where = place(node())
    where.usage.add("db", busy)
    assert decided(value, where) == "n1"
    assert labels.looked == 50


def test_affinity_looks_at_pods_of_other_nodes_only_where_they_count() -> None:
    labels = [Counted(DB) for _ in range(3)]
    places = [place(node(f"n{number}")) for number in range(3)]
    for where, counted in zip(places, labels, strict=True):
        where.usage.add("db", replace(needs(pod("db"), classes=True), labels=counted))
    assert decided(pod(affinity=near("podAffinity", "db")), *places) == "n0"
    assert [counted.looked for counted in labels] == [1, 1, 1]


def test_pods_that_run_keep_others_away() -> None:
    lonely = pod("db", labels=DB, affinity=near("podAntiAffinity", "web"))
    assert decided(pod(labels=WEB), place(node(), lonely)) == (
        "1 node(s) didn't satisfy existing pods anti-affinity rules."
    )
    assert decided(pod(labels=DB), place(node(), lonely)) == "n1"


# Scores


@pytest.mark.parametrize(
    ("value", "places", "expected"),
    [
        (pod(), [place(node("n2")), place(node("n1"))], "n1"),
        (pod(), [place(node("n1"), pod(requests={"cpu": "1"})), place(node("n2"))], "n2"),
        (pod(), [place(node("n1"), pod(), pod()), place(node("n2"), pod())], "n2"),
        (
            pod(affinity=affinity("nodeAffinity", expression("disk", "In", "ssd"), required=False)),
            [place(node("n1")), place(node("n2", labels={"disk": "ssd"}), pod(requests={"cpu": "1"}))],
            "n2",
        ),
        (
            pod(),
            [
                place(node("n1", spec={"taints": [NO_SCHEDULE | {"effect": "PreferNoSchedule"}]})),
                place(node("n2"), pod(requests={"cpu": "1"})),
            ],
            "n2",
        ),
    ],
)
def test_the_best_node(value: dict[str, Any], places: list[Place], expected: str) -> None:
    assert decided(value, *places) == expected


def test_amounts() -> None:
    assert [amount("cpu", "1500m"), amount("memory", "1Ki"), amount("cpu", "1u")] == [1500, 1024, 1]
    usage = Usage()
    usage.add("a", needs(pod(requests={"cpu": "1"}), classes=True))
    usage.add("a", needs(pod(requests={"cpu": "2"}), classes=True))
    assert usage.requests["cpu"] == 2000
    usage.remove("a")
    usage.remove("a")
    assert (usage.requests["cpu"], usage.scored["memory"], usage.pods) == (0, 0, {})


# What the scheduler remembers and writes


class World:
    """Objects, and a scheduler that is told of them."""

    def __init__(self, gates: FeatureGates | None = None) -> None:
        self.scheduler = Scheduler(gates)
        self.objects: dict[Key, dict[str, Any]] = {}

    def put(self, resource: str, value: dict[str, Any]) -> list[Item]:
        key = Key(resource, value["metadata"].get("namespace", ""), value["metadata"]["name"])
        self.objects[key] = value
        return self._told(EventType.MODIFIED, key, value)

    def drop(self, resource: str, name: str, namespace: str = "default") -> list[Item]:
        key = Key(resource, namespace, name)
        return self._told(EventType.DELETED, key, self.objects.pop(key))

    def _told(self, kind: EventType, key: Key, value: dict[str, Any]) -> list[Item]:
        stored = Stored(key, 1, msgspec.json.encode(value))
        return list(self.scheduler.observe(Change(Event(kind, stored, None), NOW)))

    def plan(self, name: str = "p", now: datetime = NOW) -> Plan:
        objects = Objects(*((key.resource, value) for key, value in self.objects.items()))
        return self.scheduler.reconcile(Key("pods", "default", name), objects, now)

    def where(self, name: str = "p") -> str:
        (write,) = self.plan(name).writes
        assert isinstance(write, Bind)
        return write.node


def key(name: str = "p") -> Key:
    return Key("pods", "default", name)


def test_a_pod_is_bound_and_that_is_told() -> None:
    world = World()
    world.put("nodes", node())
    assert world.put("pods", pod()) == [key()]
    plan = world.plan()
    assert list(plan.writes) == [Bind(namespace="default", name="p", uid="uid-p", node="n1")]
    (told,) = plan.then
    assert isinstance(told, Create)
    name = told.value["metadata"].pop("name")
    assert name.startswith("p.")
    assert told == Create(
        resource="events",
        namespace="default",
        value={
            "metadata": {"namespace": "default"},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": "default",
                "name": "p",
                "uid": "uid-p",
                "resourceVersion": "7",
            },
            "reason": "Scheduled",
            "message": "Successfully assigned default/p to n1",
            "type": "Normal",
            "action": "Binding",
            "source": {"component": "default-scheduler"},
            "reportingComponent": "default-scheduler",
            "reportingInstance": "",
            "firstTimestamp": TIME,
            "lastTimestamp": TIME,
            "count": 1,
        },
    )


def test_the_event_of_a_binding_is_listed_before_those_of_the_kubelet() -> None:
    """Its name is: lists are in the order of names, and kubectl sorts them by times in whole seconds."""
    world = World()
    world.put("nodes", node())
    names = []
    for item in "abcdefgh":
        world.put("pods", pod(item))
        (told,) = world.plan(item).then
        assert isinstance(told, Create)
        names.append(told.value["metadata"]["name"])
    soon = int((NOW + timedelta(milliseconds=1)).timestamp() * 1e9)  # as events of the kubelet are named
    assert [name for name in names if name >= f"{name[0]}.{soon:x}"] == []


def test_the_name_of_an_event_of_a_pod_with_a_long_name_is_not_too_long() -> None:
    world = World()
    world.put("nodes", node())
    long = "a" * 253
    world.put("pods", pod(long))
    (told,) = world.plan(long).then
    assert isinstance(told, Create)
    assert len(told.value["metadata"]["name"]) <= 253


@pytest.mark.parametrize(
    "changes",
    [
        {"nodeName": "n1"},
        {"schedulerName": "mine"},
        {"schedulingGates": [{"name": "example.com/wait"}]},
    ],
)
def test_pods_that_are_not_ours(changes: dict[str, Any]) -> None:
    world = World()
    world.put("nodes", node())
    assert world.put("pods", pod(**changes)) == []
    assert list(world.plan().writes) == []
    ended = pod()
    ended["metadata"]["deletionTimestamp"] = TIME
    assert world.put("pods", ended) == []
    assert world.put("pods", pod() | {"status": {"phase": "Failed"}}) == []
    assert list(world.plan("other").writes) == []


def test_what_is_promised_is_not_given_twice() -> None:
    world = World()
    world.put("nodes", node(cpu="1"))
    for name in "pq":
        world.put("pods", pod(name, requests={"cpu": "600m"}))
    assert world.where("p") == "n1"
    (refused, _) = world.plan("q").writes
    assert isinstance(refused, Patch)
    # The binding of the first has failed, and it is tried again.
    assert world.where("p") == "n1"
    world.put("pods", pod("p", nodeName="n1", requests={"cpu": "600m"}))
    assert isinstance(next(iter(world.plan("q").writes)), Patch)
    assert world.put("pods", pod("p", nodeName="n1") | {"status": {"phase": "Succeeded"}}) == [key("q")]
    assert world.where("q") == "n1"


def test_in_a_list_why_a_pod_waited_comes_before_that_it_was_scheduled() -> None:
    """Lists are in the order of names, which are otherwise a hash of what is said."""
    for number in range(8):
        world = World()
        name = f"p{number}"
        world.put("pods", pod(name, requests={"cpu": "2"}))
        world.put("nodes", node(cpu="1"))
        plans = [world.plan(name)]
        world.put("nodes", node(cpu="4"))
        plans.insert(0, world.plan(name))
        told = [write for plan in plans for write in (*plan.writes, *plan.then) if isinstance(write, Create)]
        names = {write.value["metadata"]["name"]: write.value["reason"] for write in told}
        assert [names[name] for name in sorted(names)] == ["FailedScheduling", "Scheduled"]


def test_why_a_pod_waits_is_told_once_and_then_now_and_then() -> None:
    world = World()
    world.put("nodes", node(cpu="1"))
    value = pod(requests={"cpu": "2"})
    world.put("pods", value)
    message = "0/1 nodes are available: 1 Insufficient cpu."
    plan = world.plan()
    condition, told = plan.writes
    assert plan.after == 300
    conditions = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": TIME,
        }
    ]
    assert condition == Patch(
        resource="pods",
        namespace="default",
        name="p",
        subresource="status",
        patch={"metadata": {"resourceVersion": "7", "uid": "uid-p"}, "status": {"conditions": conditions}},
    )
    assert isinstance(told, Create)
    shown = {name: told.value[name] for name in ("reason", "message", "type", "action")}
    assert shown == {"reason": "FailedScheduling", "message": message, "type": "Warning", "action": "Scheduling"}
    event = told.value
    event["metadata"] |= {"uid": "e", "resourceVersion": "9", "creationTimestamp": TIME}
    world.put("pods", value | {"status": {"conditions": conditions}})
    world.objects[Key("events", "default", event["metadata"]["name"])] = event
    assert list(world.plan(now=NOW + timedelta(seconds=299)).writes) == []
    (again,) = world.plan(now=NOW + timedelta(seconds=300)).writes
    assert isinstance(again, Patch)
    assert again.patch == {
        "count": 2,
        "lastTimestamp": "2026-11-23T06:05:00Z",
        "metadata": {"resourceVersion": "9", "uid": "e"},
    }


@pytest.mark.requirement("Q68")
def test_pods_that_wait_are_looked_at_when_a_node_changes_and_classes_are_not_used_up() -> None:
    world = World()
    world.put("nodes", node())
    for number in range(5):
        world.put("pods", classy(container_class="gold") | {"metadata": pod(f"p{number}")["metadata"]})
    names = [key(f"p{number}") for number in range(5)]
    assert "didn't offer class gold" in str(list(world.plan("p0").writes))
    assert world.put("nodes", node() | {"metadata": node()["metadata"] | {"annotations": {"a": "b"}}}) == []
    assert world.put("nodes", node(status=OFFERS)) == names
    assert {world.where(f"p{number}") for number in range(5)} == {"n1"}
    assert world.drop("nodes", "n1", "") == names
    assert "no nodes available" in str(list(world.plan("p0").writes))


@pytest.mark.requirement("Q69")
def test_with_the_gate_off_classes_do_not_matter() -> None:
    world = World(FeatureGates(given={"ClassResources": False}))
    world.put("nodes", node())
    world.put("pods", classy("fast", "gold", "gold"))
    assert world.where() == "n1"


def test_pods_that_want_others_near_are_looked_at_when_one_is_bound() -> None:
    world = World()
    world.put("nodes", node())
    world.put("pods", pod("w", affinity=near("podAffinity", "db")))
    world.put("pods", pod("big", requests={"cpu": "9"}))
    world.put("pods", pod("db", labels=DB))
    assert world.put("pods", pod("db", labels=DB, nodeName="n1")) == [key("w")]
    assert world.where("w") == "n1"
    assert world.drop("pods", "db") == [key("w"), key("big")]


def claim(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


@pytest.mark.parametrize(
    ("volume", "claims", "problem"),
    [
        ({"persistentVolumeClaim": {"claimName": "c"}}, [], 'persistentvolumeclaim "c" not found'),
        ({"ephemeral": {}}, [], 'persistentvolumeclaim "p-v" not found'),
        (
            {"persistentVolumeClaim": {"claimName": "c"}},
            [claim("c")],
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        ({"persistentVolumeClaim": {"claimName": "c"}}, [claim("c", volumeName="pv")], ""),
        ({"emptyDir": {}}, [], ""),
    ],
)
def test_claims(volume: dict[str, Any], claims: list[dict[str, Any]], problem: str) -> None:
    world = World()
    world.put("nodes", node())
    world.put("pods", pod(volumes=[{"name": "v"} | volume]))
    for value in claims:
        assert world.put("persistentvolumeclaims", value) == [key()]
    if not problem:
        assert world.where() == "n1"
        return
    (told, _) = world.plan().writes
    assert isinstance(told, Patch)
    (condition,) = told.patch["status"]["conditions"]
    assert condition["message"] == f"0/1 nodes are available: {problem}."


def resized(requests: Any, status: dict[str, Any], reason: str = "", **spec: Any) -> dict[str, Any]:
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    return pod("r", requests=requests, nodeName="n1", **spec) | {"status": status | {"conditions": conditions}}


def has(allocated: dict[str, str], actual: dict[str, str] | None = None) -> dict[str, Any]:
    actual = allocated if actual is None else actual
    return {"containerStatuses": [{"name": "a", "allocatedResources": allocated, "resources": {"requests": actual}}]}


def has_as_a_whole(cpu: str) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}, "allocatedResources": {"cpu": cpu}}


WHOLE = {"resources": {"requests": {"cpu": "1"}}}
MORE = {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (resized({"cpu": "1"}, {}), 1000),
        (resized({"cpu": "1"}, {}, "Infeasible"), 1000),
        (resized({"cpu": "50"}, has({"cpu": "100m"})), 50000),
        (resized({"cpu": "50"}, has({"cpu": "100m"}), "Deferred"), 50000),
        (resized({"cpu": "50"}, has({"cpu": "100m"}), "Infeasible"), 100),
        (resized({"cpu": "100m"}, has({"cpu": "1500m"})), 1500),
        (resized({"cpu": "100m"}, has({"cpu": "100m"}, {"cpu": "1500m"})), 1500),
        (resized({"cpu": "100m"}, has({"cpu": "2"}, {"cpu": "1500m"}), "Infeasible"), 2000),
        # As a whole: what the node says has the overhead in it.
        (resized(None, has_as_a_whole("3"), **WHOLE), 3000),
        (resized(None, has_as_a_whole("500m"), **WHOLE), 1000),
        (resized(None, has_as_a_whole("500m"), "Infeasible", **WHOLE), 500),
        (resized(None, has_as_a_whole("1250m"), overhead={"cpu": "250m"}, **WHOLE), 1250),
        # What only the refused resize asks for as a whole is what its containers have of it.
        (resized(None, has_as_a_whole("500m"), "Infeasible", **MORE), 500),
        (resized({"cpu": "100m"}, {"resources": {}}, "Infeasible", **WHOLE), 100),
        (resized({"cpu": "100m"}, {"resources": {}}, "Infeasible", overhead={"cpu": "50m"}, **WHOLE), 150),
        # The sum of its containers is not what it was given as a whole.
        (resized({"cpu": "1"}, has_as_a_whole("3")), 1000),
    ],
)
def test_what_a_pod_takes_while_it_is_resized(value: dict[str, Any], expected: int) -> None:
    assert running(value).requests == {"cpu": expected}


def test_pods_that_wait_are_looked_at_when_another_takes_less() -> None:
    world = World()
    world.put("nodes", node())
    world.put("pods", resized({"cpu": "50"}, has({"cpu": "100m"})))
    world.put("pods", pod("w", requests={"cpu": "1"}))
    assert "Insufficient cpu" in str(list(world.plan("w").writes))
    assert world.put("pods", resized({"cpu": "50"}, has({"cpu": "100m"}), "Infeasible")) == [key("w")]
    assert world.where("w") == "n1"
    assert world.put("pods", resized({"cpu": "200m"}, has({"cpu": "200m"}))) == []
