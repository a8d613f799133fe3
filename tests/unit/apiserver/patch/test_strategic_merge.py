from __future__ import annotations

from typing import Any

import pytest

from podkeep.apiserver.patch import strategic_merge
from podkeep.apiserver.patch.errors import PatchError
from podkeep.apiserver.patch.values import copy
from podkeep.apiserver.schema.table import Kind, kubernetes

POD = kubernetes().kind(Kind("", "v1", "Pod"))
DEPLOYMENT = kubernetes().kind(Kind("apps", "v1", "Deployment"))


def containers(*names: str, **fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": name, **fields} for name in names]}}


def names(value: dict[str, Any]) -> list[str]:
    return [item["name"] for item in value["spec"]["containers"]]


@pytest.mark.parametrize(
    ("value", "patch", "merged"),
    [
        pytest.param(
            {"metadata": {"labels": {"a": "1", "b": "2"}}},
            {"metadata": {"labels": {"b": None, "c": "3"}}},
            {"metadata": {"labels": {"a": "1", "c": "3"}}},
            id="maps are merged, null removes",
        ),
        pytest.param(
            {"metadata": {}},
            {"metadata": {"labels": {"a": "1", "b": None}}},
            {"metadata": {"labels": {"a": "1"}}},
            id="null in what is new is not kept",
        ),
        pytest.param(
            containers("a", "b", image="1"),
            {"spec": {"containers": [{"name": "b", "image": "2"}]}},
            {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}},
            id="lists with a merge key are merged by it",
        ),
        pytest.param(
            containers("a"),
            {"spec": {"containers": [{"name": "b", "image": None, "env": [{"name": "X", "value": None}]}]}},
            {"spec": {"containers": [{"name": "b", "env": [{"name": "X"}]}, {"name": "a"}]}},
            id="an item of the patch that is new comes first",
        ),
        pytest.param(
            containers("a", "b"),
            {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}},
            containers("b"),
            id="an item is deleted",
        ),
        pytest.param(
            containers("a", "b"),
            {"spec": {"containers": [{"$patch": "replace"}, {"name": "c"}]}},
            containers("c"),
            id="a list is replaced",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "a", "args": ["1", "2"]}]}},
            {"spec": {"containers": [{"name": "a", "args": ["3"]}]}},
            {"spec": {"containers": [{"name": "a", "args": ["3"]}]}},
            id="a list without a strategy is replaced",
        ),
        pytest.param(
            {"metadata": {"finalizers": ["a", "b"]}},
            {"metadata": {"finalizers": ["c", "a"]}},
            {"metadata": {"finalizers": ["c", "a", "b"]}},
            id="scalars are merged, those of the patch in its order",
        ),
        pytest.param(
            {"metadata": {"finalizers": ["a", "b", "c"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["b", "x"]}},
            {"metadata": {"finalizers": ["a", "c"]}},
            id="scalars are deleted from a list",
        ),
        pytest.param(
            {"metadata": {}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"]}},
            {"metadata": {}},
            id="scalars are deleted from a list that is not there",
        ),
        pytest.param(
            containers("a", "b", "c"),
            {"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}]}},
            containers("b", "c", "a"),
            id="an order by itself",
        ),
        pytest.param(
            containers("a", "server", "b"),
            {
                "spec": {
                    "$setElementOrder/containers": [{"name": "b"}, {"name": "new"}, {"name": "a"}],
                    "containers": [{"name": "new"}],
                }
            },
            containers("server", "b", "new", "a"),
            id="an order with an item that is new",
        ),
        pytest.param(
            {"spec": {}},
            {"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "a", "image": None}]}},
            containers("a"),
            id="an order of a list that is new",
        ),
        pytest.param(
            {"spec": {}},
            {"spec": {"$setElementOrder/containers": [{"name": "a"}]}},
            {"spec": {}},
            id="an order of nothing",
        ),
        pytest.param(
            {"metadata": {"finalizers": ["a", "b", "c"]}},
            {"metadata": {"$setElementOrder/finalizers": ["c", "a"], "$deleteFromPrimitiveList/finalizers": ["b"]}},
            {"metadata": {"finalizers": ["c", "a"]}},
            id="order and deletion of scalars",
        ),
        pytest.param(
            {"spec": {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/a"}}]}},
            {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}]}},
            {"spec": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}},
            id="only named keys are retained",
        ),
        pytest.param(
            {"spec": {"securityContext": {"runAsUser": 1}}},
            {"spec": {"securityContext": {"$patch": "replace", "runAsGroup": 2}}},
            {"spec": {"securityContext": {"runAsGroup": 2}}},
            id="an object is replaced",
        ),
        pytest.param(
            {"spec": {"securityContext": {"runAsUser": 1}}},
            {"spec": {"securityContext": {"$patch": "delete"}}},
            {"spec": {"securityContext": {}}},
            id="an object is emptied",
        ),
        pytest.param(
            {"spec": {}},
            {"spec": {"securityContext": {"$patch": "delete"}}},
            {"spec": {}},
            id="an object that is not there is emptied",
        ),
        pytest.param(
            {"spec": {"nodeName": "a"}},
            {"spec": {"nodeName": {"b": 1}, "unknown": [1]}},
            {"spec": {"nodeName": {"b": 1}, "unknown": [1]}},
            id="other types and unknown fields are taken as they are",
        ),
        pytest.param(
            {"spec": {"unknown": {"a": 1, "list": [1]}}},
            {"spec": {"unknown": {"b": 2, "list": [2]}}},
            {"spec": {"unknown": {"a": 1, "b": 2, "list": [2]}}},
            id="unknown objects are merged, unknown lists replaced",
        ),
    ],
)
def test_merge(value: dict[str, Any], patch: dict[str, Any], merged: dict[str, Any]) -> None:
    before = copy(value), copy(patch)
    assert strategic_merge.apply(value, patch, POD) == merged
    assert (value, patch) == before


