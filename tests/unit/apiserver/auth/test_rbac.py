"""RBAC: who has which rules, from bindings and roles that change."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest

from podkeep.apiserver.auth.interfaces import Decision, RequestAttributes
from podkeep.apiserver.auth.rbac import MAX_BYTES, MAX_GRANTS, MAX_SUBJECTS, Rbac, RoleRef, aggregated_rules
from podkeep.apiserver.auth.refusals import forbidden
from podkeep.apiserver.auth.union import AnyAuthorizer
from podkeep.apiserver.auth.user import User
from podkeep.apiserver.meta.status import StatusError
from support.objects import Objects

GROUP = "rbac.authorization.k8s.io"
READ_PODS = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
READ_SECRETS = {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}
ANN = User(name="ann", groups=("dev", "system:authenticated"))
SA = User(name="system:serviceaccount:ns1:robot")


def role(name: str, *rules: Any, namespace: str = "", **more: Any) -> dict[str, Any]:
    labels = more.pop("labels", {})
    fields = {"name": name, "labels": labels} | ({"namespace": namespace} if namespace else {})
    kind = "Role" if namespace else "ClusterRole"
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": fields, "rules": list(rules), **more}


def binding(name: str, ref: str, *subjects: Any, namespace: str = "") -> dict[str, Any]:
    kind, role_name = ref.split("/")
    fields = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": fields,
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role_name},
        "subjects": list(subjects),
    }


def user(name: str) -> dict[str, str]:
    return {"kind": "User", "name": name, "apiGroup": GROUP}


def group(name: str) -> dict[str, str]:
    return {"kind": "Group", "name": name, "apiGroup": GROUP}


def account(name: str, namespace: str = "") -> dict[str, str]:
    return {"kind": "ServiceAccount", "name": name} | ({"namespace": namespace} if namespace else {})


def get(resource: str = "pods", namespace: str = "", **more: str) -> RequestAttributes:
    return RequestAttributes(verb="get", resource=resource, namespace=namespace, **more)


POLICY = (
    role("reader", READ_PODS),
    role("local", READ_SECRETS, namespace="ns1"),
)


@pytest.mark.parametrize(
    ("bound", "who", "asked", "decision"),
    [
        (
            binding("b", "ClusterRole/reader", user("eve"), user("ann")),
            ANN,
            get(),
            Decision(True, 'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to User "ann"'),
        ),
        (
            binding("b", "ClusterRole/reader", group("dev"), user("ann")),
            ANN,
            get(namespace="ns2"),
            Decision(True, 'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to Group "dev"'),
        ),
        (
            binding("b", "ClusterRole/reader", account("robot", "ns1")),
            SA,
            get(),
            Decision(
                True, 'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to ServiceAccount "robot/ns1"'
            ),
        ),
        (binding("b", "ClusterRole/reader", account("robot")), SA, get(), Decision(False)),
        (
            binding("b", "ClusterRole/reader", account("robot"), namespace="ns1"),
            SA,
            get(namespace="ns1"),
            Decision(
                True, 'RBAC: allowed by RoleBinding "b/ns1" of ClusterRole "reader" to ServiceAccount "robot/ns1"'
            ),
        ),
        (binding("b", "ClusterRole/reader", user("ann"), namespace="ns1"), ANN, get(namespace="ns2"), Decision(False)),
        (binding("b", "ClusterRole/reader", user("ann"), namespace="ns1"), ANN, get(), Decision(False)),
        (
            binding("b", "Role/local", user("ann"), namespace="ns1"),
            ANN,
            get("secrets", "ns1"),
            Decision(True, 'RBAC: allowed by RoleBinding "b/ns1" of Role "local" to User "ann"'),
        ),
        (
            binding("b", "Role/local", user("ann"), namespace="ns2"),
            ANN,
            get("secrets", "ns2"),
            Decision(False, 'RBAC: role.rbac.authorization.k8s.io "local" not found'),
        ),
        (
            binding("b", "ClusterRole/gone", user("ann")),
            ANN,
            get(),
            Decision(False, 'RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found'),
        ),
        (
            binding("b", "Role/local", user("ann")),
            ANN,
            get("secrets", "ns1"),
            Decision(False, 'RBAC: role.rbac.authorization.k8s.io "local" not found'),
        ),
        (
            binding("b", "Other/local", user("ann")),
            ANN,
            get(),
            Decision(False, 'RBAC: unsupported role reference kind: "Other"'),
        ),
        (binding("b", "ClusterRole/reader", {"kind": "Node", "name": "ann"}), ANN, get(), Decision(False)),
        (binding("b", "ClusterRole/reader", user("dev")), ANN, get(), Decision(False)),
        (binding("b", "ClusterRole/reader"), ANN, get(), Decision(False)),
    ],
)
def test_bindings_give_rules(bound: Any, who: User, asked: RequestAttributes, decision: Decision) -> None:
    assert Rbac(Objects(*POLICY, bound)).authorize(who, asked) == decision


def test_several_missing_roles_are_listed_once_each() -> None:
    bindings = [binding(f"b{number}", f"ClusterRole/gone{number // 2}", user("ann")) for number in range(4)]
    reason = Rbac(Objects(*bindings)).authorize(ANN, get()).reason
    missing = [f'clusterrole.rbac.authorization.k8s.io "gone{number}" not found' for number in range(2)]
    assert reason == f"RBAC: [{', '.join(missing)}]"


class Counted(Objects):
    """Objects that count how often one of them is looked up."""

    looked = 0

    def get(self, resource: str, namespace: str, name: str) -> Any:
        self.looked += 1
        return super().get(resource, namespace, name)


def test_roles_that_are_not_there_are_looked_up_once_and_told_up_to_a_bound() -> None:
    """A user with many of them was not kept: each request looked for all of them, and told all."""
    bindings = [binding(f"b{number}", f"ClusterRole/{number}{'x' * 400}", user("ann")) for number in range(100)]
    objects = Counted(*bindings)
    rbac = Rbac(objects)
    reason = rbac.authorize(ANN, get()).reason
    assert reason.startswith('RBAC: [clusterrole.rbac.authorization.k8s.io "0x')
    assert len(reason) < 4_096
    looked = objects.looked
    assert rbac.authorize(ANN, get()).reason == reason
    assert objects.looked == looked


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_is_written_counts_at_once(forgotten: bool) -> None:
    objects = Objects(*POLICY)
    rbac = Rbac(objects)

    def step(work: Any) -> bool:
        work()
        if forgotten:
            objects.forget()
        return rbac.authorize(ANN, get()).allowed

    bound = binding("b", "ClusterRole/reader", user("ann"))
    assert [
        step(lambda: None),
        step(lambda: objects.put(bound)),
        step(lambda: objects.put(role("reader"))),
        step(lambda: objects.put(role("reader", READ_PODS))),
        step(lambda: objects.put(binding("b", "ClusterRole/reader", user("eve")))),
        step(lambda: objects.put(bound)),
        step(lambda: objects.delete(bound)),
        step(lambda: objects.put(bound)),
        step(lambda: objects.delete(role("reader"))),
        step(lambda: objects.put(role("reader", READ_PODS))),
    ] == [False, True, False, True, False, True, False, True, False, True]


def test_a_role_has_the_rules_of_those_it_aggregates_at_once() -> None:
    def selects(label: str) -> dict[str, Any]:
        return {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}}

    top = role("top", {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, **selects("to-top"))
    middle = role("middle", labels={"to-top": "true"}, **selects("to-middle"))
    low = role("low", READ_PODS, labels={"to-middle": "true"})
    again = role("again", READ_PODS, labels={"to-top": "true", "to-middle": "true"})
    ring = role("ring", labels={"to-middle": "true"}, **selects("to-top"))
    assert aggregated_rules(top, [top, middle, low, again, ring]) == [READ_PODS]
    objects = Objects(top, middle, ring, binding("b", "ClusterRole/top", user("ann")))
    rbac = Rbac(objects)
    assert not rbac.authorize(ANN, get()).allowed
    objects.put(low)
    assert rbac.authorize(ANN, get()).allowed
    assert not rbac.authorize(ANN, get("secrets")).allowed


def test_rules_of_a_user_are_those_of_the_namespace_and_of_everywhere() -> None:
    objects = Objects(
        *POLICY,
        binding("b", "ClusterRole/reader", user("ann")),
        binding("b", "Role/local", user("ann"), namespace="ns1"),
        binding("c", "ClusterRole/gone", user("ann"), namespace="ns1"),
    )
    rules, errors = Rbac(objects).rules_for(ANN, "ns1")
    assert [rule.value for rule in rules] == [READ_PODS, READ_SECRETS]
    assert errors == 'clusterrole.rbac.authorization.k8s.io "gone" not found'
    assert [rule.value for rule in Rbac(objects).rules_for(ANN, "")[0]] == [READ_PODS]


def test_a_role_that_is_bound_again_and_again_is_one_role() -> None:
    """Its rules were listed, and held against each request, once for each binding."""
    bindings = [binding(f"b{number}", "Role/local", user("ann"), namespace="ns1") for number in range(20)]
    rbac = Rbac(Objects(*POLICY, *reversed(bindings)))
    assert [rule.value for rule in rbac.rules_for(ANN, "ns1")[0]] == [READ_SECRETS]
    decision = rbac.authorize(ANN, get("secrets", "ns1"))
    assert (decision.allowed, decision.reason) == (
        True,
        'RBAC: allowed by RoleBinding "b0/ns1" of Role "local" to User "ann"',
    )


def test_bindings_with_long_names_are_kept_once() -> None:
    """Each subject had a text with the names of the binding and its role: 1 MB in the store was gigabytes in memory."""
    name = "r" * 100_000
    users = [user(f"u{number}") for number in range(1_000)]
    objects = Objects(role(name, READ_PODS, namespace="ns1"), binding("b", f"Role/{name}", *users, namespace="ns1"))
    tracemalloc.start()
    try:
        rbac = Rbac(objects)
        assert rbac.authorize(User(name="u7"), get("pods", "ns1")).allowed
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def large_role(name: str, bytes_: int) -> dict[str, Any]:
    one = {"verbs": ["get"], "apiGroups": ["x" * 1_000], "resources": ["r"]}
    return role(name, *[one] * (bytes_ // len(msgspec.json.encode(one))), namespace="ns1")


def test_rules_without_end_do_not_count() -> None:
    """Each request of theirs was held against all of them, and they were kept for ever."""
    roles = [large_role(f"r{number}", MAX_BYTES // 3 - 1_000) for number in range(4)]
    name = "b" * 100_000
    bindings = [binding(f"{name}{number}", f"Role/r{number}", user("bob"), namespace="ns1") for number in range(4)]
    own = role("own", READ_SECRETS), binding("own", "ClusterRole/own", user("bob"))
    last = role("z", READ_PODS, namespace="ns1"), binding("z", "Role/z", user("bob"), namespace="ns1")
    rbac = Rbac(Objects(*roles, *bindings, *own, *last))
    bob = User(name="bob")
    found, problem = rbac.rules_for(bob, "ns1")
    assert len(found) == 1 + 3 * len(roles[0]["rules"])
    assert problem.startswith(f'more than {MAX_BYTES} bytes of rules; those of RoleBinding "bbb')
    assert len(problem) < 2_000
    assert rbac.authorize(bob, get("secrets", "ns1")).allowed  # what counts everywhere has its own bound
    assert not rbac.authorize(bob, get("pods", "ns1")).allowed


def test_subjects_without_end_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has room in a namespace was gigabytes in the index."""
    monkeypatch.setattr("podkeep.apiserver.auth.rbac.MAX_SUBJECTS", 10)

    def bound(name: str, count: int, size: int = 2, namespace: str = "ns1") -> dict[str, Any]:
        users = (user(f"{name}{number}".ljust(size, "x")) for number in range(count))
        return binding(name, "ClusterRole/reader", *users, namespace=namespace)

    objects = Objects(role("reader", READ_PODS), bound("a", 6), bound("b", 5), bound("c", 4), bound("l", 1, 512, "ns2"))
    rbac = Rbac(objects)

    def allowed(namespace: str = "ns1") -> str:
        names = {"a0": "a", "b0": "b", "c0": "c", "l0".ljust(512, "x"): "l"}
        return "".join(
            short for name, short in names.items() if rbac.authorize(User(name=name), get("pods", namespace)).allowed
        )

    assert (allowed(), allowed("ns2")) == ("ac", "l")
    assert (rbac.room_of("ns1", "new"), rbac.room_of("ns1", "a"), rbac.room_of("ns2", "l")) == (0, 6, 10)
    assert rbac.room_of("ns2", "new") == 8  # a long name counts as two
    refused = rbac.authorize(User(name="b0"), get("pods", "ns1"))
    assert refused.reason == (
        "RBAC: 1 bindings of the namespace do not count: they have more than 10 subjects together with the others"
    )
    objects.put(bound("c", 5))
    assert allowed() == "a"
    objects.delete(bound("a", 6))
    assert allowed() == "bc"
    assert "do not count" not in rbac.authorize(User(name="z"), get("pods", "ns1")).reason
    # Of the whole cluster: only who may do everything makes them.
    objects.put(binding("all", "ClusterRole/reader", *(user(f"u{number}") for number in range(20))))
    assert rbac.authorize(User(name="u19"), get("pods")).allowed


