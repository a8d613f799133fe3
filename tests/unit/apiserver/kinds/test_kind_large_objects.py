"""Objects as large as a body may be: what is looked at grows with them, and not with their square."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.served import Served
from podkeep.apiserver.kinds.services import service_families, services
from podkeep.apiserver.kinds.workloads import disruption_budgets
from support import kinds

SERVED = Served()
MANY = 4_000
NAMES = [f"n{number}" for number in range(MANY)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "plural", "value", "found"),
    [
        ("", "nodes", {"status": {"podClassResources": [{"name": "a", "classes": NAMES * 2}]}}, MANY),
        ("", "nodes", {"spec": {"taints": [{"key": name, "effect": "NoExecute"} for name in NAMES]}}, 0),
        ("", "resourcequotas", {"spec": {"scopes": NAMES, "hard": dict.fromkeys(NAMES, "1")}}, 2),
        (
            "",
            "resourcequotas",
            {
                "spec": {
                    "hard": {"secrets": "1"},
                    "scopeSelector": {"matchExpressions": [{"scopeName": "BestEffort", "operator": "Exists"}] * MANY},
                }
            },
            1,
        ),
        (
            "storage.k8s.io",
            "storageclasses",
            {
                "provisioner": "a",
                "allowedTopologies": [{"matchLabelExpressions": [{"key": name, "values": ["a"]}]} for name in NAMES]
                + [{"matchLabelExpressions": [{"key": "a", "values": NAMES * 2}]}],
            },
            MANY,
        ),
        (
            "rbac.authorization.k8s.io",
            "rolebindings",
            {"roleRef": {"kind": "Role", "name": "a"}, "subjects": [{"kind": "User", "name": ""}] * MANY},
            MANY,
        ),
    ],
)
def test_a_large_object(group: str, plural: str, value: dict[str, Any], found: int) -> None:
    resource = SERVED.find(group, "v1", plural)
    assert resource is not None
    assert len(kinds.problems(resource, value)) == found


def _problems(group: str, plural: str, value: dict[str, Any]) -> list[str]:
    resource = SERVED.find(group, "v1", plural)
    assert resource is not None
    return kinds.problems(resource, value)


def test_a_quota_that_limits_very_many_resources() -> None:
    hard = {f"requests.example.com/{name}": "1" for name in NAMES}
    expected = ["spec.hard: Too many: 4000: must have at most 1000 items"]
    assert _problems("", "resourcequotas", {"spec": {"hard": hard}}) == expected


@pytest.mark.parametrize("schedule", [",".join("*" * 4_000) + " * * * *", "@every " + "1s" * 4_000])
def test_a_schedule_that_is_very_long(schedule: str) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}}
    spec = {"schedule": schedule, "jobTemplate": {"spec": {"template": template}}}
    expected = ["spec.schedule: Too long: may not be more than 4096 bytes"]
    assert _problems("batch", "cronjobs", {"spec": spec}) == expected


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
def test_a_pod_with_very_many_terms_of_affinity(kind: str) -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaceSelector": {}}
    affinity = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term] * 101}}
    spec = {"containers": [{"name": "a", "image": "b"}], "affinity": affinity}
    where = f"spec.affinity.{kind}.requiredDuringSchedulingIgnoredDuringExecution"
    assert _problems("", "pods", {"spec": spec}) == [f"{where}: Too many: 101: must have at most 100 items"]


def _selecting(labels: int, expressions: int) -> dict[str, Any]:
    terms = [{"key": "a", "operator": "DoesNotExist"}] * expressions
    return {"spec": {"selector": {"matchLabels": dict.fromkeys(NAMES[:labels], "a"), "matchExpressions": terms}}}


def test_a_budget_with_a_very_long_selector() -> None:
    """Each change of a pod was held against the thousands of conditions of each budget of its namespace."""
    expected = ["spec.selector: Too many: 101: must have at most 100 items"]
    assert _problems("policy", "poddisruptionbudgets", _selecting(50, 51)) == expected
    assert _problems("policy", "poddisruptionbudgets", _selecting(50, 50)) == []
    for new, told in ((200, []), (102, []), (201, ["spec.selector: Too many: 201: must have at most 200 items"])):
        errors = FieldErrors()
        disruption_budgets.validate_update(_selecting(0, new), _selecting(100, 100), errors)
        assert list(map(str, errors.found)) == told


class _Listed(list[str]):
    """A list that may be walked, and not looked through for one item after the other."""

    def __contains__(self, item: object) -> bool:
        raise AssertionError(f"all are looked through for {item!r}")

    def __getitem__(self, index: Any) -> Any:
        assert not isinstance(index, slice), "what comes before each is copied"
        return super().__getitem__(index)


def test_lists_of_a_service_are_walked_once() -> None:
    ips = [f"10.1.{number // 250}.{number % 250}" for number in range(MANY)]
    spec = {
        "type": "ClusterIP",
        "sessionAffinity": "None",
        "ports": [{"port": 80, "targetPort": 80, "protocol": "TCP"}],
    }
    old = {"metadata": {"name": "a"}, "spec": {**spec, "externalIPs": _Listed(ips)}}
    new = {"metadata": {"name": "a"}, "spec": {**spec, "externalIPs": list(reversed(ips))}}
    errors = FieldErrors()
    services.validate_update(new, old, errors)
    assert not [error for error in errors.found if "externalIPs" in error.path]
    errors = FieldErrors()
    service_families.validate({"ipFamilies": _Listed(["IPv4"] * MANY)}, {}, errors)
    assert len(errors.found) == MANY - 1


def test_a_large_status() -> None:
    resource = SERVED.find("", "v1", "nodes")
    assert resource is not None
    given = {"addresses": [{"type": "Hostname", "address": name} for name in NAMES]}
    assert kinds.status_problems(resource, {}, given) == []