def test_only_the_strategy_of_a_field_replaces_an_object() -> None:
    budget = kubernetes().kind(Kind("policy", "v1", "PodDisruptionBudget"))
    value = {"spec": {"selector": {"matchLabels": {"a": "1"}}}}
    patch = {"spec": {"selector": {"matchLabels": {"b": "2"}}}}
    assert strategic_merge.apply(value, patch, budget) == patch
    assert strategic_merge.apply(value, patch, DEPLOYMENT)["spec"]["selector"] == {"matchLabels": {"a": "1", "b": "2"}}


@pytest.mark.parametrize(
    ("patch", "code", "text"),
    [
        (["a"], 400, "must be an object"),
        ({"spec": {"$patch": "merge"}}, 400, 'unknown patch type: "merge"'),
        ({"spec": {"$patch": None}}, 400, "unknown patch type: null"),
        (
            {"spec": {"containers": [{"image": "x", "tty": True}]}},
            422,
            'map: {"image":"x","tty":true} does not contain declared merge key: name',
        ),
        ({"spec": {"containers": [{"name": "a", "$patch": "merge"}]}}, 400, "unknown patch type in a list"),
        ({"spec": {"containers": [{"name": {"b": 1}}]}}, 422, "merge key, has an object"),
        ({"spec": {"containers": ["a"]}}, 422, "several types"),
        ({"metadata": {"finalizers": [1]}}, 422, "several types"),
        ({"metadata": {"finalizers": [True, "a"]}}, 422, "several types"),
        ({"metadata": {"$deleteFromPrimitiveList/finalizers": "a"}}, 400, "must be a list"),
        ({"metadata": {"$deleteFromPrimitiveList/finalizers": [{}]}}, 422, "list of scalars"),
        ({"spec": {"$setElementOrder/containers": "a"}}, 400, "must be lists"),
        (
            {"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]}},
            422,
            "doesn't match",
        ),
        (
            {
                "spec": {
                    "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                    "containers": [{"name": "a"}, {"name": "b"}],
                }
            },
            422,
            "doesn't match",
        ),
        ({"spec": {"$retainKeys": ["nodeName"], "hostname": "a"}}, 400, "must name every field"),
        ({"spec": {"$retainKeys": "nodeName"}}, 400, "list of the names"),
    ],
)
def test_wrong_patches(patch: Any, code: int, text: str) -> None:
    value = containers("a") | {"metadata": {"finalizers": ["a"]}}
    with pytest.raises(PatchError, match=text) as caught:
        strategic_merge.apply(value, patch, POD)
    assert caught.value.code == code


@pytest.mark.slow
def test_long_lists_are_merged_in_time_that_grows_with_their_length() -> None:
    many = containers(*(f"c{number}" for number in range(20_000)))
    patch = {"spec": {"containers": [{"name": f"c{number}", "image": "x"} for number in reversed(range(20_000))]}}
    merged = strategic_merge.apply(many, patch, POD)
    assert names(merged) == [f"c{number}" for number in reversed(range(20_000))]
