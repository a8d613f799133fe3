"""Cluster roles that aggregate others have their rules written into them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from podkeep.apiserver.auth.default_policy import reconcile
from podkeep.apiserver.auth.interfaces import RequestAttributes
from podkeep.apiserver.auth.rbac import CLUSTER_ROLES, Rbac
from podkeep.apiserver.controllers.controller import Change, Patch
from podkeep.apiserver.controllers.role_aggregation import RoleAggregation
from podkeep.apiserver.storage.records import Event, EventType, Key, Stored
from support.objects import Objects

NOW = datetime(2026, 11, 23, tzinfo=UTC)
RULE = {"verbs": ["get"], "apiGroups": ["x"], "resources": ["y"]}


def role(name: str, *rules: Any, labels: Any = None, selects: str = "", revision: str = "1") -> dict[str, Any]:
    fields = {"name": name, "labels": labels or {}, "resourceVersion": revision, "uid": f"u-{name}"}
    value = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": fields}
    if rules:
        value["rules"] = list(rules)
    if selects:
        value["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {selects: "true"}}]}
    return value


def writes(*roles: Any) -> list[Any]:
    return list(RoleAggregation().reconcile(CLUSTER_ROLES, Objects(*roles), NOW).writes)


PART = role("part", RULE, labels={"a": "true"})


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ([role("all", selects="a"), PART], [("all", [RULE])]),
        ([role("all", RULE, selects="a"), PART], []),
        ([role("all", RULE, selects="a")], [("all", [])]),
        ([role("all", selects="a")], []),
        ([role("all", selects="b"), role("middle", selects="a", labels={"b": "true"}), PART], None),
        ([PART], []),
    ],
)
def test_what_is_written(roles: list[Any], expected: Any) -> None:
    found = writes(*roles)
    assert all(isinstance(write, Patch) and write.resource == CLUSTER_ROLES for write in found)
    wanted = [("all", [RULE]), ("middle", [RULE])] if expected is None else expected
    assert [(write.name, write.patch["rules"]) for write in found] == wanted


def test_a_write_is_for_the_revision_that_was_read() -> None:
    (write,) = writes(role("all", selects="a", revision="7"), PART)
    assert write.patch["metadata"] == {"resourceVersion": "7", "uid": "u-all"}


def test_any_change_is_looked_at_as_one_thing() -> None:
    stored = Stored(Key(CLUSTER_ROLES, "", "part"), 1, msgspec.json.encode(PART))
    change = Change(Event(EventType.MODIFIED, stored, None), NOW)
    assert list(RoleAggregation().observe(change)) == [CLUSTER_ROLES]
    assert RoleAggregation().resources == {CLUSTER_ROLES}


def test_its_user_may_write_rules_that_it_does_not_have() -> None:
    objects = Objects()
    for change in reconcile(objects):
        objects.put(change.value)
    rbac = Rbac(objects)
    for verb in ("escalate", "patch"):
        asked = RequestAttributes(verb=verb, group="rbac.authorization.k8s.io", resource="clusterroles", name="view")
        assert rbac.authorize(RoleAggregation.user, asked).allowed
