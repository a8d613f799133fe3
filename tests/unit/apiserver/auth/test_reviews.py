"""Reviews: questions about users, and what is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from podkeep.apiserver.auth import reviews
from podkeep.apiserver.auth.interfaces import Decision, RequestAttributes
from podkeep.apiserver.auth.jwt import InvalidToken
from podkeep.apiserver.auth.rules import Rule
from podkeep.apiserver.auth.tokens import TokenUser
from podkeep.apiserver.auth.user import User

ANN = User(name="ann", uid="1", groups=("dev",), extra={"a": ("b", "c")})
INFO = {"username": "ann", "uid": "1", "groups": ["dev"], "extra": {"a": ["b", "c"]}}


class Noted:
    """Notes what it is asked, and allows it or not."""

    def __init__(self, decision: Decision = Decision(True, "why")) -> None:  # noqa: B008 - it is frozen
        self.decision = decision
        self.asked: list[tuple[User, RequestAttributes]] = []

    def authorize(self, user: User, attributes: RequestAttributes) -> Decision:
        self.asked.append((user, attributes))
        return self.decision


class Tokens:
    def review(self, token: str, audiences: Sequence[str] | None = None) -> TokenUser:
        if token != "good":
            raise InvalidToken("invalid bearer token")
        return TokenUser(ANN, tuple(audiences or ("api",)))


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"token": "good"}, {"authenticated": True, "user": INFO, "audiences": ["api"]}),
        ({"token": "good", "audiences": ["x"]}, {"authenticated": True, "user": INFO, "audiences": ["x"]}),
        ({"token": "bad"}, {"user": {}, "error": "invalid bearer token"}),
    ],
)
def test_whose_a_token_is(spec: dict[str, Any], status: dict[str, Any]) -> None:
    assert reviews.token_review({"kind": "TokenReview", "spec": spec}, Tokens())["status"] == status


def test_who_asks() -> None:
    now = "2026-11-23T06:00:00Z"
    assert reviews.self_subject_review({}, ANN, now) == {
        "metadata": {"creationTimestamp": now},
        "status": {"userInfo": INFO},
    }


def asked(spec: dict[str, Any]) -> tuple[dict[str, Any], User, RequestAttributes]:
    noted = Noted()
    value = {"kind": "SubjectAccessReview", "spec": {"user": "ann", **spec}}
    answer = reviews.subject_access_review(value, noted)
    ((user, attributes),) = noted.asked
    status: dict[str, Any] = answer["status"]
    return status, user, attributes


def resource(**more: Any) -> dict[str, Any]:
    return {"resourceAttributes": {"verb": "list", "resource": "pods", **more}}


def selects(kind: str, *requirements: tuple[str, ...], raw: str = "") -> dict[str, Any]:
    listed = [{"key": key, "operator": operator, "values": list(values)} for key, operator, *values in requirements]
    selector: dict[str, Any] = {"rawSelector": raw} if raw else {"requirements": listed}
    return resource(**{kind: selector})


FIELD, LABEL = "fieldSelector", "labelSelector"
IGNORED = "spec.resourceAttributes.{} ignored due to parse error"
PARTLY = "spec.resourceAttributes.{} partially ignored due to parse error"


@pytest.mark.parametrize(
    ("spec", "field", "label", "problem"),
    [
        (resource(), "", "", None),
        (selects(FIELD, raw="a=b"), "a=b", "", None),
        (selects(FIELD, raw="a"), "", "", IGNORED.format(FIELD)),
        (selects(FIELD, ("a", "In", "b"), ("c", "NotIn", "d")), "a=b,c!=d", "", None),
        (selects(FIELD, ("a", "In", "b,c=d\\")), "a=b\\,c\\=d\\\\", "", None),
        (selects(FIELD, ("a", "In", "b", "c")), "", "", IGNORED.format(FIELD)),
        (selects(FIELD, ("a", "In", "b"), ("a", "Exists")), "a=b", "", PARTLY.format(FIELD)),
        (selects(FIELD, ("spec.nodeName=n1,x", "In", "y")), "", "", IGNORED.format(FIELD)),
        (selects(LABEL, raw="a in (b)"), "", "a in (b)", None),
        (selects(LABEL, raw="a in"), "", "", IGNORED.format(LABEL)),
        (
            selects(LABEL, ("a", "In", "b", "c"), ("d", "NotIn", "e"), ("f", "Exists"), ("g", "DoesNotExist")),
            "",
            "a in (b,c),d notin (e),f,!g",
            None,
        ),
        (selects(LABEL, ("a", "In", "b"), ("c", "Near", "d")), "", "a in (b)", PARTLY.format(LABEL)),
        (selects(LABEL, ("a),b", "In", "x")), "", "", IGNORED.format(LABEL)),
        (selects(LABEL, ("a", "In", "x),b")), "", "", IGNORED.format(LABEL)),
    ],
)
def test_selectors_are_part_of_the_question(spec: dict[str, Any], field: str, label: str, problem: str | None) -> None:
    status, _, attributes = asked(spec)
    assert (attributes.field_selector, attributes.label_selector) == (field, label)
    assert status.get("evaluationError") == problem


def test_what_is_asked_of_whom() -> None:
    spec = resource(group="apps", resource="deployments", subresource="scale", namespace="ns", name="web")
    status, user, attributes = asked({**spec, "groups": ["g"], "uid": "7", "extra": {"a": ["b"]}})
    assert status == {"allowed": True, "reason": "why"}
    assert user == User(name="ann", uid="7", groups=("g",), extra={"a": ("b",)})
    assert attributes == RequestAttributes(
        verb="list",
        group="apps",
        version="*",
        resource="deployments",
        subresource="scale",
        namespace="ns",
        name="web",
    )
    _, _, attributes = asked({"nonResourceAttributes": {"verb": "get", "path": "/x"}})
    assert attributes == RequestAttributes(verb="get", resource_request=False, path="/x")


@pytest.mark.parametrize(
    ("decision", "status"),
    [
        (Decision(True), {"allowed": True}),
        (Decision(False), {"allowed": False}),
        (Decision(False, "why"), {"allowed": False, "reason": "why"}),
        (Decision(False, "no", denied=True), {"allowed": False, "denied": True, "reason": "no"}),
    ],
)
def test_what_is_answered(decision: Decision, status: dict[str, Any]) -> None:
    noted = Noted(decision)
    answer = reviews.self_subject_access_review({"kind": "X", "spec": resource()}, ANN, noted)
    assert answer["status"] == status
    assert noted.asked[0][0] == ANN


class Resolver:
    def rules_for(self, user: User, namespace: str) -> tuple[list[Rule], str]:
        found = [
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]},
            {"verbs": ["get"], "nonResourceURLs": ["/x"]},
        ]
        return list(map(Rule, found)), "gone" if namespace == "broken" else ""


NODE = User(name="system:node:n1", groups=("system:nodes",))


@pytest.mark.parametrize(
    ("user", "namespace", "incomplete", "problem"),
    [
        (ANN, "ns", False, None),
        (ANN, "broken", False, "gone"),
        (NODE, "ns", True, "node authorizer does not support user rule resolution"),
        (NODE, "broken", True, "gone, node authorizer does not support user rule resolution"),
    ],
)
def test_what_a_user_may_do(user: User, namespace: str, incomplete: bool, problem: str | None) -> None:
    status = reviews.self_subject_rules_review({"spec": {"namespace": namespace}}, user, Resolver())["status"]
    assert status["resourceRules"] == [
        {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}
    ]
    assert status["nonResourceRules"] == [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]
    assert (status["incomplete"], status.get("evaluationError")) == (incomplete, problem)


def test_what_a_user_may_do_is_listed_up_to_a_bound() -> None:
    class Many:
        def rules_for(self, user: User, namespace: str) -> tuple[list[Rule], str]:
            long = ["x" * (reviews.MAX_RULES_BYTES // 4)]
            found = [{"verbs": ["get"], "apiGroups": [""], "resources": long} for _ in range(8)]
            return list(map(Rule, found)), ""

    status = reviews.self_subject_rules_review({"spec": {"namespace": "ns"}}, ANN, Many())["status"]
    assert len(status["resourceRules"]) == 3
    assert (status["incomplete"], status["evaluationError"]) == (True, "only the first 3 of 8 rules are listed")
