"""The plugins Priority and RuntimeClass."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.priority import Priority
from podkeep.apiserver.admission.runtime_class import RuntimeClass, merged_tolerations
from podkeep.apiserver.kinds.policy import priority_classes
from podkeep.apiserver.kinds.resources import Target
from podkeep.apiserver.meta.status import StatusError
from support.admission import Objects, admit, attributes

(CLASSES,) = priority_classes.RESOURCES


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "web", "namespace": "default"}, "spec": {"containers": [], **spec}}


def priority_class(name: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "scheduling.k8s.io/priorityclasses", {"metadata": {"name": name}, **fields}


HIGH = priority_class("high", value=7, preemptionPolicy="Never")
DEFAULT = priority_class("default", value=3, globalDefault=True, preemptionPolicy="PreemptLowerPriority")
OTHER = priority_class("other", value=2, globalDefault=True)


def refusal(plugin: Any, told: Attributes) -> str:
    with pytest.raises(StatusError) as caught:
        admit(plugin, told)
    assert caught.value.code == 403
    return caught.value.message


@pytest.mark.parametrize(
    ("classes", "spec", "expected"),
    [
        ([], {}, {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}),
        ([HIGH], {}, {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}),
        (
            [HIGH, DEFAULT],
            {},
            {"priorityClassName": "default", "priority": 3, "preemptionPolicy": "PreemptLowerPriority"},
        ),
        ([OTHER, DEFAULT], {}, {"priorityClassName": "other", "priority": 2}),
        (
            [HIGH, DEFAULT],
            {"priorityClassName": "high", "priority": 7},
            {"priorityClassName": "high", "priority": 7, "preemptionPolicy": "Never"},
        ),
    ],
)
def test_a_pod_gets_the_priority_of_its_class(
    classes: list[Any], spec: dict[str, Any], expected: dict[str, Any]
) -> None:
    value = pod(**spec)
    admit(Priority(Objects(*classes)), attributes("pods", value))
    assert value["spec"] == {"containers": [], **expected}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"priorityClassName": "low"}, "no PriorityClass with name low was found"),
        (
            {"priorityClassName": "high", "priority": 8},
            "the integer value of priority (8) must not be provided in pod spec; priority admission controller computed"
            " 7 from the given PriorityClass name",
        ),
        (
            {"priorityClassName": "high", "preemptionPolicy": "PreemptLowerPriority"},
            "the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod spec; priority"
            " admission controller computed Never from the given PriorityClass name",
        ),
    ],
)
def test_a_pod_that_says_otherwise_is_refused(spec: dict[str, Any], expected: str) -> None:
    plugin = Priority(Objects(HIGH))
    assert refusal(plugin, attributes("pods", pod(**spec))) == f'pods "web" is forbidden: {expected}'


def test_an_update_keeps_the_priority() -> None:
    value, old = pod(), pod(priority=7, preemptionPolicy="Never")
    admit(Priority(Objects()), attributes("pods", value, old))
    assert value == old
    value = pod()
    admit(Priority(Objects()), attributes("pods", value, old, subresource="status"))
    assert value == pod()


@pytest.mark.parametrize(
    ("name", "operation", "why"),
    [
        ("new", Operation.CREATE, True),
        ("new", Operation.UPDATE, True),
        ("default", Operation.UPDATE, False),
    ],
)
def test_there_is_one_default_class(name: str, operation: Operation, why: bool) -> None:
    value = {"metadata": {"name": name}, "globalDefault": True}
    told = Attributes(operation=operation, target=Target(CLASSES, "", name), value=value, old=None)
    plugin = Priority(Objects(DEFAULT))
    if not why:
        admit(plugin, told)
        return
    assert refusal(plugin, told) == (
        f'priorityclasses.scheduling.k8s.io "{name}" is forbidden: PriorityClass default is already marked as default.'
        " Only one default can exist"
    )
    del value["globalDefault"]
    admit(plugin, told)


def runtime_class(**fields: Any) -> RuntimeClass:
    return RuntimeClass(Objects(("node.k8s.io/runtimeclasses", {"metadata": {"name": "vm"}, **fields})))


TOLERATION = {"key": "vm", "operator": "Exists"}


def test_a_pod_gets_what_its_runtime_class_says() -> None:
    plugin = runtime_class(
        overhead={"podFixed": {"memory": "64Mi"}},
        scheduling={"nodeSelector": {"vm": "yes"}, "tolerations": [TOLERATION]},
    )
    value = pod(runtimeClassName="vm", nodeSelector={"a": "b"})
    admit(plugin, attributes("pods", value))
    assert value["spec"]["overhead"] == {"memory": "64Mi"}
    assert value["spec"]["nodeSelector"] == {"a": "b", "vm": "yes"}
    assert value["spec"]["tolerations"] == [TOLERATION]
    again = {**value}
    admit(plugin, attributes("pods", again))
    assert again == value
    plain = pod()
    admit(plugin, attributes("pods", plain))
    assert plain == pod()


@pytest.mark.parametrize(
    ("fields", "spec", "expected"),
    [
        ({}, {"runtimeClassName": "no"}, 'pod rejected: RuntimeClass "no" not found'),
        (
            {},
            {"overhead": {"cpu": "1"}},
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        ),
        (
            {"overhead": {"podFixed": {"cpu": "1"}}},
            {"runtimeClassName": "vm", "overhead": {"cpu": "2"}},
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
        ),
        (
            {"scheduling": {"nodeSelector": {"a": "b"}}},
            {"runtimeClassName": "vm", "nodeSelector": {"a": "c"}},
            "conflict: runtimeClass.scheduling.nodeSelector[a] = b; pod.spec.nodeSelector[a] = c",
        ),
    ],
)
def test_a_pod_that_contradicts_its_runtime_class(fields: dict[str, Any], spec: dict[str, Any], expected: str) -> None:
    told = attributes("pods", pod(**spec))
    assert refusal(runtime_class(**fields), told) == f'pods "web" is forbidden: {expected}'


def test_an_overhead_is_compared_as_a_quantity() -> None:
    admit(
        runtime_class(overhead={"podFixed": {"cpu": "1000m"}}),
        attributes("pods", pod(runtimeClassName="vm", overhead={"cpu": "1"})),
    )


def toleration(**fields: Any) -> dict[str, Any]:
    return fields


EXISTS = toleration(key="a", operator="Exists")
EQUAL = toleration(key="a", operator="Equal", value="b")


def test_of_very_many_tolerations_duplicates_are_left_out() -> None:
    many = [{"key": f"k{number}", "operator": "Exists"} for number in range(20_000)]
    assert merged_tolerations(many, many) == many


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([], [EXISTS], [EXISTS]),
        ([EXISTS], [EXISTS], [EXISTS]),
        ([EQUAL], [EXISTS], [EXISTS]),
        ([EXISTS], [EQUAL], [EXISTS]),
        ([EQUAL], [{**EQUAL, "value": "c"}], [EQUAL, {**EQUAL, "value": "c"}]),
        ([EQUAL], [{"operator": "Exists"}], [{"operator": "Exists"}]),
        (
            [{**EXISTS, "effect": "NoExecute", "tolerationSeconds": 5}],
            [{**EXISTS, "effect": "NoExecute", "tolerationSeconds": 9}],
            [{**EXISTS, "effect": "NoExecute", "tolerationSeconds": 9}],
        ),
        (
            [{**EXISTS, "effect": "NoExecute"}],
            [{**EXISTS, "effect": "NoExecute", "tolerationSeconds": 9}],
            [{**EXISTS, "effect": "NoExecute"}],
        ),
        (
            [{**EXISTS, "effect": "NoSchedule"}],
            [{**EXISTS, "effect": "NoExecute"}],
            [{**EXISTS, "effect": "NoSchedule"}, {**EXISTS, "effect": "NoExecute"}],
        ),
        ([{**EXISTS, "effect": "NoSchedule"}], [EXISTS], [EXISTS]),
    ],
)
def test_tolerations_that_others_cover_are_left_out(first: list[Any], second: list[Any], expected: list[Any]) -> None:
    assert merged_tolerations(first, second) == expected
