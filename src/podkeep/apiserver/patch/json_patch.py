"""JSON patch (RFC 6902), with what kube-apiserver adds: negative indices, and bounds on what a patch may make."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from podkeep.apiserver.patch.errors import PatchError, as_json
from podkeep.apiserver.patch.values import copy, count, equal

MAX_OPERATIONS = 10_000
"""Operations of a patch (kube-apiserver: ``maxJSONPatchOperations``)."""
MAX_COPIED_BYTES = 3 << 20
"""Bytes that the copies of a patch make together."""
MAX_COPIED_VALUES = 50_000
"""JSON values that they make, as many as a patch itself may have: 3 MiB can be more than a million, half a second in
which nothing else is served."""
MAX_MOVED_ITEMS = 10_000_000
"""Items of lists that the insertions and removals of a patch move together, so that a patch is linear work."""
_MAX_POINTER = 4096
"""Characters of a pointer: far more than any object's depth needs, and little enough to show in an error."""
_MAX_DEPTH = 200
"""Levels that a patched object may nest: its managedFields may have more than its other fields."""
_INDEX = re.compile(r"-?(?:0|[1-9][0-9]{0,8})")
_MEMBERS = {
    "add": ("value",),
    "remove": (),
    "replace": ("value",),
    "move": ("from",),
    "copy": ("from",),
    "test": (),
}


def apply(value: Any, patch: Any) -> Any:
    """Return ``value`` after every operation of ``patch``, a decoded list of operations.

    :raises PatchError: if the patch is wrong, an operation does not apply, or a test fails.
    """
    if not isinstance(patch, list) or not all(isinstance(operation, dict) for operation in patch):
        raise PatchError("json patch must be a list of operations")
    if len(patch) > MAX_OPERATIONS:
        raise PatchError(
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(patch)}", code=413
        )
    document = _Document(copy(value))
    try:
        for operation in patch:
            document.apply(operation)
    # Moves can nest a document deeper than Python recurses; copy(), equal() and the encoder walk it.
    except RecursionError:
        raise _too_deep() from None
    _require_flat(document.root)
    return document.root