def test_an_index_of_many_subjects_is_bounded() -> None:
    count = MAX_SUBJECTS // 10
    bindings = [
        binding(f"b{name:02}", "Role/r", *(account(f"a{name}-{number}") for number in range(count)), namespace="ns1")
        for name in range(13)
    ]
    rbac = Rbac(Objects(role("r", READ_PODS, namespace="ns1"), *bindings))
    tracemalloc.start()
    try:
        assert rbac.authorize(User(name="system:serviceaccount:ns1:a9-0"), get("pods", "ns1")).allowed
        assert not rbac.authorize(User(name="system:serviceaccount:ns1:a12-0"), get("pods", "ns1")).allowed
        assert tracemalloc.get_traced_memory()[1] < 64_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_bindings_without_end_do_not_count() -> None:
    """A review may name thousands of groups, and each of them had all of its bindings looked at."""
    groups = tuple(f"g{number}" for number in range(1_000))
    subjects = [{"kind": "Group", "name": name} for name in groups]
    bindings = [binding(f"b{number:02}", "Role/r", *subjects, namespace="ns1") for number in range(30)]
    late = binding("late", "Role/late", subjects[-1], namespace="ns1")
    roles = role("r", READ_SECRETS, namespace="ns1"), role("late", READ_PODS, namespace="ns1")
    rbac = Rbac(Objects(*roles, *bindings, late))
    who = User(name="x", groups=groups)
    assert rbac.authorize(who, get("secrets", "ns1")).allowed
    refused = rbac.authorize(who, get("pods", "ns1"))
    assert (refused.allowed, refused.reason) == (
        False,
        f"RBAC: more than {MAX_GRANTS} bindings to the user and their groups; others do not count",
    )
    assert rbac.authorize(User(name="x", groups=groups[-1:]), get("pods", "ns1")).allowed


