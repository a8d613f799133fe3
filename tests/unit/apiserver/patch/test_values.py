"""Copies and equality of JSON values."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.apiserver.patch.values import copy, equal


@pytest.mark.parametrize(
    "value",
    [
        {"a": [{"b": 1}, 1.5, True, None, "\ud800", 1 << 70], "": {}},
        {"more": object(), "list": [{}]},
        "text",
        None,
    ],
    ids=["json", "more-than-json", "text", "null"],
)
def test_a_copy_shares_nothing_that_can_change(value: Any) -> None:
    copied = copy(value)
    assert copied == value
    if isinstance(value, dict):
        assert copied is not value
        for key, item in value.items():
            assert not isinstance(item, dict | list) or copied[key] is not item


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, True),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": [0]}, {"a": [False]}, False),
        ({"a": {"b": [{"c": True}]}}, {"a": {"b": [{"c": 1}]}}, False),
        ({"a": None}, {}, False),
        ([], {}, False),
        ("", None, False),
        ([1, 2], [2, 1], False),
    ],
)
def test_values_are_equal_as_json_is(left: Any, right: Any, same: bool) -> None:
    assert equal(left, right) is same
    assert equal(right, left) is same
