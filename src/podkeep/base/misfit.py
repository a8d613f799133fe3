"""Which key of a configuration does not fit, and how: what the decoder says of it, with the names that it leaves out.

Owns: reading the decoder's (msgspec's) words. Does not own: which keys there are (``config.py``, the only caller).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import msgspec.inspect as types

_SAID = re.compile(r"(?P<text>.*) - at `\$(?P<path>.*)`", flags=re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|(\[\.\.\.\])")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
UNKNOWN = "unknown key"
_WORDS = {"str": "string", "int": "integer", "bool": "boolean", "object": "table"}
"""TOML's words for what the decoder names as Python does."""
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


def explain(
    tables: Mapping[str, Any], said: str, decoded: Callable[[Mapping[str, Any]], str], kind: type[msgspec.Struct]
) -> tuple[str, str]:
    """Return what is wrong, with its key, and a hint or an empty text.

    :param said: what the decoder said of ``tables``; in its path every key that is a user's own is ``[...]``.
    :param decoded: decodes tables, and returns what the decoder says; empty if they fit.
    :param kind: what they are decoded as.
    """
    text, keys = _keys(tables, said, decoded)
    key = ".".join(map(_shown, keys))
    if _UNKNOWN.search(text):
        return f"{key}: {UNKNOWN}", _meant(kind, keys)
    hint = "write the value in quotes" if re.search(r"Expected `str`, got `(int|float|bool)`", text) else ""
    if text.startswith("Invalid enum value"):
        values = _values(kind, keys)
        hint = f"use {', '.join(values[:-1])} or {values[-1]}" if len(values) > 1 else ""
    if text.startswith("Expected `"):
        text = re.sub(r"\w+", lambda word: _WORDS.get(word[0], word[0]), text)
    return f"{key}: {text[:1].lower()}{text[1:]}" if key else text, hint


def _values(kind: type[msgspec.Struct], keys: Sequence[str]) -> list[str]:
    """Return the values that a key may have, or each item of its list, if they are a few words."""
    import msgspec.inspect as types

    found = _type(kind, keys)
    if isinstance(found, types.VarTupleType | types.ListType):
        found = found.item_type
    return [str(value) for value in found.values] if isinstance(found, types.LiteralType) else []


def _meant(kind: type[msgspec.Struct], keys: Sequence[str]) -> str:
    """Return a hint with the key of the same table that an unknown one may be meant for; empty if none is like it."""
    import msgspec.inspect as types

    from podkeep.base.text.similar import similar

    *table, name = keys
    found = _type(kind, table)
    known = [field.encode_name for field in found.fields] if isinstance(found, types.StructType) else []
    close = similar(name, known)
    return f"did you mean {' or '.join('.'.join(map(_shown, [*table, key])) for key in close)}?" if close else ""


def _type(kind: type[msgspec.Struct], keys: Sequence[str]) -> types.Type | None:
    """Return the type of what is at a key, if a key can be there."""
    import msgspec.inspect as types

    found: types.Type | None = types.type_info(kind)
    for key in keys:
        if isinstance(found, types.StructType):
            found = next((field.type for field in found.fields if field.encode_name == key), None)
        else:
            found = found.value_type if isinstance(found, types.DictType) else None
    return found


def without(tables: Mapping[str, Any], said: str, decoded: Callable[[Mapping[str, Any]], str]) -> dict[str, Any]:
    """Return ``tables`` without the key that the decoder complains of: the unknown one, or the one that does not fit.

    A table that lacks a key goes as a whole. The same is returned where the key cannot be told.
    """
    return _dropped(tables, _keys(tables, said, decoded)[1])


def _keys(
    tables: Mapping[str, Any], said: str, decoded: Callable[[Mapping[str, Any]], str]
) -> tuple[str, Sequence[str]]:
    """Return what the decoder says without its path, and the keys that it says it of; an unknown one is the last."""
    match = _SAID.fullmatch(said)
    text, keys = (match["text"], list(_located(tables, match["path"], said, decoded))) if match else (said, [])
    unknown = _UNKNOWN.search(text)
    if unknown is not None:
        keys.append(unknown[1])
    return text, keys


def _dropped(tables: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    if not keys or keys[0] not in tables:
        return dict(tables)
    first, *rest = keys
    if not rest:
        return {key: value for key, value in tables.items() if key != first}
    below = tables[first]
    return {**tables, first: _dropped(below, rest)} if isinstance(below, Mapping) else dict(tables)


def _located(
    tables: Mapping[str, Any], path: str, said: str, decoded: Callable[[Mapping[str, Any]], str]
) -> Sequence[str]:
    """Return the keys of ``path``, as far as they can be told: a user's own by trying each of them alone."""
    keys: list[str] = []
    value: Any = tables
    for name, own in _STEP.findall(path):
        if not isinstance(value, Mapping):
            break
        chosen = name
        if own:
            # msgspec writes [...] for a key of a dictionary, so each is tried alone.
            chosen = next((key for key in value if decoded(_only([*keys, key], value[key])) == said), "")
        if chosen not in value:
            break
        keys.append(chosen)
        value = value[chosen]
    return keys


def _only(keys: Sequence[str], value: Any) -> dict[str, Any]:
    """Return tables with nothing in them but ``value`` at ``keys``."""
    for key in reversed(keys):
        value = {key: value}
    result: dict[str, Any] = value
    return result


def _shown(key: str) -> str:
    return key if _PLAIN.fullmatch(key) else f'"{key}"'