def _require_flat(root: Any) -> None:
    """Refuse what nests too deeply: many moves make it, though each operation is short."""
    # A patch may replace the whole document, by a text or a number too; what it may be is the kind's to say.
    level = [root] if isinstance(root, dict | list) else []
    for _ in range(_MAX_DEPTH):
        inner = (item.values() if isinstance(item, dict) else item for item in level)
        level = [member for items in inner for member in items if isinstance(member, dict | list)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> PatchError:
    return PatchError(f"the json patch makes an object that nests more than {_MAX_DEPTH} levels deep")


class _Document:
    """The value while it is patched."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._copied = 0
        self._copied_values = 0
        self._moved = 0

    def apply(self, operation: dict[str, Any]) -> None:
        kind, path = operation.get("op"), operation.get("path")
        if not isinstance(kind, str) or kind not in _MEMBERS:
            raise PatchError(f"Unexpected kind: {kind[:80] if isinstance(kind, str) else as_json(kind, 80)}", code=422)
        for name in ("path", *_MEMBERS[kind]):
            if name not in operation:
                raise PatchError(f"{kind} operation has no {name}", code=422)
        source = _pointer(operation["from"], kind) if "from" in _MEMBERS[kind] else []
        target = _pointer(path, kind)
        match kind:
            case "add":
                # A copy: later operations change it in place, and the same patch is computed again if its write loses a
                # race.
                self._add(target, copy(operation["value"]), kind)
            case "remove":
                self._remove(target, kind)
            case "replace":
                self._replace(target, copy(operation["value"]))
            case "move":
                if target[: len(source)] == source and len(target) > len(source):
                    raise _does_not_apply(kind, target, "a value cannot be moved into itself")
                # Removed first (RFC 6902, section 4.4): indices of the target count in what is left.
                self._add(target, self._remove(source, kind), kind)
            case "copy":
                self._add(target, self._copy(source), kind)
            case _:
                self._test(target, operation.get("value"))

    def _add(self, path: list[str], value: Any, kind: str) -> None:
        if not path:
            self.root = value
            return
        parent = self._container(path, kind)
        if isinstance(parent, dict):
            parent[path[-1]] = value
        elif path[-1] == "-":
            parent.append(value)
        else:
            index = _index(path, len(path), len(parent) + 1, kind)
            # insert() and pop() of a list move every item behind the index: the work of many operations would grow with
            # the square.
            self._move(len(parent) - index)
            parent.insert(index, value)

    def _remove(self, path: list[str], kind: str) -> Any:
        if not path:
            raise _does_not_apply(kind, path, "the whole document cannot be removed")
        parent = self._container(path, kind)
        if isinstance(parent, list):
            index = _index(path, len(path), len(parent), kind)
            self._move(len(parent) - index)
            return parent.pop(index)
        if path[-1] not in parent:
            raise _does_not_apply(kind, path, "missing value")
        return parent.pop(path[-1])

    def _replace(self, path: list[str], value: Any) -> None:
        if not path:
            self.root = value
            return
        parent = self._container(path, "replace")
        if isinstance(parent, list):
            parent[_index(path, len(path), len(parent), "replace")] = value
        else:
            parent[path[-1]] = value  # also one that is not there, as kube-apiserver

    def _move(self, items: int) -> None:
        self._moved += items
        if self._moved > MAX_MOVED_ITEMS:
            raise PatchError(f"the json patch moves more than {MAX_MOVED_ITEMS} items of lists", code=413)

    def _copy(self, path: list[str]) -> Any:
        value = self._get(path, "copy")
        # Copies of copies double with each operation; kube-apiserver bounds their sum too (AccumulatedCopySizeLimit).
        # Values before bytes: those are counted no further than they may go.
        self._copied_values += count(value, MAX_COPIED_VALUES - self._copied_values)
        if self._copied_values > MAX_COPIED_VALUES:
            raise PatchError(f"the json patch copies more than {MAX_COPIED_VALUES} values", code=413)
        self._copied += len(msgspec.json.encode(value))
        if self._copied > MAX_COPIED_BYTES:
            raise PatchError(
                f"Unable to complete the copy, the accumulated size increase of copy is {self._copied},"
                f" exceeding the limit {MAX_COPIED_BYTES}",
                code=413,
            )
        return copy(value)

    def _test(self, path: list[str], expected: Any) -> None:
        if not equal(self._get(path, "test"), expected):
            raise PatchError(f"testing value {_shown(path)} failed: test failed", code=422)

    def _get(self, path: list[str], kind: str) -> Any:
        """Return what is there; a member that an object does not have is null, as kube-apiserver has it."""
        if not path:
            return self.root
        parent = self._container(path, kind)
        if isinstance(parent, list):
            return parent[_index(path, len(path), len(parent), kind)]
        return parent.get(path[-1])

    def _container(self, path: list[str], kind: str) -> Any:
        """Return the list or object that the last token of ``path`` is a place in."""
        found = self.root
        for depth, token in enumerate(path[:-1], start=1):
            if isinstance(found, list):
                found = found[_index(path, depth, len(found), kind)]
            elif isinstance(found, dict) and token in found:
                found = found[token]
            else:
                raise _does_not_apply(kind, path, "missing path")
        if not isinstance(found, dict | list):
            raise _does_not_apply(kind, path, "missing path")
        return found


def _pointer(text: object, kind: str) -> list[str]:
    """Return the tokens of a JSON pointer (RFC 6901)."""
    if not isinstance(text, str) or len(text) > _MAX_POINTER or (text and not text.startswith("/")):
        raise PatchError(f"{kind} operation has a path that is not a JSON pointer: {as_json(text, 80)}", code=422)
    # In this order (RFC 6901, section 4): ~01 stands for ~1, and not for a slash.
    return [token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]]


def _index(path: list[str], depth: int, length: int, kind: str) -> int:
    """Return the index that the token before ``depth`` of a path is, in a list of this length."""
    token = path[depth - 1]
    if not _INDEX.fullmatch(token):
        raise _does_not_apply(kind, path[:depth], f"{as_json(token, 80)} is not an index")
    index = int(token)
    if not -length <= index < length:
        raise _does_not_apply(kind, path[:depth], "invalid index referenced")
    return index + length if index < 0 else index


def _shown(path: list[str]) -> str:
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in path)[:200]


def _does_not_apply(kind: str, path: list[str], why: str) -> PatchError:
    return PatchError(f"{kind} operation does not apply: doc is missing path: {_shown(path)}: {why}", code=422)
