"""Objects as large as a body may be: what is looked at grows with them, and not with their square."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.apiserver.kinds.served import Served
from support import kinds

SERVED = Served()
MANY = 4_000
NAMES = [f"n{number}" for number in range(MANY)]


@pytest.mark.parametrize(
    ("group", "plural", "value", "found"),
    [
        ("", "nodes", {"status": {"podClassResources": [{"name": "a", "classes": NAMES * 2}]}}, MANY),
        ("", "nodes", {"spec": {"taints": [{"key": name, "effect": "NoExecute"} for name in NAMES]}}, 0),
        ("", "resourcequotas", {"spec": {"scopes": NAMES, "hard": dict.fromkeys(NAMES, "1")}}, 2 * MANY + 1),
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


def test_a_large_status() -> None:
    resource = SERVED.find("", "v1", "nodes")
    assert resource is not None
    given = {"addresses": [{"type": "Hostname", "address": name} for name in NAMES]}
    assert kinds.status_problems(resource, {}, given) == []
