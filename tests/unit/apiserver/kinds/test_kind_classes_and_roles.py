"""Priority classes, runtime classes, leases, roles and bindings."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.api import names
from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.access import rbac
from podkeep.apiserver.kinds.cluster import leases
from podkeep.apiserver.kinds.policy import priority_classes, runtime_classes
from podkeep.apiserver.kinds.resources import Resource
from support import kinds

(PRIORITIES,) = priority_classes.RESOURCES
(RUNTIMES,) = runtime_classes.RESOURCES
(LEASES,) = leases.RESOURCES
ROLES, CLUSTER_ROLES, BINDINGS, CLUSTER_BINDINGS = rbac.RESOURCES
SYSTEM = (
    "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: "
)


def named(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **fields}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"value": 1_000_000_000, "preemptionPolicy": "Never"}, []),
        (
            {"value": 1_000_000_001},
            ["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"],
        ),
        (named("system-x"), [f"{SYSTEM}system-x is not a known system priority class"]),
        (
            named("system-node-critical", value=1),
            [f"{SYSTEM}value of system-node-critical PriorityClass must be 2000001000"],
        ),
        (
            named("system-cluster-critical", value=2_000_000_000, globalDefault=True),
            [f"{SYSTEM}globalDefault of system-cluster-critical PriorityClass must be false"],
        ),
        (
            {"preemptionPolicy": "Often"},
            ['preemptionPolicy: Unsupported value: "Often": supported values: "PreemptLowerPriority", "Never"'],
        ),
        ({"preemptionPolicy": ""}, ["preemptionPolicy: Required value"]),
    ],
)
def test_what_is_wrong_with_a_priority_class(value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(PRIORITIES, value) == expected


def test_the_systems_own_priority_classes_are_right() -> None:
    for value in priority_classes.system_classes():
        assert kinds.problems(PRIORITIES, value) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"description": "a", "globalDefault": True}, []),
        ({"value": 2}, ["value: Forbidden: may not be changed in an update."]),
        ({"preemptionPolicy": "Never"}, ['preemptionPolicy: Invalid value: "Never": field is immutable']),
    ],
)
def test_what_an_update_of_a_priority_class_may_change(changes: dict[str, Any], expected: list[str]) -> None:
    assert kinds.update_problems(PRIORITIES, {"value": 1}, changes) == expected


def test_an_update_of_a_priority_class_is_not_held_against_the_rules_of_its_creation() -> None:
    old = named("system-node-critical", value=2_000_001_000)
    assert kinds.update_problems(PRIORITIES, old, {"globalDefault": True}) == []


def test_the_row_of_a_priority_class() -> None:
    value = kinds.created(PRIORITIES, {"value": 7})
    assert value["metadata"]["generation"] == 1
    assert kinds.table(PRIORITIES, value) == {
        "Name": "a",
        "Value": 7,
        "Global-Default": False,
        "Age": "60m",
        "PreemptionPolicy": "PreemptLowerPriority",
    }


def runtime(**fields: Any) -> dict[str, Any]:
    return {"handler": "crun", **fields}


SAME = {"key": "a", "operator": "Exists", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (runtime(overhead={"podFixed": {"cpu": "1"}}, scheduling={"nodeSelector": {"a": "b"}}), []),
        ({"handler": ""}, ["handler: Required value"]),
        ({"handler": "a.b"}, ['handler: Invalid value: "a.b": must not contain dots']),
        (
            runtime(overhead={"podFixed": {"tea": "-1"}}),
            [
                'overhead.limits[tea]: Invalid value: "tea": must be a standard resource type or fully qualified',
                'overhead.limits[tea]: Invalid value: "tea": must be a standard resource for containers',
                'overhead.limits[tea]: Invalid value: "-1": must be greater than or equal to 0',
            ],
        ),
        (
            runtime(scheduling={"nodeSelector": {"-": "-"}}),
            [
                f'scheduling.nodeSelector: Invalid value: "-": {names.label_key("-")}',
                f'scheduling.nodeSelector: Invalid value: "-": {names.label_value("-")}',
            ],
        ),
        (
            runtime(scheduling={"tolerations": [SAME, SAME | {"tolerationSeconds": 3}]}),
            [
                'scheduling.tolerations[1]: Duplicate value: {"key":"a","operator":"Exists","effect":"NoExecute",'
                '"tolerationSeconds":3}'
            ],
        ),
        (
            runtime(scheduling={"tolerations": [{"key": "-", "operator": "Exists"}]}),
            [f'scheduling.tolerations[0].key: Invalid value: "-": {names.label_key("-")}'],
        ),
    ],
)
def test_what_is_wrong_with_a_runtime_class(value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(RUNTIMES, value) == expected


def test_runtime_classes() -> None:
    assert kinds.update_problems(RUNTIMES, runtime(), {"handler": "runc"}) == [
        'handler: Invalid value: "runc": field is immutable'
    ]
    value = runtime(scheduling={"nodeSelector": {"beta.kubernetes.io/arch": "amd64"}})
    assert kinds.warnings(RUNTIMES, value) == [
        'scheduling.nodeSelector: deprecated since v1.14; use "kubernetes.io/arch" instead'
    ]
    value = kinds.created(RUNTIMES, runtime(overhead={"podFixed": {"cpu": "1u"}}))
    assert value["overhead"] == {"podFixed": {"cpu": "1m"}}
    assert kinds.table(RUNTIMES, value) == {"Name": "a", "Handler": "crun", "Age": "60m"}


def lease(**spec: Any) -> dict[str, Any]:
    return {"spec": spec}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lease(holderIdentity="a", leaseDurationSeconds=1, leaseTransitions=0), []),
        (
            lease(leaseDurationSeconds=0, leaseTransitions=-1),
            [
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
            ],
        ),
        (lease(strategy="Some", preferredHolder="b"), []),  # dropped
    ],
)
def test_what_is_wrong_with_a_lease(value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(LEASES, value) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"strategy": "OldestEmulationVersion", "preferredHolder": "b"}, []),
        (
            {"strategy": "Some"},
            ['spec.strategy.strategy: Unsupported value: "Some": supported values: "OldestEmulationVersion"'],
        ),
        (
            {"strategy": "a/b/c"},
            [f'spec.strategy.strategy: Invalid value: "a/b/c": {names.label_key("a/b/c")}'],
        ),
        (
            {"strategy": None, "preferredHolder": "b"},
            ["spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined"],
        ),
    ],
)
def test_fields_of_leases_that_are_there_already_are_held_against_their_rules(
    spec: dict[str, Any], expected: list[str]
) -> None:
    old = {"spec": {"strategy": "a/b", "preferredHolder": "c"}}
    new, errors = kinds.merged(old, {"spec": spec}), FieldErrors()
    LEASES.strategy.drop(new, old, FeatureGates())
    LEASES.strategy.validate(new, errors)
    assert [str(error) for error in errors.found] == expected


def test_the_row_of_a_lease() -> None:
    row = kinds.table(LEASES, kinds.created(LEASES, lease(holderIdentity="me")))
    assert row == {"Name": "a", "Holder": "me", "Age": "60m"}


def rules(**rule: Any) -> dict[str, Any]:
    return {"rules": [rule]}


VERBS = "rules[0].verbs: Required value: verbs must contain at least one value"
NAMESPACED = 'rules[0].nonResourceURLs: Invalid value: ["/a"]: namespaced rules cannot apply to non-resource URLs'
BOTH = (
    'rules[0].nonResourceURLs: Invalid value: ["/a"]: rules cannot apply to both regular resources and non-resource'
    " URLs"
)


@pytest.mark.parametrize(
    ("resource", "value", "expected"),
    [
        (ROLES, rules(verbs=["get"], apiGroups=[""], resources=["pods"]), []),
        (
            ROLES,
            rules(),
            [
                VERBS,
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[0].resources: Required value: resource rules must supply at least one resource",
            ],
        ),
        (ROLES, rules(verbs=["get"], nonResourceURLs=["/a"]), [NAMESPACED]),
        (ROLES, rules(verbs=["get"], nonResourceURLs=["/a"], resources=["a"]), [NAMESPACED, BOTH]),
        (CLUSTER_ROLES, rules(verbs=["get"], nonResourceURLs=["/a"]), []),
        (CLUSTER_ROLES, rules(nonResourceURLs=["/a"], resourceNames=["a"]), [VERBS, BOTH]),
        (
            CLUSTER_ROLES,
            {"aggregationRule": {}},
            [
                "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if"
                " aggregationRule is non-nil"
            ],
        ),
        (
            CLUSTER_ROLES,
            {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"-": "a"}}]}},
            [
                'aggregationRule.clusterRoleSelectors[0].matchLabels: Invalid value: "-": ' + names.label_key("-"),
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_role(resource: Resource, value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(resource, value) == expected


def binding(*subjects: dict[str, Any], **reference: Any) -> dict[str, Any]:
    return {"roleRef": {"kind": "ClusterRole", "name": "r"} | reference, "subjects": list(subjects)}


GROUP = "rbac.authorization.k8s.io"


@pytest.mark.parametrize(
    ("resource", "value", "expected"),
    [
        (BINDINGS, binding({"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}, kind="Role"), []),
        (
            BINDINGS,
            binding(apiGroup="x", kind="X", name="a/b"),
            [
                f'roleRef.apiGroup: Unsupported value: "x": supported values: "{GROUP}"',
                'roleRef.kind: Unsupported value: "X": supported values: "Role", "ClusterRole"',
                "roleRef.name: Invalid value: \"a/b\": may not contain '/'",
            ],
        ),
        (BINDINGS, binding(name=""), ["roleRef.name: Required value"]),
        (
            CLUSTER_BINDINGS,
            binding(kind="Role"),
            ['roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole"'],
        ),
        (
            CLUSTER_BINDINGS,
            binding({"kind": "ServiceAccount", "name": "A", "apiGroup": "x"}),
            [
                f'subjects[0].name: Invalid value: "A": {names.dns_subdomain("A")}',
                'subjects[0].apiGroup: Unsupported value: "x": supported values: ""',
                "subjects[0].namespace: Required value",
            ],
        ),
        (
            BINDINGS,
            binding({"kind": "Group", "name": "", "apiGroup": "x"}, {"kind": "X", "name": "a"}),
            [
                "subjects[0].name: Required value",
                f'subjects[0].apiGroup: Unsupported value: "x": supported values: "{GROUP}"',
                'subjects[1].kind: Unsupported value: "X": supported values: "ServiceAccount", "User", "Group"',
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_binding(resource: Resource, value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(resource, value) == expected


def test_what_a_binding_refers_to_is_fixed() -> None:
    assert kinds.update_problems(BINDINGS, binding(), binding({"kind": "User", "name": "u"})) == []
    assert kinds.update_problems(BINDINGS, binding(), {"roleRef": {"name": "s"}}) == [
        'roleRef: Invalid value: {"kind":"ClusterRole","name":"s","apiGroup":"rbac.authorization.k8s.io"}: cannot'
        " change roleRef"
    ]


def test_rows_of_roles_and_bindings() -> None:
    assert kinds.table(ROLES, kinds.created(ROLES, {})) == {"Name": "a", "Created At": "2026-11-23T11:00:00Z"}
    value = binding(
        {"kind": "User", "name": "u"},
        {"kind": "User", "name": "v"},
        {"kind": "Group", "name": "g"},
        {"kind": "ServiceAccount", "name": "s", "namespace": "n"},
    )
    assert kinds.table(BINDINGS, kinds.created(BINDINGS, value)) == {
        "Name": "a",
        "Role": "ClusterRole/r",
        "Age": "60m",
        "(Users)": "u, v",
        "(Groups)": "g",
        "(ServiceAccounts)": "n/s",
    }


@pytest.mark.parametrize("name", ["system:node", "A b", "a.b"])
def test_roles_have_any_name_that_a_path_can_have(name: str) -> None:
    assert ROLES.strategy.name_rule(name) == ""
