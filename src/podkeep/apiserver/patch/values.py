"""JSON values: copying and comparing them as JSON does (``true`` is not ``1``)."""

from __future__ import annotations

from typing import Any, TypeVar, cast

_Value = TypeVar("_Value")


def copy(value: _Value) -> _Value:
    """Return a value that shares no list and no object with ``value``."""
    if isinstance(value, dict):
        return cast(_Value, {key: copy(item) for key, item in value.items()})
    if isinstance(value, list):
        return cast(_Value, [copy(item) for item in value])
    return value


def equal(left: Any, right: Any) -> bool:
    """Tell whether two values are the same JSON; the order of an object's members does not matter, ``1`` is ``1.0``."""
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(equal(item, right[key]) for key, item in left.items())
        )
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(equal, left, right))
    return isinstance(left, bool) is isinstance(right, bool) and bool(left == right)
