from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.apiserver.patch import json_patch, merge_patch
from podkeep.apiserver.patch.errors import PatchError
from podkeep.apiserver.patch.values import copy, equal

_WRAP = [
    {"op": "move", "from": "/x", "path": "/y"},
    {"op": "add", "path": "/x", "value": {}},
    {"op": "move", "from": "/y", "path": "/x/y"},
]


@pytest.mark.slow
@pytest.mark.parametrize("last", [[], [{"op": "copy", "from": "/x", "path": "/z"}], [{"op": "test", "path": "/y"}]])
def test_moves_do_not_make_objects_that_nest_without_bound(last: list[Any]) -> None:
    with pytest.raises(PatchError, match="nests more than 200 levels deep") as refused:
        json_patch.apply({"x": {}}, _WRAP * 3_000 + last)
    assert refused.value.code == 400
    assert json_patch.apply({"x": {}}, _WRAP)["x"] == {"y": {}}


@pytest.mark.parametrize(
    ("value", "patch", "after"),
    [
        ({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
        ({"a": 1}, [{"op": "add", "path": "/a", "value": None}], {"a": None}),
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2]}),
        ({"a": [1, 2]}, [{"op": "add", "path": "/a/-1", "value": 3}], {"a": [1, 2, 3]}),
        ({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ({"a": [1, 2]}, [{"op": "remove", "path": "/a/-1"}], {"a": [1]}),
        ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
        ({"a": {"b": 1}}, [{"op": "replace", "path": "/a/b", "value": [2]}], {"a": {"b": [2]}}),
        ({"a": [1, 2]}, [{"op": "replace", "path": "/a/1", "value": 3}], {"a": [1, 3]}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
        ({"a": 1}, [{"op": "add", "path": "", "value": 1}], 1),
        ({"a": 1}, [{"op": "replace", "path": "", "value": None}], None),
        ({"a": 1}, [{"op": "move", "path": "", "from": "/a"}], 1),
        ({"a": {"b": 1}, "c": {}}, [{"op": "move", "from": "/a/b", "path": "/c/d"}], {"a": {}, "c": {"d": 1}}),
        ({"a": [1, 2, 3]}, [{"op": "move", "from": "/a/0", "path": "/a/2"}], {"a": [2, 3, 1]}),
        ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a~b": {"c/d": 1}}, [{"op": "replace", "path": "/a~0b/c~1d", "value": 2}], {"a~b": {"c/d": 2}}),
        ({"": {"": 1}}, [{"op": "replace", "path": "//", "value": 2}], {"": {"": 2}}),
        ({"a": {"b": [1.0, "x"]}}, [{"op": "test", "path": "/a", "value": {"b": [1, "x"]}}], {"a": {"b": [1.0, "x"]}}),
        ({"a": 1}, [{"op": "test", "path": "/b", "value": None}], {"a": 1}),
        ({"a": 1}, [{"op": "test", "path": "", "value": {"a": 1}}], {"a": 1}),
        ({"a": {}}, [{"op": "replace", "path": "/a/b", "value": 1}], {"a": {"b": 1}}),
        ({"a": 1}, [{"op": "copy", "from": "/b", "path": "/c"}], {"a": 1, "c": None}),
    ],
)
def test_operations(value: Any, patch: list[Any], after: Any) -> None:
    before = copy(value)
    assert json_patch.apply(value, patch) == after
    assert value == before


@pytest.mark.parametrize(
    ("patch", "code", "text"),
    [
        ({}, 400, "list of operations"),
        (["a"], 400, "list of operations"),
        ([{"op": "append", "path": "/a"}], 422, "Unexpected kind: append"),
        ([{"op": ["add"], "path": "/a"}], 422, r'Unexpected kind: \["add"\]'),
        ([{"op": "add", "path": "/b"}], 422, "add operation has no value"),
        ([{"op": "add", "value": 1}], 422, "add operation has no path"),
        ([{"op": "move", "path": "/b"}], 422, "move operation has no from"),
        ([{"op": "add", "path": "b", "value": 1}], 422, "not a JSON pointer"),
        ([{"op": "add", "path": 3, "value": 1}], 422, "not a JSON pointer"),
        ([{"op": "add", "path": {"a": None}, "value": 1}], 422, 'not a JSON pointer: {"a":null}'),
        ([{"op": "add", "path": "/" * 5000, "value": 1}], 422, "not a JSON pointer"),
        ([{"op": "add", "path": "/x/y", "value": 1}], 422, "add operation does not apply: doc is missing path: /x/y"),
        ([{"op": "add", "path": "/text/y", "value": 1}], 422, "missing path"),
        ([{"op": "remove", "path": "/b"}], 422, "remove operation does not apply"),
        ([{"op": "remove", "path": ""}], 422, "whole document"),
        ([{"op": "replace", "path": "/b/c", "value": 1}], 422, "replace operation does not apply"),
        ([{"op": "replace", "path": "/list/2", "value": 1}], 422, "replace operation does not apply"),
        ([{"op": "add", "path": "/list/3", "value": 1}], 422, "invalid index"),
        ([{"op": "add", "path": "/list/-4", "value": 1}], 422, "invalid index"),
        ([{"op": "remove", "path": "/list/2"}], 422, "invalid index"),
        ([{"op": "remove", "path": "/list/01"}], 422, "not an index"),
        ([{"op": "remove", "path": "/list/-"}], 422, "not an index"),
        ([{"op": "remove", "path": "/list/x/y"}], 422, 'path: /list/x: "x" is not an index'),
        ([{"op": "remove", "path": "/list/5/y"}], 422, "path: /list/5: invalid index"),
        ([{"op": "remove", "path": "/list/" + "9" * 5000}], 422, "not a JSON pointer"),
        ([{"op": "move", "from": "/object", "path": "/object/a/b"}], 422, "into itself"),
        ([{"op": "test", "path": "/text", "value": "other"}], 422, "testing value /text failed"),
        ([{"op": "test", "path": "/one", "value": True}], 422, "testing value /one failed"),
        ([{"op": "test", "path": "/missing", "value": 1}], 422, "testing value /missing failed"),
        ([{"op": "test", "path": "/missing/a", "value": None}], 422, "missing path"),
        ([{"op": "test", "path": "/text/a", "value": None}], 422, "missing path"),
        ([{"op": "test", "path": "/list/2", "value": None}], 422, "invalid index"),
        ([{"op": "test", "path": "/list/x", "value": None}], 422, "not an index"),
        ([{"op": "copy", "from": "/list/2", "path": "/a"}], 422, "invalid index"),
        ([{"op": "move", "from": "/missing", "path": "/a"}], 422, "missing value"),
    ],
)
def test_wrong_patches(patch: Any, code: int, text: str) -> None:
    value = {"text": "a", "list": [1, 2], "object": {"a": {}}, "one": 1}
    with pytest.raises(PatchError, match=text) as caught:
        json_patch.apply(value, patch)
    assert caught.value.code == code
    assert len(str(caught.value)) < 500


def test_a_patch_has_a_bounded_number_of_operations() -> None:
    with pytest.raises(PatchError, match="maximum operations in a JSON patch is 10000, got 10001") as caught:
        json_patch.apply({}, [{"op": "add", "path": "/a", "value": 1}] * 10_001)
    assert caught.value.code == 413


def test_what_a_patch_copies_is_bounded() -> None:
    patch = [{"op": "copy", "from": "", "path": "/b"}, {"op": "copy", "from": "/b", "path": "/c"}] * 30
    with pytest.raises(PatchError, match="accumulated size increase of copy") as caught:
        json_patch.apply({"a": "x" * 1000}, patch)
    assert caught.value.code == 413


@pytest.mark.parametrize("item", [0, {}, [[[[]]]], {"": {}}], ids=["numbers", "objects", "nested", "members"])
def test_copies_of_many_small_values_are_bounded(item: Any) -> None:
    """They are few bytes: a short patch made millions of them, and nothing else was served meanwhile."""
    patch = [{"op": "add", "path": "/a", "value": [item] * 1000}]
    patch += [{"op": "copy", "from": "/a", "path": f"/{number}"} for number in range(60)]
    with pytest.raises(PatchError, match="the json patch copies more than 50000 values") as caught:
        json_patch.apply({}, patch)
    assert caught.value.code == 413


def test_an_object_of_as_many_values_as_there_may_be_can_be_copied() -> None:
    value = {"a": [0] * 9_998}
    assert json_patch.apply(value, [{"op": "copy", "from": "/a", "path": "/b"}]) == {**value, "b": value["a"]}


@pytest.mark.parametrize(
    "patch",
    [
        [{"op": "add", "path": "/a/0", "value": 1}],
        [{"op": "remove", "path": "/a/0"}],
        [{"op": "move", "from": "/a/0", "path": "/a/-"}],
    ],
)
def test_what_a_patch_moves_in_lists_is_bounded(patch: list[Any]) -> None:
    with pytest.raises(PatchError, match="moves more than 10000000 items of lists") as caught:
        json_patch.apply({"a": [0] * 20_000}, patch * 2000)
    assert caught.value.code == 413
    json_patch.apply({"a": [0] * 20_000}, [{"op": "add", "path": "/a/-", "value": 1}] * 2000)


@pytest.mark.parametrize(
    ("value", "patch", "after"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None, "d": [3]}}, {"a": {"c": 2, "d": [3]}}),
        ({"a": [1, 2]}, {"a": [None]}, {"a": [None]}),
        ({"a": "b"}, {"a": {"c": {"d": None, "e": 1}}}, {"a": {"c": {"e": 1}}}),
        ({"a": 1}, "text", "text"),
        ("text", {"a": 1}, {"a": 1}),
    ],
)
def test_merge_patch(value: Any, patch: Any, after: Any) -> None:
    before = copy(value)
    assert merge_patch.apply(value, patch) == after
    assert value == before


_SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
)


@given(_VALUES, _VALUES)
@pytest.mark.slow
def test_any_value_is_added_and_found_again(value: Any, other: Any) -> None:
    after = json_patch.apply({"a": value}, [{"op": "add", "path": "/b", "value": other}])
    json_patch.apply(
        after, [{"op": "test", "path": "/a", "value": value}, {"op": "test", "path": "/b", "value": other}]
    )
    assert equal(json_patch.apply(after, [{"op": "remove", "path": "/b"}]), {"a": value})


@pytest.mark.slow
@given(_VALUES, _VALUES)
def test_values_are_equal_as_json(left: Any, right: Any) -> None:
    same = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    assert equal(left, right) is same
    assert equal(copy(left), left)
