"""Strategic merge patch: what ``kubectl apply`` and ``kubectl edit`` send for the built-in kinds.

A list of objects whose field has the strategy ``merge`` is merged item by item, told apart by the merge key. Directives
say what values cannot: ``$patch: replace|delete|merge`` in an object, ``$deleteFromPrimitiveList/FIELD``,
``$setElementOrder/FIELD`` and ``$retainKeys`` beside the fields (Kubernetes: strategic merge patch).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from podkeep.apiserver.patch.errors import PatchError, as_json
from podkeep.apiserver.patch.values import copy
from podkeep.apiserver.schema.types import Field, List, Map, Struct, Type

_DIRECTIVE = "$patch"
_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_RETAIN_KEYS = "$retainKeys"


def apply(value: dict[str, Any], patch: Any, struct: Struct) -> dict[str, Any]:
    """Return ``value``, an object of type ``struct``, with ``patch`` merged into it.

    :raises PatchError: if the patch is not one, or a directive of it is wrong.
    """
    if not isinstance(patch, dict):
        raise PatchError("strategic merge patch must be an object")
    # Copies: the merge takes directives out of the patch, which is applied again if the write loses a race.
    return _merge_objects(copy(value), copy(patch), struct)


def _merge_objects(original: dict[str, Any], patch: dict[str, Any], kind: Type | None) -> dict[str, Any]:
    if _DIRECTIVE in patch:
        directive = patch.pop(_DIRECTIVE)
        if directive == "replace":
            return patch
        if directive == "delete":
            return {}
        raise PatchError(f"unknown patch type: {as_json(directive, 80)}")
    _retain_keys(original, patch)
    # First the lists that have an order: they leave the patch, or the loop would merge them twice
    # (mergePatchIntoOriginal).
    orders = {key.removeprefix(_ORDER): patch.pop(key) for key in list(patch) if key.startswith(_ORDER)}
    for name, order in orders.items():
        _merge_ordered(original, patch, name, order, _field(kind, name))
    for key, item in patch.items():
        if key.startswith(_DELETE_FROM):
            _delete_from_list(original, key.removeprefix(_DELETE_FROM), item)
        elif item is None:
            original.pop(key, None)
        elif isinstance(item, dict) and isinstance(original.get(key), dict):
            field = _field(kind, key)
            if field is not None and "replace" in field.patch_strategy:
                original[key] = item
            else:
                original[key] = _merge_objects(original[key], item, field.type if field else None)
        elif isinstance(item, list) and isinstance(original.get(key), list):
            original[key] = _merge_lists(original[key], item, _field(kind, key))
        else:
            _put(original, key, item)
    return original


def _put(original: dict[str, Any], key: str, item: Any) -> None:
    """Take a value of the patch as it is, without its directives; an object that is one is not there afterwards."""
    kept = _without_directives(item)
    if kept is None:
        original.pop(key, None)
    else:
        original[key] = kept


def _without_directives(item: Any) -> Any:
    if isinstance(item, dict):
        if _DIRECTIVE in item:
            return None
        members = {key: _without_directives(member) for key, member in item.items()}
        return {key: member for key, member in members.items() if member is not None}
    if isinstance(item, list):
        kept = (_without_directives(member) for member in item)
        return [member for before, member in zip(item, kept, strict=True) if member is not None or before is None]
    return item


def _field(kind: Type | None, name: str) -> Field | None:
    """Return the field ``name`` of a struct; the values of a map are one field. None for what the table has not."""
    if isinstance(kind, Struct):
        return kind.fields.get(name)
    return Field(kind.values) if isinstance(kind, Map) else None


def _retain_keys(original: dict[str, Any], patch: dict[str, Any]) -> None:
    if _RETAIN_KEYS not in patch:
        return
    keys = patch.pop(_RETAIN_KEYS)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise PatchError("$retainKeys must be a list of the names of fields")
    given = {key for key, item in patch.items() if item is not None and not key.startswith((_DELETE_FROM, _ORDER))}
    if not given <= set(keys):
        raise PatchError("$retainKeys must name every field that the patch sets")
    for key in original.keys() - set(keys):
        del original[key]


def _delete_from_list(original: dict[str, Any], name: str, items: Any) -> None:
    if not isinstance(items, list):
        raise PatchError(f"{_DELETE_FROM}{name} must be a list")
    current = original.get(name)
    if isinstance(current, list):
        doomed = {_identity(item) for item in items}
        original[name] = [item for item in current if _identity(item) not in doomed]


def _merge_ordered(original: dict[str, Any], patch: dict[str, Any], name: str, order: Any, field: Field | None) -> None:
    """Merge a list whose order the patch gives."""
    current, given = original.get(name), patch.pop(name, None)
    if not isinstance(order, list) or not isinstance(current, list | None) or not isinstance(given, list | None):
        raise PatchError(f"{_ORDER}{name} and its list must be lists")
    if current is None and given is None:
        return
    merge_key = field.patch_merge_key if field else ""
    _check_order(given or [], order, merge_key, name)
    if given is None:
        merged: list[Any] = list(current or [])
    elif current is None:
        merged = _without_directives(given)
    else:
        merged = _merge_lists(current, given, field)
    original[name] = _in_order(merged, order, current or [], merge_key)


def _check_order(given: Sequence[Any], order: Sequence[Any], merge_key: str, name: str) -> None:
    """Hold the items of a patch against its order, in which all of them must be, in the same order."""
    if not given or not order:
        return
    wanted = iter([_key(item, merge_key) for item in order])
    for item in given:
        if isinstance(item, dict) and _DIRECTIVE in item:
            continue
        key = _key(item, merge_key)
        if all(key != other for other in wanted):
            raise PatchError(f"The order in patch list doesn't match {_ORDER}{name} list", code=422)


def _merge_lists(original: list[Any], patch: list[Any], field: Field | None) -> list[Any]:
    if field is None or "merge" not in field.patch_strategy:
        return patch
    if not original and not patch:
        return original
    kinds = {_family(item) for item in (*original, *patch)}
    if len(kinds) > 1 or kinds == {"list"}:
        raise PatchError("lists of lists, and of values of several types, cannot be merged", code=422)
    if kinds != {"object"}:
        merged = list({_identity(item): item for item in (*original, *patch)}.values())
        return _in_order(merged, patch, original, "")
    if not field.patch_merge_key:
        raise PatchError("cannot merge lists without merge key", code=422)
    items = field.type.items if isinstance(field.type, List) else None
    return _merge_lists_of_objects(original, patch, field.patch_merge_key, items)


def _merge_lists_of_objects(original: list[Any], patch: list[Any], merge_key: str, items: Type | None) -> list[Any]:
    given: list[Any] = []
    doomed: set[object] = set()
    replace = False
    for item in patch:
        directive = item.get(_DIRECTIVE)
        if _DIRECTIVE not in item:
            given.append(item)
        elif directive == "delete":
            doomed.add(_key(item, merge_key))
        elif directive == "replace":
            replace = True
        else:
            raise PatchError(f"unknown patch type in a list: {as_json(directive, 80)}")
    if replace:
        return given
    merged = [item for item in original if _key(item, merge_key) not in doomed]
    places = _places(merged, merge_key)
    for item in given:
        key = _key(item, merge_key)
        if key in places:
            merged[places[key]] = _merge_objects(merged[places[key]], item, items)
        else:
            places[key] = len(merged)
            merged.append(_without_directives(item))
    return _in_order(merged, given, original, merge_key)


def _in_order(
    merged: Sequence[Any], patch_order: Sequence[Any], server_order: Sequence[Any], merge_key: str
) -> list[Any]:
    """Return the items of ``merged`` so that those of the patch are in its order, and the others in the server's.

    Where the two meet, the server's order decides if it knows both.
    """
    in_patch = _places(patch_order, merge_key)
    on_server = _places(server_order, merge_key)
    keyed = [(_key(item, merge_key), item) for item in merged]
    ours = sorted((pair for pair in keyed if pair[0] in in_patch), key=lambda pair: in_patch[pair[0]])
    others = sorted(
        (pair for pair in keyed if pair[0] not in in_patch), key=lambda pair: on_server.get(pair[0], len(on_server))
    )
    ordered: list[Any] = []
    left = right = 0
    while left < len(others) and right < len(ours):
        here, there = on_server.get(others[left][0]), on_server.get(ours[right][0])
        if here is not None and there is not None and here < there:
            ordered.append(others[left][1])
            left += 1
        else:
            ordered.append(ours[right][1])
            right += 1
    ordered += [item for _, item in others[left:]]
    return ordered + [item for _, item in ours[right:]]


def _places(items: Sequence[Any], merge_key: str) -> dict[object, int]:
    places: dict[object, int] = {}
    for place, item in enumerate(items):
        places.setdefault(_key(item, merge_key), place)
    return places


def _key(item: Any, merge_key: str) -> object:
    """Return what tells an item of a list apart: itself, or the value of its merge key."""
    if not merge_key:
        return _identity(item)
    if not isinstance(item, dict) or merge_key not in item:
        raise PatchError(f"map: {as_json(item)} does not contain declared merge key: {merge_key}", code=422)
    return _identity(item[merge_key])


def _identity(item: Any) -> object:
    if isinstance(item, dict | list):
        raise PatchError("a list of scalars, or a merge key, has an object or a list", code=422)
    # True == 1 in Python, while true and 1 are two values of JSON.
    return isinstance(item, bool), item


def _family(item: Any) -> str:
    if isinstance(item, dict):
        return "object"
    if isinstance(item, list):
        return "list"
    return "boolean" if isinstance(item, bool) else "number" if isinstance(item, int | float) else "string"
