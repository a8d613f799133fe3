"""Rules of roles: what they allow, and what they cover."""

from __future__ import annotations

import itertools
import random
import sys
from types import FrameType
from typing import Any

import pytest

from podkeep.apiserver.auth import rules
from podkeep.apiserver.auth.interfaces import RequestAttributes
from podkeep.apiserver.auth.rules import Part, Rule, TooManyParts, compact, uncovered
from podkeep.base.text.printable import quote


def can(verbs: str, resources: str, groups: str = "", names: str = "") -> dict[str, Any]:
    value = {"verbs": verbs.split(","), "apiGroups": groups.split(","), "resources": resources.split(",")}
    return value | ({"resourceNames": names.split(",")} if names else {})


def url(verbs: str, *paths: str) -> dict[str, Any]:
    return {"verbs": verbs.split(","), "nonResourceURLs": list(paths)}


def asks(verb: str, resource: str, group: str = "", name: str = "") -> RequestAttributes:
    plain, _, subresource = resource.partition("/")
    return RequestAttributes(verb=verb, resource=plain, subresource=subresource, group=group, name=name)


def path(verb: str, text: str) -> RequestAttributes:
    return RequestAttributes(verb=verb, resource_request=False, path=text)


@pytest.mark.parametrize(
    ("value", "asked", "allowed"),
    [
        (can("get", "pods"), asks("get", "pods"), True),
        (can("get", "pods"), asks("list", "pods"), False),
        (can("get", "pods"), asks("get", "pods", "metrics.k8s.io"), False),
        (can("get", "pods"), asks("get", "pods/log"), False),
        (can("get", "pods/log"), asks("get", "pods/log"), True),
        (can("get", "pods/log"), asks("get", "pods"), False),
        (can("get", "*/log"), asks("get", "pods/log"), True),
        (can("get", "*/log"), asks("get", "pods/exec"), False),
        (can("get", "*/"), asks("get", "pods"), False),
        (can("*", "*", "*"), asks("get", "pods/log", "x"), True),
        (can("*", "*", "*"), path("get", "/healthz"), False),
        (can("get", "pods", "", "a,b"), asks("get", "pods", name="b"), True),
        (can("get", "pods", "", "a,b"), asks("get", "pods", name="c"), False),
        (can("list", "pods", "", "a,b"), asks("list", "pods"), False),
        (url("get", "/healthz"), path("get", "/healthz"), True),
        (url("get", "/healthz"), path("get", "/healthz/ping"), False),
        (url("get", "/healthz/*"), path("get", "/healthz/ping"), True),
        (url("get", "/healthz*"), path("get", "/healthz"), True),
        (url("get", "*"), path("get", "/any"), True),
        (url("get", "*"), path("post", "/any"), False),
        (url("*", "*"), asks("get", "pods"), False),
        ({"verbs": ["get"]}, asks("get", "pods"), False),
        ({}, asks("get", "pods"), False),
    ],
)
def test_a_rule_allows_what_it_names(value: dict[str, Any], asked: RequestAttributes, allowed: bool) -> None:
    assert Rule(value).allows(asked) is allowed


@pytest.mark.parametrize(
    ("owned", "wanted", "missing"),
    [
        ([can("get", "pods")], can("get", "pods"), []),
        ([can("get", "pods")], can("get,list", "pods"), [Part("list", "", "pods")]),
        ([can("get", "pods"), can("list", "pods")], can("get,list", "pods"), []),
        ([can("*", "pods")], can("*", "pods"), []),
        ([can("get", "pods")], can("*", "pods"), [Part("*", "", "pods")]),
        ([can("get", "*")], can("get", "*"), []),
        ([can("get", "pods")], can("get", "*"), [Part("get", "", "*")]),
        ([can("get", "*/scale")], can("get", "deployments/scale"), []),
        ([can("get", "*/scale")], can("get", "deployments"), [Part("get", "", "deployments")]),
        ([can("get", "pods")], can("get", "pods", names="a"), []),
        ([can("get", "pods", names="a")], can("get", "pods", names="a"), []),
        ([can("get", "pods", names="a")], can("get", "pods", names="a,b"), [Part("get", "", "pods", "b")]),
        ([can("get", "pods", names="a")], can("get", "pods"), [Part("get", "", "pods")]),
        # A rule for an object without a name is none for all of them.
        ([can("get", "pods") | {"resourceNames": [""]}], can("get", "pods"), [Part("get", "", "pods")]),
        ([url("get", "/a/*")], url("get", "/a/b"), []),
        ([url("get", "/a/*")], url("get", "/a/*"), []),
        ([url("get", "/a/b")], url("get", "/a/*"), [Part("get", url="/a/*")]),
        ([can("*", "*", "*")], url("get", "/a"), [Part("get", url="/a")]),
        ([], can("get", "pods"), [Part("get", "", "pods")]),
        ([], {"verbs": []}, []),
    ],
)
def test_what_rules_do_not_cover_is_found(owned: list[dict[str, Any]], wanted: Any, missing: list[Part]) -> None:
    assert uncovered(map(Rule, owned), [wanted]) == missing


