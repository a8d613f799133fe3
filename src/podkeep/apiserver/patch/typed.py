"""Objects with their types: which fields one has, how two differ, how they are merged, and removing fields.

The rules are those of structured-merge-diff: structs and maps are merged field by field, lists of the types ``map`` and
``set`` item by item, all else is atomic: whoever has a part of it has all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from podkeep.apiserver.patch.errors import PatchError
from podkeep.apiserver.patch.field_set import FieldSet, key_element, shown, value_element
from podkeep.apiserver.patch.values import copy, equal
from podkeep.apiserver.schema.types import Anything, List, ListType, Map, Struct, Type

_Path = tuple[str, ...]


@dataclass(slots=True)
class Comparison:
    """The fields that make the difference between two objects."""

    removed: FieldSet = field(default_factory=FieldSet)
    modified: FieldSet = field(default_factory=FieldSet)
    added: FieldSet = field(default_factory=FieldSet)

    def without(self, ignored: FieldSet) -> Comparison:
        """Return the comparison without ``ignored`` fields and what is below them."""
        return Comparison(*(part.without(ignored) for part in (self.removed, self.modified, self.added)))


def field_set(value: Any, kind: Type) -> FieldSet:
    """Return the fields that ``value`` has, as who applies it owns them.

    :raises PatchError: if a list has an item twice, or one without its keys.
    """
    found = FieldSet()
    _collect(value, kind, (), found)
    return found


def field_set_of_any(value: Any, kind: Type) -> FieldSet:
    """Return the fields that ``value`` has, also if one of its lists has an item twice, as older objects may."""
    found = FieldSet()
    _collect(value, kind, (), found, duplicates=True)
    return found


def compare(old: Any, new: Any, kind: Type) -> Comparison:
    comparison = Comparison()
    _compare(old, new, kind, (), comparison)
    return comparison


def merge(live: Any, config: Any, kind: Type) -> Any:
    """Return ``live`` with ``config`` merged into it; neither is changed.

    Items of lists that only ``live`` has keep their places; those of ``config`` are in its order.
    """
    return _merge(live, config, kind)


def remove(value: Any, doomed: FieldSet, kind: Type) -> Any:
    """Return ``value`` without the fields in ``doomed``; what becomes empty stays as that."""
    if isinstance(value, dict) and isinstance(kind, Struct | Map) and not kind.atomic:
        return {
            name: remove(item, doomed.below(f"f:{name}"), _field_type(kind, name))
            if doomed.below(f"f:{name}")
            else item
            for name, item in value.items()
            if f"f:{name}" not in doomed.members
        }
    if isinstance(value, list) and _is_granular(kind):
        return [
            remove(item, doomed.below(element), kind.items) if doomed.below(element) else item
            for element, item in _items(value, kind, ())
            if element not in doomed.members
        ]
    return value


def _is_granular(kind: Type) -> TypeGuard[List]:
    return isinstance(kind, List) and kind.list_type is not ListType.ATOMIC


def _field_type(kind: Struct | Map, name: str) -> Type:
    if isinstance(kind, Map):
        return kind.values
    known = kind.fields.get(name)
    return known.type if known else Anything()


def _items(value: list[Any], kind: List, path: _Path) -> Iterator[tuple[str, Any]]:
    """Yield each item with the element that tells it apart."""
    for item in value:
        if kind.list_type is ListType.SET:
            if isinstance(item, dict | list) or item is None:
                raise PatchError(f"{shown(path)}: a set may hold nothing but scalars")
            yield value_element(item), item
            continue
        if not isinstance(item, dict):
            raise PatchError(f"{shown(path)}: associative list with keys may not have non-map elements")
        # A key that is left out counts with its default: a port without `protocol` is the one with TCP.
        given = {key: item.get(key, kind.key_defaults.get(key)) for key in kind.keys}
        keys = {key: content for key, content in given.items() if content is not None}
        if not keys:
            raise PatchError(
                f"{shown(path)}: associative list with keys has an element that omits all key fields {list(kind.keys)}"
            )
        yield key_element(keys), item


def _collect(value: Any, kind: Type, path: _Path, found: FieldSet, *, duplicates: bool = False) -> None:
    if isinstance(value, dict) and isinstance(kind, Struct | Map) and not kind.atomic:
        for name, item in value.items():
            inner = (*path, f"f:{name}")
            _collect(item, _field_type(kind, name), inner, found, duplicates=duplicates)
            # A field of a struct is owned through its leaves; an empty object and a key of a map are leaves themselves
            # (structured-merge-diff: visitMapItems).
            if item == {} or isinstance(kind, Map) or name not in kind.fields:
                found.insert(inner)
    elif isinstance(value, list) and _is_granular(kind):
        seen: set[str] = set()
        for element, item in _items(value, kind, path):
            if element in seen and not duplicates:
                raise PatchError(f"{shown(path)}: duplicate entries for key {shown([element])}")
            seen.add(element)
            _collect(item, kind.items, (*path, element), found, duplicates=duplicates)
            found.insert((*path, element))
    else:
        found.insert(path)


def _compare(old: Any, new: Any, kind: Type, path: _Path, comparison: Comparison) -> None:
    if len(path) == 1 and equal(old, new):
        return  # most writes change the status alone, and the specification is what is long
    if not old and not new and isinstance(kind, Struct | Map | List):
        _compare_leaf(old, new, path, comparison)  # empty and missing are told apart
        return
    if isinstance(kind, Struct | Map) and not kind.atomic:
        before, after = old or {}, new or {}
        for name in before | after:
            inner = _field_type(kind, name)
            here = before.get(name), after.get(name)
            if isinstance(kind, Struct) and name in kind.always:
                # What kube-apiserver compares has it on each side that has the struct around it, so that it is neither
                # added nor removed itself.
                here = _present(here[0], old, inner), _present(here[1], new, inner)
            _compare(*here, inner, (*path, f"f:{name}"), comparison)
    elif _is_granular(kind):
        _compare_lists(old or [], new or [], kind, path, comparison)
    else:
        _compare_leaf(old, new, path, comparison)
        return
    if old is None:
        comparison.added.insert(path)
    elif new is None:
        comparison.removed.insert(path)


def _present(value: Any, around: Any, kind: Type) -> Any:
    if value is not None or around is None:
        return value
    return [] if isinstance(kind, List) else {}


def _compare_leaf(old: Any, new: Any, path: _Path, comparison: Comparison) -> None:
    if old is None and new is not None:
        comparison.added.insert(path)
    elif new is None and old is not None:
        comparison.removed.insert(path)
    elif not equal(old, new):
        comparison.modified.insert(path)


def _compare_lists(old: list[Any], new: list[Any], kind: List, path: _Path, comparison: Comparison) -> None:
    before, after = _grouped(old, kind, path), _grouped(new, kind, path)
    for element in before | after:
        left, right = before.get(element, []), after.get(element, [])
        if len(left) <= 1 and len(right) <= 1:
            here = left[0] if left else None, right[0] if right else None
            _compare(*here, kind.items, (*path, element), comparison)
        elif not equal(left, right):  # an item more than once, which older objects may have
            comparison.modified.insert((*path, element))


def _grouped(items: list[Any], kind: List, path: _Path) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for element, item in _items(items, kind, path):
        grouped.setdefault(element, []).append(item)
    return grouped


def _merge(live: Any, config: Any, kind: Type) -> Any:
    if live is None or config is None:
        return copy(live if config is None else config)
    if isinstance(kind, Struct | Map) and not kind.atomic and isinstance(live, dict) and isinstance(config, dict):
        return {name: _merge(live.get(name), config.get(name), _field_type(kind, name)) for name in {**live, **config}}
    if _is_granular(kind) and isinstance(live, list) and isinstance(config, list):
        return _merge_lists(live, config, kind)
    return copy(config)


def _merge_lists(live: list[Any], config: list[Any], kind: List) -> list[Any]:
    """Merge two lists, in the order of structured-merge-diff.

    Both are walked at once. An item that only ``live`` has is taken where it is there; an item that both have waits
    until ``config`` comes to it, with what is new in ``config`` before it.
    """
    left, right = list(_items(live, kind, ())), list(_items(config, kind, ()))
    ours, wanted = _grouped(live, kind, ()), dict(right)
    shared = iter([element for element, _ in right if element in ours])
    next_shared = next(shared, None)
    done: set[str] = set()
    merged: list[Any] = []
    here = there = 0
    while here < len(left) or there < len(right):
        element, item = left[here] if here < len(left) else ("", None)
        if element and element not in wanted:
            merged.append(copy(item))
            here += 1
            continue
        if element and (
            element in done or (there < len(right) and element != right[there][0] and element != next_shared)
        ):
            here += 1
            continue
        incoming, content = right[there]
        there += 1
        here += element == incoming
        done.add(incoming)
        existing = ours.get(incoming, [])
        # Of an item that is there several times nobody can tell which one is meant: it is replaced.
        merged.append(_merge(existing[0] if len(existing) == 1 else None, content, kind.items))
        if incoming == next_shared:
            next_shared = next(shared, None)
    return merged
