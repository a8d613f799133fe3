"""Sets of fields: which paths of an object somebody owns, in memory and as ``FieldsV1``.

A path is a sequence of elements, each written as ``FieldsV1`` writes it: ``f:spec`` a field, ``k:{"name":"web"}`` the
item of a list with these keys, ``v:"x"`` the item of a set, ``i:0`` an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from podkeep.apiserver.patch.errors import PatchError, as_json
from podkeep.apiserver.schema.types import List, Map, Struct, Type

MAX_DEPTH = 100
"""Elements of a path. Sets are walked recursively."""
_MEMBER = "."


class FieldSet:
    """A set of paths, as a tree. ``members`` are the elements that paths end with here, ``children`` those that go on.

    Operations return new sets, which may share children with the old ones; only ``insert`` changes a set.
    """

    __slots__ = ("children", "members")

    def __init__(self, members: set[str] | None = None, children: dict[str, FieldSet] | None = None) -> None:
        self.members = members if members is not None else set()
        self.children = children if children is not None else {}

    def __bool__(self) -> bool:
        return bool(self.members) or any(self.children.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FieldSet) and list(self.paths()) == list(other.paths())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FieldSet({[shown(path) for path in self.paths()]})"

    def insert(self, path: Sequence[str]) -> None:
        """Put a path into this set; the empty path is not one."""
        node = self
        for element in path[:-1]:
            child = node.children.get(element)
            if child is None:  # not setdefault(), which makes a set each time
                child = node.children[element] = FieldSet()
            node = child
        if path:
            node.members.add(path[-1])

    def has(self, path: Sequence[str]) -> bool:
        node: FieldSet | None = self
        for element in path[:-1]:
            node = node.children.get(element) if node else None
        return bool(path) and node is not None and path[-1] in node.members

    def below(self, element: str) -> FieldSet:
        """Return the set of what follows ``element`` in paths that begin with it."""
        return self.children.get(element) or FieldSet()

    def paths(self) -> Iterator[tuple[str, ...]]:
        """Yield every path, sorted."""
        for element in sorted(self.members | self.children.keys()):
            if element in self.members:
                yield (element,)
            for rest in self.below(element).paths():
                yield (element, *rest)

    def union(self, *others: FieldSet) -> FieldSet:
        found: dict[str, list[FieldSet]] = {}
        for item in (self, *others):
            for element, child in item.children.items():
                found.setdefault(element, []).append(child)
        children = {element: first.union(*rest) if rest else first for element, (first, *rest) in found.items()}
        return FieldSet(self.members.union(*(other.members for other in others)), children)

    def intersection(self, other: FieldSet) -> FieldSet:
        children = {
            element: child.intersection(other.children[element])
            for element, child in self.children.items()
            if element in other.children
        }
        return FieldSet(self.members & other.members, _not_empty(children))

    def difference(self, other: FieldSet) -> FieldSet:
        children = {
            element: child.difference(other.children[element]) if element in other.children else child
            for element, child in self.children.items()
        }
        return FieldSet(self.members - other.members, _not_empty(children))

    def without(self, other: FieldSet) -> FieldSet:
        """Return what is in this set, and neither in the other nor below a path of it."""
        children = {
            element: child.without(other.below(element))
            for element, child in self.children.items()
            if element not in other.members
        }
        return FieldSet(self.members - other.members, _not_empty(children))

    def with_named_fields(self, kind: Type | None) -> FieldSet:
        """Return the set with each field of a struct that paths go on from, as :func:`~.typed.remove` needs it."""
        members, children = set(self.members), {}
        for element, child in self.children.items():
            inner: Type | None = None
            name = element.removeprefix("f:")
            if isinstance(kind, Struct) and element.startswith("f:") and name in kind.fields:
                members.add(element)
                inner = kind.fields[name].type
            elif (isinstance(kind, Map) and element.startswith("f:")) or (
                isinstance(kind, List) and element.startswith("k:")
            ):
                inner = kind.values if isinstance(kind, Map) else kind.items
            children[element] = child.with_named_fields(inner)
        return FieldSet(members, children)

    def fields_v1(self) -> dict[str, Any]:
        encoded: dict[str, Any] = {}
        for element in sorted(self.members | self.children.keys()):
            child = self.children.get(element)
            inner = child.fields_v1() if child else {}
            if inner and element in self.members:
                encoded[element] = {_MEMBER: {}, **inner}
            elif inner or element in self.members:
                encoded[element] = inner
        return encoded

    @classmethod
    def decode(cls, fields_v1: Any, depth: int = 0) -> FieldSet:
        """Return the set that ``FieldsV1`` stands for.

        :param depth: how many elements lead to it.
        :raises PatchError: if it is not ``FieldsV1``, or deeper than any object.
        """
        # Clients may write managedFields themselves: the walk has to end before Python's limit of recursion.
        if depth > MAX_DEPTH:
            raise PatchError(f"fieldsV1 must not be nested more than {MAX_DEPTH} times")
        if not isinstance(fields_v1, dict):
            raise PatchError("fieldsV1 must be an object")
        decoded = cls()
        for text, inner in fields_v1.items():
            if text == _MEMBER:
                continue
            # Elements are compared as texts, and the JSON in them can be written in several ways: one of them counts.
            element = _canonical(text)
            if not isinstance(inner, dict):
                raise PatchError("fieldsV1 must hold objects")
            child = cls.decode(inner, depth + 1) if inner else None
            if child:
                decoded.children[element] = child
            # A key without anything below it is a member; `.` marks one that has both (meta/v1: FieldsV1).
            if not child or _MEMBER in inner:
                decoded.members.add(element)
        return decoded


def key_element(keys: dict[str, Any]) -> str:
    """Return the element for an item of a list that has these keys."""
    return "k:" + msgspec.json.encode(keys, order="sorted").decode()


def value_element(value: Any) -> str:
    """Return the element for an item of a set."""
    return "v:" + msgspec.json.encode(value).decode()


def shown(path: Sequence[str]) -> str:
    """Return a path as messages show it: ``.spec.containers[name="web"].image``."""
    return "".join(map(_shown_element, path))


def _shown_element(element: str) -> str:
    kind, _, text = element.partition(":")
    if kind == "f":
        return f".{text}"
    if kind == "k":
        keys = msgspec.json.decode(text)
        return "[" + ",".join(f"{key}={msgspec.json.encode(value).decode()}" for key, value in keys.items()) + "]"
    return f"[={text}]" if kind == "v" else f"[{text}]"


def _canonical(text: str) -> str:
    kind, separator, content = text.partition(":")
    if not separator or kind not in ("f", "k", "v", "i"):
        raise PatchError(f"{as_json(text, 80)} is not a path element of fieldsV1")
    if kind == "f":
        return text
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        raise PatchError(f"{as_json(text, 80)} is not a path element of fieldsV1") from None
    if kind == "k" and isinstance(value, dict) and not any(isinstance(item, dict | list) for item in value.values()):
        return key_element(value)
    if kind == "v" and not isinstance(value, dict | list):
        return value_element(value)
    # Not isinstance(): booleans are integers in Python.
    if kind == "i" and type(value) is int:
        return f"i:{value}"
    raise PatchError(f"{as_json(text, 80)} is not a path element of fieldsV1")


def _not_empty(children: dict[str, FieldSet]) -> dict[str, FieldSet]:
    return {element: child for element, child in children.items() if child}
