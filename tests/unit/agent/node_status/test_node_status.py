"""What a Node's status is, and what of it is written when."""

from __future__ import annotations

import json
from typing import Any

import pytest

from podkeep.agent.node_status.conditions import conditions
from podkeep.agent.node_status.registration import default_labels, new_node, reconciled, taint
from podkeep.agent.node_status.runtime_state import classes, features, handlers, images
from podkeep.agent.node_status.status import Facts, fields, report
from podkeep.agent.runtime_status import not_ready
from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2

NOW, LATER = "2026-01-31T08:00:00Z", "2026-01-31T08:00:10Z"
CAPACITY = {"cpu": "4", "memory": "1Gi", "pods": "110", "ephemeral-storage": "10Gi"}


def facts(**changes: Any) -> Facts:
    given: dict[str, Any] = {
        "capacity": CAPACITY,
        "allocatable": CAPACITY,
        "addresses": [{"type": "InternalIP", "address": "192.0.2.7"}],
        "node_info": {"bootID": "b"},
    }
    return Facts(**(given | changes))


def node_after(made: Any) -> dict[str, Any]:
    """Return the Node that a first report makes."""
    status = {name: value for name, value in made.fields.items() if value is not None}
    return {"status": status | {"conditions": list(made.conditions.values)}}


def test_what_pods_of_the_node_can_do_is_declared() -> None:
    """By these names a scheduler finds a node for ``RestartAllContainers``, and an API server lets a pod as a whole and
    its init containers be resized (KEP-5328); an API server takes them in the order of their names alone."""
    declared = fields(facts())["declaredFeatures"]
    assert declared == [
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "RestartAllContainersOnContainerExits",
    ]
    assert report(facts(), {}, {}, now=NOW, due=True).patch["status"]["declaredFeatures"] == declared  # type: ignore[index]


def test_a_node_that_is_well() -> None:
    found = conditions((), (), (), NOW)
    assert [(item["type"], item["status"], item["reason"], item["message"]) for item in found.values] == [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ]
    assert found.events == ("NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID")


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        (["PLEG is not healthy"], "PLEG is not healthy"),
        (["one", "two", "one"], "[one, two]"),
    ],
)
def test_a_node_that_is_not_ready(errors: list[str], message: str) -> None:
    well = conditions((), (), (), NOW)
    found = conditions(well.values, ("MemoryPressure",), errors, LATER)
    by_type = {item["type"]: item for item in found.values}
    assert by_type["Ready"] == {
        "type": "Ready",
        "status": "False",
        "reason": "KubeletNotReady",
        "message": message,
        "lastHeartbeatTime": LATER,
        "lastTransitionTime": LATER,
    }
    assert by_type["MemoryPressure"]["reason"] == "KubeletHasInsufficientMemory"
    assert by_type["DiskPressure"]["lastTransitionTime"] == NOW
    assert found.events == ("NodeHasInsufficientMemory", "NodeNotReady")


def test_a_node_that_was_taken_for_lost_is_ready_again() -> None:
    lost = [{"type": "Ready", "status": "Unknown", "lastTransitionTime": NOW}]
    assert "NodeReady" in conditions(lost, (), (), LATER).events


def test_only_what_changed_is_written() -> None:
    first = report(facts(), {}, {}, now=NOW, due=True)
    node = node_after(first)
    assert report(facts(), node, first.fields, now=LATER, due=False).patch is None
    changed = report(facts(port=10250), node, first.fields, now=LATER, due=False)
    assert changed.patch is not None
    assert changed.patch["status"].keys() == {"daemonEndpoints", "conditions"}
    beat = report(facts(), node, first.fields, now=LATER, due=True)
    assert beat.patch is not None
    assert beat.patch["status"].keys() == {"conditions"}
    assert {item["lastHeartbeatTime"] for item in beat.patch["status"]["conditions"]} == {LATER}
    assert not beat.changed


def test_what_an_api_server_does_not_keep_is_not_written_again_and_again() -> None:
    given = facts(classes={"podClassResources": [{"name": "rdt", "classes": ["gold"]}]})
    first = report(given, {}, {}, now=NOW, due=True)
    node = node_after(first)
    del node["status"]["podClassResources"]
    assert report(given, node, first.fields, now=LATER, due=False).patch is None


def test_a_condition_that_somebody_else_changed_is_written() -> None:
    first = report(facts(), {}, {}, now=NOW, due=True)
    node = node_after(first)
    node["status"]["conditions"][-1] = {"type": "Ready", "status": "Unknown"}
    assert report(facts(), node, first.fields, now=LATER, due=False).patch is not None


def test_what_goes_is_removed_from_the_status() -> None:
    offered = {"podClassResources": [{"name": "rdt", "classes": ["gold"]}]}
    huge = CAPACITY | {"hugepages-2Mi": "1Gi", "example.com/device": "1"}
    first = report(facts(classes=offered, capacity=huge), {}, {}, now=NOW, due=True)
    later = report(facts(), node_after(first), first.fields, now=LATER, due=False)
    assert later.patch is not None
    status = later.patch["status"]
    assert status["podClassResources"] is None
    assert status["capacity"] == CAPACITY | {"hugepages-2Mi": None}, "what is not ours stays"


def test_lists_are_replaced() -> None:
    first = report(facts(), {}, {}, now=NOW, due=True)
    moved = facts(addresses=[{"type": "InternalIP", "address": "192.0.2.8"}])
    later = report(moved, node_after(first), first.fields, now=LATER, due=False)
    assert later.patch is not None
    assert later.patch["status"]["addresses"] == [
        {"type": "InternalIP", "address": "192.0.2.8"},
        {"$patch": "replace"},
    ]


