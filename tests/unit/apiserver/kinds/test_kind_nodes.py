"""Nodes, alone and over a real store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from podkeep.api import names
from podkeep.api.feature_gates import CLASS_RESOURCES, FeatureGates
from podkeep.apiserver.kinds.cluster import nodes
from podkeep.apiserver.kinds.resources import Target
from podkeep.apiserver.patch.values import copy
from podkeep.apiserver.registry.registry import PatchType, Registry, Request
from podkeep.apiserver.storage.store import Store
from support import kinds

(NODES,) = nodes.RESOURCES
ME = Request(field_manager="kubelet")
OFF = FeatureGates(given={CLASS_RESOURCES.name: False})
CLASSES = [{"name": "rdt", "classes": ["gold", "silver"], "immutable": True}]


def taints(*found: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"taints": list(found)}}


def status(**fields: Any) -> dict[str, Any]:
    return {"status": fields}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (taints({"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}), []),
        (
            taints({"key": "-", "value": "-"}),
            [
                f'metadata.taints[0].key: Invalid value: "-": {names.label_key("-")}',
                f'metadata.taints[0].value: Invalid value: "-": {names.label_value("-")}',
                "metadata.taints[0].effect: Required value",
            ],
        ),
        (
            taints({"key": "a", "effect": "Never"}),
            [
                'metadata.taints[0].effect: Unsupported value: "Never": supported values: "NoSchedule",'
                ' "PreferNoSchedule", "NoExecute"'
            ],
        ),
        (
            taints({"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoExecute"}),
            [
                'metadata.taints[1]: Duplicate value: {"key":"a","effect":"NoExecute"}: taints must be unique by key'
                " and effect pair"
            ],
        ),
        (
            {"metadata": {"annotations": {"scheduler.alpha.kubernetes.io/taints": '[{"key":"a"}]'}}},
            ["metadata.annotations.scheduler.alpha.kubernetes.io/taints[0].effect: Required value"],
        ),
        (
            status(capacity={"cpu": "-1", "pods": "1500m", "memory": "1Gi"}, allocatable={"example.com/gpu": "500m"}),
            [
                'status.capacity.cpu: Invalid value: "-1": must be greater than or equal to 0',
                'status.capacity.pods: Invalid value: "1500m": must be an integer',
                'status.allocatable.example.com/gpu: Invalid value: "500m": must be an integer',
            ],
        ),
        (
            status(nodeInfo={"swap": {"capacity": 0}}),
            ["metadata.nodeSwapStatus.capacity: Invalid value: 0: must be greater than zero"],
        ),
        (
            {"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "10.0.1.0/24"]}},
            [
                'spec.podCIDRs: Invalid value: ["10.0.0.0/24","10.0.1.0/24"]: may specify no more than one CIDR for'
                " each IP family"
            ],
        ),
        (
            {"spec": {"podCIDRs": ["10.0.0.0"]}},
            [
                'spec.podCIDRs[0]: Invalid value: "10.0.0.0": must be a valid CIDR value, (e.g. 10.9.8.0/24 or'
                " 2001:db8::/64)"
            ],
        ),
        (
            status(declaredFeatures=["B", "A", "A", "a", "A" * 254]),
            [
                'status.declaredFeatures[1]: Invalid value: "A": list must be sorted alphabetically',
                'status.declaredFeatures[2]: Duplicate value: "A"',
                'status.declaredFeatures[3]: Invalid value: "a": invalid feature name "a": must start with an'
                " UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or"
                " MyFeature/mySubFeature), and contain only alphanumeric characters and slashes",
                f'status.declaredFeatures[4]: Invalid value: "{"A" * 254}": invalid feature name "{"A" * 254}": must be'
                " no more than 253 characters",
                f'status.declaredFeatures[4]: Invalid value: "{"A" * 254}": list must be sorted alphabetically',
            ],
        ),
        (
            status(podClassResources=[{"name": ""}, {"name": "a", "classes": ["", "b", "b"]}, {"name": "a"}]),
            [
                "status.podClassResources[0].name: Required value",
                "status.podClassResources[1].classes[0]: Invalid value: \"\": must be 1 to 63 letters, digits, '-',"
                " '_' or '.', and start and end with a letter or digit",
                'status.podClassResources[1].classes[2]: Duplicate value: "b"',
                'status.podClassResources[2].name: Duplicate value: "a"',
            ],
        ),
        (
            status(containerClassResources=[{"name": "-"}]),
            [f'status.containerClassResources[0].name: Invalid value: "-": {names.label_key("-")}'],
        ),
    ],
)
def test_what_is_wrong_with_a_node(value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(NODES, value) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "Expected `array`, got `object`"),
        ("[", "Input data was truncated"),
        ("[1]", "json: cannot unmarshal number into Go value of type v1.Taint"),
        ('[{"key":1}]', "json: cannot unmarshal number into Go struct field Taint.key of type string"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
    ],
)
def test_an_annotation_that_should_have_taints(text: str, why: str) -> None:
    key = "scheduler.alpha.kubernetes.io/taints"
    (problem,) = kinds.problems(NODES, {"metadata": {"annotations": {key: text}}})
    assert problem.startswith(f'metadata.annotations: Invalid value: "{key}": {why}')


@pytest.mark.parametrize(
    ("old", "changes", "expected"),
    [
        ({}, {"spec": {"podCIDR": "10.0.0.0/24", "providerID": "x"}}, []),
        (
            {"spec": {"podCIDR": "10.0.0.0/24"}},
            {"spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": None}},
            ['spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid'],
        ),
        (
            {"spec": {"providerID": "x"}},
            {"spec": {"providerID": "y"}},
            ['spec.providerID: Forbidden: node updates may not change providerID except from "" to valid'],
        ),
        ({}, {"spec": {"externalID": "x"}}, ["spec.externalID: Forbidden: may not be updated"]),
        ({}, {"spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoExecute"}]}}, []),
    ],
)
def test_what_an_update_may_change(old: dict[str, Any], changes: dict[str, Any], expected: list[str]) -> None:
    assert kinds.update_problems(NODES, old, changes) == expected


def test_the_status_is_held_against_its_rules() -> None:
    address = {"type": "InternalIP", "address": "10.0.0.1"}
    given = {"addresses": [address, address], "capacity": {"cpu": "-1"}}
    assert kinds.status_problems(NODES, {}, given) == [
        'status.capacity.cpu: Invalid value: "-1": must be greater than or equal to 0',
        'status.allocatable.cpu: Invalid value: "-1": must be greater than or equal to 0',
        'status.addresses[1]: Duplicate value: {"type":"InternalIP","address":"10.0.0.1"}',
    ]


def test_a_feature_that_is_gone_is_dropped_and_told_of() -> None:
    value = {"spec": {"configSource": {"configMap": {}}, "externalID": "x", "podCIDR": "10.0.0.1/24"}}
    assert "configSource" not in kinds.created(NODES, value)["spec"]
    assert kinds.warnings(NODES, value) == [
        "spec.externalID: this field is deprecated, and is unused by Kubernetes",
        'spec.podCIDRs[0]: CIDR value "10.0.0.1/24" is ambiguous in this context (should be "10.0.0.0/24" or'
        ' "10.0.0.1/32"?)',
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"podCIDR": "a"}, {"podCIDR": "a", "podCIDRs": ["a"]}),
        ({"podCIDRs": ["a", "b"]}, {"podCIDR": "a", "podCIDRs": ["a", "b"]}),
        ({"podCIDR": "a", "podCIDRs": ["b"]}, {"podCIDR": "a", "podCIDRs": ["a"]}),
    ],
)
def test_two_names_of_one_field(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert kinds.defaulted(NODES, {"spec": given})["spec"] == expected


def test_an_agent_registers_a_node_with_its_status(tmp_path: Path) -> None:
    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            registry, target = Registry(store), Target(NODES, "")
            given = {
                "metadata": {"name": "a"},
                "status": {"capacity": {"cpu": "2"}, "podClassResources": CLASSES, "containerClassResources": CLASSES},
            }
            node = await registry.create(target, copy(given), ME)
            assert node["status"] == given["status"] | {"allocatable": {"cpu": "2"}}
            at = Target(NODES, "", "a", "status")
            patch = {"status": {"containerClassResources": [{"name": "blockio", "classes": ["slow"]}]}}
            node = await registry.patch(at, patch, PatchType.STRATEGIC, ME)
            assert {item["name"] for item in node["status"]["containerClassResources"]} == {"rdt", "blockio"}
            # Whoever writes the rest of a node leaves its status alone.
            node, _ = await registry.update(target._replace(name="a"), {"metadata": {"name": "a"}}, ME)
            assert node["status"]["podClassResources"] == CLASSES

    asyncio.run(steps())


def test_without_the_gate_classes_are_dropped_but_not_those_that_are_there() -> None:
    given = status(podClassResources=CLASSES)
    assert kinds.created(NODES, given, OFF)["status"] == {}
    old = kinds.created(NODES, given)
    new = kinds.merged(copy(old), status(containerClassResources=CLASSES))
    NODES.strategy.drop(new, old, OFF)
    assert new["status"] == {"podClassResources": CLASSES}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, {"Status": "Unknown", "Roles": "<none>", "(Internal-IP)": "<none>", "(OS-Image)": "<unknown>"}),
        (
            {
                "metadata": {
                    "labels": {
                        "node-role.kubernetes.io/worker": "",
                        "node-role.kubernetes.io/": "",
                        "kubernetes.io/role": "control",
                    }
                },
                "spec": {"unschedulable": True},
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "addresses": [
                        {"type": "InternalIP", "address": "10.0.0.1"},
                        {"type": "ExternalIP", "address": "1.2.3.4"},
                    ],
                    "nodeInfo": {
                        "kubeletVersion": "v1.36.0",
                        "osImage": "Debian",
                        "kernelVersion": "6.12",
                        "architecture": "amd64",
                        "containerRuntimeVersion": "podkeep://1",
                    },
                },
            },
            {
                "Name": "a",
                "Status": "Ready,SchedulingDisabled",
                "Roles": "control,worker",
                "Age": "60m",
                "Version": "v1.36.0",
                "(Internal-IP)": "10.0.0.1",
                "(External-IP)": "1.2.3.4",
                "(OS-Image)": "Debian",
                "(Kernel-Version)": "6.12 (amd64)",
                "(Container-Runtime)": "podkeep://1",
            },
        ),
        (status(conditions=[{"type": "Ready", "status": "Unknown"}]), {"Status": "NotReady"}),
    ],
)
def test_the_row_of_a_node(value: dict[str, Any], expected: dict[str, Any]) -> None:
    row = kinds.table(NODES, kinds.created(NODES, value))
    assert {name: row[name] for name in expected} == expected
    json.dumps(row)


def test_selectable_fields() -> None:
    assert NODES.strategy.selectable({"spec": {"unschedulable": True}}) == {"spec.unschedulable": "true"}
    assert NODES.strategy.selectable({}) == {"spec.unschedulable": "false"}