def test_rules_that_come_apart_into_too_many_are_not_compared() -> None:
    names = [str(number) for number in range(5_000)]
    hostile = {"verbs": names, "apiGroups": names, "resources": names, "resourceNames": names}
    with pytest.raises(TooManyParts):
        uncovered([Rule(can("*", "*", "*"))], [hostile])
    assert rules.MAX_PARTS == 5_000


def test_missing_rights_are_listed_as_kube_apiserver_does() -> None:
    missing = [
        Part("get", "apps", "deployments"),
        Part("list", "apps", "deployments"),
        Part("get", "", "pods", "a"),
        Part("get", url="/x"),
    ]
    assert compact(missing) == [
        '{APIGroups:[""], Resources:["pods"], ResourceNames:["a"], Verbs:["get"]}',
        '{APIGroups:["apps"], Resources:["deployments"], Verbs:["get" "list"]}',
        '{NonResourceURLs:["/x"], Verbs:["get"]}',
    ]


def test_long_texts_of_missing_rights_are_not_listed_with_each() -> None:
    """A role of 3 MB, nearly all of it the name of one resource, was told as 5,000 parts with that name: in 15 GB."""
    long = "x" * 100_000
    missing = [Part(long, long, long, f"name-{number}") for number in range(50)] + [Part("get", url=f"/{long}")]
    listed = compact(missing)
    assert len(listed) == 51
    assert sum(map(len, listed)) < 60_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b", '"a b"'),
        ('a"\\', '"a\\"\\\\"'),
        ("a\n\x00\x1b", '"a\\n\\x00\\x1b"'),
        ("\u202eü", '"\\u202eü"'),
        ("\U000e0001", '"\\U000e0001"'),
    ],
)
def test_texts_are_quoted_as_go_does(text: str, shown: str) -> None:
    assert quote(text) == shown


@pytest.mark.slow
@pytest.mark.parametrize("names", [1, 16, 17])
def test_many_parts_are_not_compared_with_many_rules_that_the_writer_has(names: int) -> None:
    """Whoever has 5,000 short rules kept the API busy for a second with each small binding to 5,000 others."""
    pods = [",".join(f"pod-{number}-{name}" for name in range(names)) for number in range(3_000)]
    owned = [Rule(can("get", "pods", names=text)) for text in pods]
    compared = itertools.count()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is Rule.covers.__code__:
            next(compared)

    few, many = (can("get", "secrets", names=",".join(f"s-{i}" for i in range(length))) for length in (10, 4_999))
    assert len(uncovered(owned, [few])) == 10
    sys.setprofile(count)
    try:
        if names > 16:
            with pytest.raises(TooManyParts):
                uncovered(owned, [many])
        else:
            assert len(uncovered(owned, [many])) == 4_999
    finally:
        sys.setprofile(None)
    assert next(compared) <= rules.MAX_COMPARISONS + len(owned)


def test_many_urls_are_not_compared_with_many() -> None:
    owned = [Rule(url("get", *(f"/own/{number}" for number in range(9_000))))]
    with pytest.raises(TooManyParts):
        uncovered(owned, [url("get", *(f"/{number}" for number in range(4_000)))])
    assert len(uncovered(owned, [url("get", "/a", "/b")])) == 2


@pytest.mark.slow
def test_what_is_looked_up_is_what_rules_cover() -> None:
    choose = random.Random(5)

    def rule() -> dict[str, Any]:
        fields = {
            "verbs": ["get", "list", "*"],
            "apiGroups": ["", "apps", "*"],
            "resources": ["pods", "pods/log", "*", "*/log"],
            "resourceNames": ["a", "b", "", *map(str, range(20))],
            "nonResourceURLs": ["/a", "/a/*", "*", "/b"],
        }
        value = {field: choose.sample(texts, choose.randint(1, len(texts))) for field, texts in fields.items()}
        for field in ("resourceNames", "nonResourceURLs", "resources"):
            if choose.random() < 0.5:
                del value[field]
        return value

    for _ in range(300):
        owned, wanted = [Rule(rule()) for _ in range(choose.randint(0, 4))], rule()
        left = [part for part in rules.parts(wanted) if not any(rule.covers(part) for rule in owned)]
        assert uncovered(owned, [wanted]) == left