def test_a_node_without_all_of_its_capacity_is_not_ready() -> None:
    made = report(facts(capacity={"cpu": "4", "memory": "1Gi"}), {}, {}, now=NOW, due=True)
    assert made.conditions.values[-1]["message"] == "missing node capacity for resources: pods, ephemeral-storage"


def test_fields_of_a_node() -> None:
    assert fields(facts())["features"] is None
    assert fields(facts(features={"supplementalGroupsPolicy": True}))["features"] == {"supplementalGroupsPolicy": True}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dedicated=gpu:NoSchedule", {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}),
        ("gone:NoExecute", {"key": "gone", "effect": "NoExecute"}),
    ],
)
def test_taints(text: str, expected: dict[str, str]) -> None:
    assert taint(text) == expected


@pytest.mark.parametrize("text", ["", "key", "key:Never", ":NoSchedule", "=x:NoSchedule"])
def test_what_is_no_taint(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not KEY"):
        taint(text)


def test_a_node_that_is_there_gets_what_is_a_kubelets() -> None:
    labels = default_labels({"kubernetes.io/os": "linux", "kubernetes.io/hostname": "n"}) | {"mine": "1"}
    assert labels["beta.kubernetes.io/os"] == "linux"
    made = new_node("n", labels, (), {})
    assert reconciled(made, labels) is None
    made["metadata"]["labels"] = {"kubernetes.io/os": "linux", "theirs": "2"}
    assert reconciled(made, labels) == {
        "metadata": {"labels": {"kubernetes.io/hostname": "n", "beta.kubernetes.io/os": "linux"}}
    }


def status_response() -> api_pb2.StatusResponse:
    return api_pb2.StatusResponse(
        status=api_pb2.RuntimeStatus(
            conditions=[
                api_pb2.RuntimeCondition(type="RuntimeReady", status=True),
                api_pb2.RuntimeCondition(type="NetworkReady", status=False, reason="NoNet", message="no network"),
            ],
            resources=api_pb2.ResourcesInfo(
                pod_class_resources=[api_pb2.ClassResourceInfo(Name="net", immutable=True)],
                container_class_resources=[
                    api_pb2.ClassResourceInfo(
                        Name="rdt",
                        classes=[api_pb2.ClassResourceClassInfo(Name=name) for name in ("silver", "gold")],
                    )
                ],
            ),
        ),
        runtime_handlers=[
            api_pb2.RuntimeHandler(name="crun", features=api_pb2.RuntimeHandlerFeatures(user_namespaces=True)),
            api_pb2.RuntimeHandler(name=""),
        ],
        features=api_pb2.RuntimeFeatures(supplemental_groups_policy=True),
    )


def test_what_a_runtime_says() -> None:
    answer = status_response()
    assert list(not_ready(answer).values()) == [
        "container runtime network not ready: NetworkReady=false reason:NoNet message:no network"
    ]
    assert handlers(answer) == [
        {"name": "", "features": {"recursiveReadOnlyMounts": False, "userNamespaces": False}},
        {"name": "crun", "features": {"recursiveReadOnlyMounts": False, "userNamespaces": True}},
    ]
    assert features(answer) == {"supplementalGroupsPolicy": True}
    assert classes(answer) == {
        "podClassResources": [{"name": "net", "classes": [], "immutable": True}],
        "containerClassResources": [{"name": "rdt", "classes": ["gold", "silver"]}],
    }


def test_what_an_older_runtime_does_not_say() -> None:
    answer = api_pb2.StatusResponse()
    assert features(answer) is None
    assert classes(answer) is None
    assert handlers(answer) == []


def test_the_largest_images() -> None:
    found = [
        api_pb2.Image(id="a", size=1, repo_tags=["a:1"]),
        api_pb2.Image(id="b", size=3, repo_tags=[f"b:{number}" for number in range(9)], repo_digests=["b@x"]),
        api_pb2.Image(id="c", size=2),
    ]
    assert images(found, 2) == [
        {"names": ["b@x", "b:0", "b:1", "b:2", "b:3"], "sizeBytes": 3},
        {"names": [], "sizeBytes": 2},
    ]
    assert len(images(found, -1)) == 3


@pytest.mark.slow
def test_what_a_runtime_says_at_great_length_leaves_the_status_one_that_an_api_takes() -> None:
    """Or it would not be told that the node is not ready."""
    long = "x" * (1 << 20)
    answer = api_pb2.StatusResponse(runtime_handlers=[api_pb2.RuntimeHandler(name=long)])
    answer.status.conditions.add(type="RuntimeReady", status=True)
    answer.status.conditions.add(type="NetworkReady", reason=long, message=long)
    resources = answer.status.resources.pod_class_resources
    resources.add(Name=long)
    for number in range(50):
        resources.add(Name=f"many{number}", classes=[api_pb2.ClassResourceClassInfo(Name=long)])
    for number in range(2_000):
        answer.runtime_handlers.add(name=f"h{number:04}" + "x" * 200)
        resources.add(Name=f"r{number:04}")
        for kind in resources[1:50]:
            kind.classes.add(Name=f"c{number:04}" + "x" * 200)
    largest = api_pb2.Image(id="sha256:1", size=2**64 - 1, repo_tags=[long, "a:1", *["x" * 1000] * 10])
    status = {
        "errors": list(not_ready(answer).values()),
        "handlers": handlers(answer),
        "classes": classes(answer),
        "images": images([largest] * 50, 50),
    }
    assert len(json.dumps(status)) < 1 << 20
    assert len(status["errors"]) == 1
    assert "NetworkReady=false reason:xx" in str(status["errors"])
    assert status["images"][0]["sizeBytes"] == 2**63 - 1  # type: ignore[index]
    assert status["images"][0]["names"][0] == "a:1"  # type: ignore[index]
