"""Limit ranges and resource quotas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from podkeep.api import names
from podkeep.api.feature_gates import CLASS_RESOURCES, FeatureGates
from podkeep.apiserver.kinds.policy import limit_ranges, resource_quotas
from podkeep.apiserver.patch.values import copy
from support import kinds

(RANGES,) = limit_ranges.RESOURCES
(QUOTAS,) = resource_quotas.RESOURCES
OFF = FeatureGates(given={CLASS_RESOURCES.name: False})
GOLD = [{"name": "rdt", "classes": ["gold"]}]


def limits(*items: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"limits": list(items)}}


def container(**lists: dict[str, str]) -> dict[str, Any]:
    return limits({"type": "Container", **lists})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max": {"cpu": "2"}}, {"max": {"cpu": "2"}, "default": {"cpu": "2"}, "defaultRequest": {"cpu": "2"}}),
        (
            {"min": {"cpu": "1"}, "default": {"cpu": "2"}},
            {"min": {"cpu": "1"}, "default": {"cpu": "2"}, "defaultRequest": {"cpu": "2"}},
        ),
        ({"min": {"cpu": "1"}}, {"min": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}),
        (
            {"max": {"cpu": "3"}, "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}},
            {"max": {"cpu": "3"}, "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}},
        ),
        ({"max": {"cpu": "100u"}}, {key: {"cpu": "1m"} for key in ("max", "default", "defaultRequest")}),
    ],
)
def test_defaults_of_a_limit_range(given: dict[str, Any], expected: dict[str, Any]) -> None:
    (item,) = kinds.defaulted(RANGES, container(**given))["spec"]["limits"]
    assert item == {"type": "Container", **expected}
    (item,) = kinds.defaulted(RANGES, limits({"type": "Pod", "max": {"cpu": "1"}}))["spec"]["limits"]
    assert item == {"type": "Pod", "max": {"cpu": "1"}}


def at(name: str, value: str, why: str) -> str:
    return f'spec.limits[0].{name}: Invalid value: "{value}": {why}'


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (container(max={"cpu": "1", "example.com/gpu": "1"}, min={"memory": "1Mi"}), []),
        (
            limits({"type": "Other"}, {"type": "Other"}),
            [
                at("type", "Other", "must be a standard limit type or fully qualified"),
                'spec.limits[1].type: Invalid value: "Other": must be a standard limit type or fully qualified',
                'spec.limits[1].type: Duplicate value: "Other"',
            ],
        ),
        (limits({"type": "-"}), [at("type", "-", names.label_key("-"))]),
        (
            limits({"type": "Pod", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}),
            [
                "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
                "spec.limits[0].defaultRequest: Forbidden: may not be specified when `type` is 'Pod'",
            ],
        ),
        (
            limits({"type": "Pod", "max": {"tea": "1", "requests.cpu": "1"}}),
            [
                at("max[tea]", "tea", "must be a standard resource type or fully qualified"),
                at("max[tea]", "tea", "must be a standard resource for containers"),
                at("max[requests.cpu]", "requests.cpu", "must be a standard resource for containers"),
            ],
        ),
        (limits({"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}), []),
        (
            limits({"type": "PersistentVolumeClaim"}),
            [
                "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but"
                " neither was provided"
            ],
        ),
        (
            limits({"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "1"}}),
            [at("min[cpu]", "2", "min value 2 is greater than max value 1")],
        ),
        (
            container(min={"cpu": "2"}, defaultRequest={"cpu": "1"}),
            [at("defaultRequest[cpu]", "1", "min value 2 is greater than default request value 1")],
        ),
        (
            container(max={"cpu": "2"}, default={"cpu": "1"}, defaultRequest={"cpu": "3"}),
            [
                at("defaultRequest[cpu]", "3", "default request value 3 is greater than max value 2"),
                at("defaultRequest[cpu]", "3", "default request value 3 is greater than default limit value 1"),
            ],
        ),
        (
            container(min={"cpu": "2"}, max={"cpu": "3"}, default={"cpu": "1"}, defaultRequest={"cpu": "2"}),
            [
                at("defaultRequest[cpu]", "2", "default request value 2 is greater than default limit value 1"),
                at("default[cpu]", "2", "min value 2 is greater than default value 1"),
            ],
        ),
        (
            container(max={"cpu": "2"}, default={"cpu": "3"}, defaultRequest={"cpu": "1"}),
            [at("default[cpu]", "2", "default value 3 is greater than max value 2")],
        ),
        (
            limits({"type": "Pod", "maxLimitRequestRatio": {"cpu": "500m"}}),
            [at("maxLimitRequestRatio[cpu]", "500m", "ratio 500m is less than 1")],
        ),
        (
            limits({"type": "Pod", "min": {"cpu": "3"}, "max": {"cpu": "4"}, "maxLimitRequestRatio": {"cpu": "2"}}),
            [at("maxLimitRequestRatio[cpu]", "2", "ratio 2 is greater than max/min = 1.333333")],
        ),
        (
            limits({"type": "Pod", "min": {"cpu": "0"}, "max": {"cpu": "4"}, "maxLimitRequestRatio": {"cpu": "2"}}),
            [],
        ),
        (
            container(default={"example.com/gpu": "2"}, defaultRequest={"example.com/gpu": "1"}),
            [
                at(
                    "defaultRequest[example.com/gpu]",
                    "1",
                    "default value 2 must equal to defaultRequest value 1 in example.com/gpu",
                )
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_limit_range(value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(RANGES, value) == expected


def test_a_limit_range_without_a_name_gets_one() -> None:
    assert kinds.created(RANGES, {"metadata": {"name": ""}})["metadata"]["name"] == "u"
    row = kinds.table(RANGES, kinds.created(RANGES, {}))
    assert row == {"Name": "a", "Created At": "2026-11-23T11:00:00Z"}


def quota(**spec: Any) -> dict[str, Any]:
    return {"spec": spec}


def selector(**item: Any) -> dict[str, Any]:
    return {"scopeSelector": {"matchExpressions": [item]}}


UNFIT = "unsupported scope applied to resource"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            quota(
                hard={
                    "pods": "1",
                    "requests.cpu": "100m",
                    "limits.memory": "1Gi",
                    "count/deployments.apps": "2",
                    "requests.example.com/gpu": "1",
                    "hugepages-2Mi": "2Mi",
                    "requests.hugepages-2Mi": "2Mi",
                    "gold.storageclass.storage.k8s.io/requests.storage": "1Gi",
                }
            ),
            [],
        ),
        (
            quota(hard={"storage": "1", "tea": "1", "-": "1"}),
            [
                'spec.hard[storage]: Invalid value: "storage": must be a standard resource for quota',
                'spec.hard[tea]: Invalid value: "tea": must be a standard resource type or fully qualified',
                'spec.hard[tea]: Invalid value: "tea": must be a standard resource for quota',
                f'spec.hard[-]: Invalid value: "-": {names.label_key("-")}',
                'spec.hard[-]: Invalid value: "-": must be a standard resource for quota',
            ],
        ),
        (
            quota(hard={"pods": "1500m", "cpu": "-1"}),
            [
                'spec.hard[pods]: Invalid value: "1500m": must be an integer',
                'spec.hard[cpu]: Invalid value: "-1": must be greater than or equal to 0',
            ],
        ),
        (quota(scopes=["Some"]), ['spec.scopes: Invalid value: ["Some"]: unsupported scope']),
        (
            quota(hard={"secrets": "1", "pods": "1"}, scopes=["BestEffort"]),
            [f'spec.scopes: Invalid value: ["BestEffort"]: {UNFIT}'],
        ),
        (
            quota(scopes=["BestEffort", "NotBestEffort"]),
            ['spec.scopes: Invalid value: ["BestEffort","NotBestEffort"]: conflicting scopes'],
        ),
        (
            quota(scopes=["Terminating", "NotTerminating"]),
            ['spec.scopes: Invalid value: ["Terminating","NotTerminating"]: conflicting scopes'],
        ),
        (
            quota(**selector(scopeName="Some", operator="Is")),
            [
                'spec.scopeSelector.matchExpressions.scopeName: Invalid value: "Some": unsupported scope',
                'spec.scopeSelector.matchExpressions.operator: Invalid value: "Is": not a valid selector operator',
            ],
        ),
        (
            quota(hard={"cpu": "1"}, **selector(scopeName="BestEffort", operator="In")),
            [
                'spec.scopeSelector.matchExpressions: Invalid value: {"matchExpressions":[{"scopeName":"BestEffort",'
                f'"operator":"In"}}]}}: {UNFIT}',
                "spec.scopeSelector.matchExpressions.operator: Invalid value: \"In\": must be 'Exists' when scope is"
                " any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort,"
                " ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
                "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator`"
                " is 'In' or 'NotIn' for scope selector",
            ],
        ),
        (
            quota(**selector(scopeName="PriorityClass", operator="Exists", values=["a"])),
            [
                'spec.scopeSelector.matchExpressions.values: Invalid value: ["a"]: must be no value when `operator` is'
                " 'Exist' or 'DoesNotExist' for scope selector"
            ],
        ),
        (quota(podClassResources=GOLD, containerClassResources=[{"name": "blockio"}]), []),
        (
            quota(containerClassResources=[{"name": "-", "classes": ["gold", "gold"]}]),
            [
                f'spec.containerClassResources[0].name: Invalid value: "-": {names.label_key("-")}',
                'spec.containerClassResources[0].classes[1]: Duplicate value: "gold"',
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_quota(value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(QUOTAS, value) == expected


def test_scopes_of_a_quota_are_fixed() -> None:
    old = quota(hard={"pods": "1"}, scopes=["BestEffort"])
    assert kinds.update_problems(QUOTAS, old, quota(hard={"pods": "2"})) == []
    assert kinds.update_problems(QUOTAS, old, quota(scopes=["Terminating"])) == [
        'spec.scopes: Invalid value: ["Terminating"]: field is immutable'
    ]


@pytest.mark.requirement("Q71")
def test_the_status_of_a_quota() -> None:
    given = {"hard": {"pods": "1"}, "used": {"pods": "0"}, "podClassResources": GOLD, "containerClassResources": GOLD}
    assert kinds.status_problems(QUOTAS, {}, given) == []
    assert kinds.status_problems(QUOTAS, {}, {"hard": {"tea": "1"}, "used": {"pods": "-1"}}) == [
        'status.hard[tea]: Invalid value: "tea": must be a standard resource type or fully qualified',
        'status.hard[tea]: Invalid value: "tea": must be a standard resource for quota',
        'status.used[pods]: Invalid value: "-1": must be greater than or equal to 0',
    ]


@pytest.mark.requirement("Q75")
def test_without_the_gate_classes_of_quotas_are_dropped_but_not_those_that_are_there() -> None:
    given = quota(hard={"pods": "1"}, podClassResources=GOLD)
    assert kinds.created(QUOTAS, given)["spec"] == given["spec"]
    assert kinds.created(QUOTAS, given, OFF)["spec"] == {"hard": {"pods": "1"}}
    changes = quota(podClassResources=[{"name": "blockio"}], containerClassResources=GOLD)
    new, _ = kinds.updated(QUOTAS, given, changes, OFF)
    assert new["spec"] == {"hard": {"pods": "1"}, "podClassResources": [{"name": "blockio"}]}
    old = kinds.created(QUOTAS, given)
    status = kinds.merged(copy(old), {"status": {"podClassResources": GOLD}})
    QUOTAS.strategy.drop(status, old, OFF)
    assert status["status"] == {}


def test_the_quota_of_the_documentation_is_right() -> None:
    text = (Path(__file__).parents[4] / "docs" / "class-resources.md").read_text()
    (block,) = [found for found in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: ResourceQuota" in found]
    assert kinds.problems(QUOTAS, yaml.safe_load(block)) == []


def test_requests_that_are_larger_than_limits_are_told_of() -> None:
    value = quota(hard={"cpu": "2", "limits.cpu": "1", "requests.memory": "1Gi", "limits.memory": "2Gi"})
    assert kinds.warnings(QUOTAS, value) == ["ResourceQuota cpu (2) should be less than limits.cpu (1)"]
    assert kinds.warnings(QUOTAS, value, value) == []


def test_the_row_of_a_quota() -> None:
    value = kinds.created(QUOTAS, {})
    value["status"] = {"hard": {"pods": "2", "limits.cpu": "1", "cpu": "1"}, "used": {"pods": "1", "cpu": "100m"}}
    assert kinds.table(QUOTAS, value) == {
        "Name": "a",
        "Request": "cpu: 100m/1, pods: 1/2",
        "Limit": "limits.cpu: 0/1",
        "Age": "60m",
    }
