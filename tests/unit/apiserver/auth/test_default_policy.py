"""The default roles and bindings: what they allow, and how they come back."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from podkeep.apiserver.auth.default_policy import AUTO_UPDATE, Change, defaults, node_rules, reconcile
from podkeep.apiserver.auth.interfaces import RequestAttributes
from podkeep.apiserver.auth.rbac import Rbac
from podkeep.apiserver.auth.user import User
from podkeep.apiserver.schema.decode import decode
from podkeep.apiserver.schema.table import Kind, kubernetes
from support.objects import Objects

NAMESPACES = [{"kind": "Namespace", "metadata": {"name": name}} for name in ("kube-system", "kube-public")]
AUTHENTICATED = ("system:authenticated",)
ANN = User(name="ann", groups=AUTHENTICATED)


def reconciled(*values: Any) -> Objects:
    objects = Objects(*NAMESPACES, *values)
    for change in reconcile(objects):
        objects.put(change.value)
    return objects


@pytest.fixture(scope="module")
def rbac() -> Rbac:
    return Rbac(reconciled())


@pytest.mark.parametrize(
    ("user", "verb", "resource", "group", "namespace", "allowed"),
    [
        (User(name="root", groups=("system:masters",)), "delete", "nodes", "", "", True),
        (ANN, "get", "pods", "", "default", False),
        (
            User(name="ann", groups=AUTHENTICATED),
            "create",
            "selfsubjectaccessreviews",
            "authorization.k8s.io",
            "",
            True,
        ),
        (ANN, "create", "selfsubjectreviews", "authentication.k8s.io", "", True),
        (User(name="system:kube-scheduler"), "create", "pods/binding", "", "default", True),
        (User(name="system:kube-scheduler"), "get", "secrets", "", "default", False),
        (User(name="system:kube-scheduler"), "update", "leases", "coordination.k8s.io", "kube-system", True),
        (User(name="system:kube-controller-manager"), "create", "serviceaccounts/token", "", "default", True),
        (User(name="system:node:n", groups=("system:nodes",)), "get", "pods", "", "default", False),
        (
            User(name="system:serviceaccount:kube-system:job-controller"),
            "update",
            "jobs/status",
            "batch",
            "default",
            True,
        ),
        (User(name="kube-apiserver-kubelet-client"), "create", "nodes/proxy", "", "", True),
        (User(name="kube-apiserver-kubelet-client"), "get", "secrets", "", "default", False),
    ],
)
def test_the_default_users_may_do_what_they_need(
    rbac: Rbac, user: User, verb: str, resource: str, group: str, namespace: str, allowed: bool
) -> None:
    plain, _, subresource = resource.partition("/")
    asked = RequestAttributes(verb=verb, resource=plain, subresource=subresource, group=group, namespace=namespace)
    assert rbac.authorize(user, asked).allowed is allowed


@pytest.mark.parametrize(
    ("role", "verb", "resource", "allowed"),
    [
        ("view", "get", "pods", True),
        ("view", "get", "secrets", False),
        ("view", "create", "pods", False),
        ("edit", "get", "secrets", True),
        ("edit", "create", "pods", True),
        ("edit", "create", "roles", False),
        ("admin", "create", "roles", True),
        ("admin", "update", "resourcequotas", False),
    ],
)
def test_the_roles_for_people_are_made_of_others(role: str, verb: str, resource: str, allowed: bool) -> None:
    group = "rbac.authorization.k8s.io"
    bound = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "b", "namespace": "default"},
        "roleRef": {"kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "name": "ann"}],
    }
    asked = RequestAttributes(
        verb=verb, resource=resource, group=group if resource == "roles" else "", namespace="default"
    )
    objects = reconciled(bound)
    assert Rbac(objects).authorize(User(name="ann"), asked).allowed is allowed
    # Also who reads the role, and does not ask, sees its rules.
    found = objects.get(f"{group}/clusterroles", "", role)
    assert found is not None
    assert len(found["rules"]) > 5


def test_what_is_there_is_not_written_again() -> None:
    assert list(reconcile(reconciled())) == []


def test_roles_in_namespaces_wait_for_them() -> None:
    changes = list(reconcile(Objects()))
    assert {change.plural for change in changes} == {"clusterroles", "clusterrolebindings"}


def test_every_default_fits_its_type() -> None:
    for values in defaults().values():
        for value in values:
            kind = Kind(*value["apiVersion"].split("/"), value["kind"])
            decoded = decode(copy.deepcopy(value), kubernetes().kind(kind))
            assert (decoded.value, decoded.unknown) == (value, [])
    assert (len(defaults()["clusterroles"]), len(node_rules())) == (70, 25)


def changed(plural: str, name: str, **fields: Any) -> tuple[dict[str, Any], list[Change]]:
    (found,) = (value for value in defaults()[plural] if value["metadata"]["name"] == name)
    value = {**found, **fields}
    value["metadata"] = {**found["metadata"], **fields.get("metadata", {})}
    objects = reconciled()
    objects.put(value)
    return value, list(reconcile(objects))


EXTRA = {"verbs": ["get"], "apiGroups": ["x"], "resources": ["y"]}


def test_missing_rules_come_back_and_others_stay() -> None:
    old, (change,) = changed("clusterroles", "system:kube-dns", rules=[EXTRA])
    assert (change.plural, change.old, change.recreate) == ("clusterroles", old, False)
    assert change.value["rules"][0] == EXTRA
    assert {"apiGroups": [""], "resources": ["services"], "verbs": ["watch"]} in change.value["rules"]


def test_missing_subjects_come_back_and_others_stay() -> None:
    other = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}
    _, (change,) = changed("clusterrolebindings", "cluster-admin", subjects=[other])
    assert [subject["name"] for subject in change.value["subjects"]] == ["ann", "system:masters"]


def test_labels_come_back_and_others_stay() -> None:
    _, (change,) = changed("clusterroles", "cluster-admin", metadata={"labels": {"mine": "1"}})
    assert change.value["metadata"]["labels"] == {"mine": "1", "kubernetes.io/bootstrapping": "rbac-defaults"}


def test_a_binding_to_another_role_is_made_anew() -> None:
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    old, (change,) = changed("clusterrolebindings", "cluster-admin", roleRef=ref)
    assert (change.recreate, change.old) == (True, old)
    assert change.value["roleRef"]["name"] == "cluster-admin"


def test_selectors_of_aggregation_come_back() -> None:
    _, changes = changed("clusterroles", "view", aggregationRule={"clusterRoleSelectors": []})
    assert changes[0].value["aggregationRule"]["clusterRoleSelectors"] == [
        {"matchLabels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}
    ]


def test_an_annotation_keeps_a_role_as_it_is() -> None:
    _, changes = changed("clusterroles", "system:kube-dns", rules=[], metadata={"annotations": {AUTO_UPDATE: "false"}})
    assert changes == []