@pytest.mark.parametrize("size", [MAX_BYTES * 9 // 10, 1 << 20])
def test_users_with_many_rules_do_not_push_each_other_out(size: int) -> None:
    """Those of five users were more than was kept: each request of each of them took half a second anew."""
    users = [f"u{number}" for number in range(8)]
    objects = Counted(
        *(large_role(name, size) for name in users),
        *(binding(name, f"Role/{name}", user(name), namespace="ns1") for name in users),
    )
    rbac = Rbac(objects)
    for _ in range(3):
        for name in users:
            assert not rbac.authorize(User(name=name), get("pods", "ns1")).allowed
    assert objects.looked == len(users)


def test_a_role_that_is_not_there_has_no_rules() -> None:
    rbac = Rbac(Objects(*POLICY))
    assert [rule.value for rule in rbac.role_rules(RoleRef("Role", "ns1", "local"))] == [READ_SECRETS]
    for ref in (RoleRef("Role", "ns2", "local"), RoleRef("Role", "", "local"), RoleRef("ClusterRole", "", "local")):
        with pytest.raises(StatusError, match="not found"):
            rbac.role_rules(ref)


def test_many_users_do_not_fill_the_memory() -> None:
    rbac = Rbac(Objects(*POLICY))
    for number in range(2_500):
        rbac.authorize(User(name=f"u{number}"), get())
    assert len(rbac._index.current().users) <= 1_000
    for number in range(10):
        many = tuple(f"g{number}-{group}" for group in range(1_000))
        assert not rbac.authorize(User(name="ann", groups=many), get()).allowed
        assert not rbac.authorize(User(name=f"{number}" * 100_000), get()).allowed
    assert sum(len(user) + sum(map(len, groups)) for user, groups, _ in rbac._index.current().users) < 100_000


class Fixed:
    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    def authorize(self, user: User, attributes: RequestAttributes) -> Decision:
        return self.decision


YES, NO, PASS, WHY = (
    Decision(True, "yes"),
    Decision(False, "no", denied=True),
    Decision(False),
    Decision(False, "why"),
)


@pytest.mark.parametrize(
    ("decisions", "result"),
    [
        ([PASS, YES], YES),
        ([NO, YES], NO),
        ([YES, NO], YES),
        ([WHY, PASS, WHY], Decision(False, "why\nwhy")),
        ([], PASS),
    ],
)
def test_the_first_opinion_counts(decisions: list[Decision], result: Decision) -> None:
    assert AnyAuthorizer([Fixed(decision) for decision in decisions]).authorize(ANN, get()) == result


@pytest.mark.parametrize(
    ("asked", "reason", "message"),
    [
        (
            get(namespace="default", name="web"),
            "",
            'pods "web" is forbidden: User "ann" cannot get resource "pods" in API group "" in the namespace "default"',
        ),
        (
            RequestAttributes(verb="list", resource="deployments", group="apps"),
            "",
            'deployments.apps is forbidden: User "ann" cannot list resource "deployments" in API group "apps" at the'
            " cluster scope",
        ),
        (
            RequestAttributes(verb="create", resource="pods", subresource="exec", namespace="x", name="web"),
            "why",
            'pods "web" is forbidden: User "ann" cannot create resource "pods/exec" in API group "" in the namespace'
            ' "x": why',
        ),
        (
            RequestAttributes(verb="get", resource_request=False, path="/<b>&"),
            "",
            'forbidden: User "ann" cannot get path "/&lt;b&gt;&amp;"',
        ),
    ],
)
def test_refusals_say_what_kube_apiserver_says(asked: RequestAttributes, reason: str, message: str) -> None:
    error = forbidden(ANN, asked, reason)
    assert (error.code, error.reason, error.message) == (403, "Forbidden", message)
