"""Holding decoded JSON against a type: what is unknown is dropped and named, what is wrong is an error.

The texts are those of Kubernetes' decoder, which people search for. What an object looks like afterwards is what
upstream stores: ``null`` means that a field is not set, what Go leaves out when it is zero is not kept (``tty: false``,
empty lists and maps), quantities and times are written in their one canonical form.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from podkeep.api.fields import first_of
from podkeep.apiserver.schema.types import Anything, Format, List, Map, Scalar, Struct, Type
from podkeep.base.text import base64_text, quantity

_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_NOT_SET = datetime(1, 1, 1, tzinfo=UTC)
_LIMITS = {Format.INT32: 1 << 31, Format.INT64: 1 << 63}
_TIMES = (Scalar(Format.TIME), Scalar(Format.MICROTIME))
_GO_TYPES = {
    Format.STRING: "string",
    Format.INT32: "int32",
    Format.INT64: "int64",
    Format.DOUBLE: "float64",
    Format.BOOLEAN: "bool",
    Format.BYTES: "[]uint8",
    Format.TIME: "string",
    Format.MICROTIME: "string",
}
_ZEROS: Mapping[Format, Any] = {
    Format.INT32: 0,
    Format.INT64: 0,
    Format.DOUBLE: 0,
    Format.BOOLEAN: False,
    Format.QUANTITY: "0",
    Format.INT_OR_STRING: 0,
}


_Place: TypeAlias = "tuple[_Place, str, bool] | None"
"""A path in parts, the last one first, each with whether it is a field of a struct, and no index or key.

As texts, a long name would be in those of all that is below it.
"""


class WrongType(Exception):
    """A value is not of its field's type; the text is the decoder's."""


@dataclass(slots=True)
class Decoded:
    """An object as it is stored, and the unknown fields that it does not have any more, as paths, up to a bound."""

    value: dict[str, Any]
    unknown: list[str] = field(default_factory=list)


def decode(value: Mapping[str, Any], struct: Struct, *, zeros: bool = False) -> Decoded:
    """Return ``value``, the decoded JSON of an object, as ``struct``; ``value`` itself is not changed.

    :param zeros: keep also what is left out when it is zero, as the configuration of a server-side apply has it: who
        applies it owns it.
    :raises WrongType: at the first value that is not of its field's type.
    """
    unknown: list[_Place] = []
    kept = _struct(value, struct, None, unknown, zeros)
    return Decoded(kept, first_of(map(_text_of, unknown)))


def _text_of(place: _Place, *, only_fields: bool = False) -> str:
    parts = []
    while place is not None:
        place, part, is_field = place
        if is_field or not only_fields:
            parts.append(part)
    return "".join(reversed(parts)).removeprefix(".")


def _struct(value: Any, struct: Struct, path: _Place, unknown: list[_Place], zeros: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(value, struct, struct, path)
    kept: dict[str, Any] = {}
    for name, given in value.items():
        known = struct.fields.get(name)
        where = path, f".{name}", True
        if known is None:
            unknown.append(where)
        elif given is not None:
            content = _value(given, known.type, struct, where, unknown, zeros)
            # An empty time is not a zero that somebody gave, and no time.
            if content or name not in struct.omitted or (zeros and known.type not in _TIMES):
                kept[name] = content
    return kept


def _value(value: Any, kind: Type, owner: Struct, path: _Place, unknown: list[_Place], zeros: bool) -> Any:
    if isinstance(kind, Scalar):
        return _scalar(value, kind.format, owner, path)
    if isinstance(kind, Struct):
        return _struct(value, kind, path, unknown, zeros)
    if isinstance(kind, List):
        if not isinstance(value, list):
            raise _wrong(value, kind, owner, path)
        return [
            _zero(kind.items)
            if item is None
            else _value(item, kind.items, owner, (path, f"[{index}]", False), unknown, zeros)
            for index, item in enumerate(value)
        ]
    if isinstance(kind, Map):
        if not isinstance(value, dict):
            raise _wrong(value, kind, owner, path)
        return {
            key: _zero(kind.values)
            if item is None
            else _value(item, kind.values, owner, (path, f".{key}", False), unknown, zeros)
            for key, item in value.items()
        }
    return value


def _zero(kind: Type) -> Any:
    """Return what a decoder in Go makes of ``null`` in a list or map."""
    if isinstance(kind, Scalar):
        return _ZEROS.get(kind.format, "")
    return [] if isinstance(kind, List) else {}


def _scalar(value: Any, form: Format, owner: Struct, path: _Place) -> Any:
    if form is Format.INT_OR_STRING:
        if isinstance(value, str) or (_is_integer(value) and abs(value) < _LIMITS[Format.INT32]):
            return value
    elif form is Format.QUANTITY:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return _quantity(value)
    elif form in _LIMITS:
        limit = _LIMITS[form]
        if _is_integer(value) and -limit <= value < limit:
            return value
    elif form is Format.BOOLEAN:
        if isinstance(value, bool):
            return value
    elif form is Format.DOUBLE:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    elif isinstance(value, str):
        return _text(value, form)
    raise _wrong(value, Scalar(form), owner, path)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _quantity(value: str | float) -> str:
    # Go trims it, and takes a number by its text (Quantity: UnmarshalJSON).
    text = value.strip() if isinstance(value, str) else repr(value)
    try:
        return quantity.canonical(text or "0")
    except ValueError:
        raise WrongType(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        ) from None


def _text(value: str, form: Format) -> str:
    if form is Format.BYTES:
        try:
            raw = base64_text.decode(value)
        except ValueError as error:
            raise WrongType(str(error)) from None
        return base64.b64encode(raw).decode()
    if form in (Format.TIME, Format.MICROTIME):
        return _time(value, form)
    return value


def _time(value: str, form: Format) -> str:
    """Return a time in canonical form; empty if it is Go's zero time, which means that the field is not set."""
    match = _TIME.fullmatch(value)
    try:
        if match is None:
            raise ValueError(value)
        moment = datetime.fromisoformat(match[1] + match[3]).astimezone(UTC)
    except (ValueError, OverflowError):
        raise WrongType(f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse') from None
    micro = f".{(match[2] or '0')[:6]:0<6}" if form is Format.MICROTIME else ""
    if moment == _NOT_SET and not micro.strip(".0"):
        return ""
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}{micro}Z"  # %Y is not padded


def _wrong(value: object, kind: Type, owner: Struct, path: _Place) -> WrongType:
    word = json_word(value)
    if isinstance(kind, Scalar) and kind.format in _LIMITS and word == "number":
        word = f"number {value}"
    # Go's decoder tells no indices, and no keys of maps.
    where = _text_of(path, only_fields=True)
    into = f"Go struct field {owner.short_name}.{where}" if where else "Go value"
    return WrongType(f"json: cannot unmarshal {word} into {into} of type {_go_type(kind)}")


def json_word(value: object) -> str:
    """Return what Go calls a value of JSON."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object" if isinstance(value, dict) else "null"


def _go_type(kind: Type) -> str:
    if isinstance(kind, Scalar):
        return _GO_TYPES.get(kind.format, str(kind.format))
    if isinstance(kind, List):
        return f"[]{_go_type(kind.items)}"
    if isinstance(kind, Map):
        return f"map[string]{_go_type(kind.values)}"
    if isinstance(kind, Anything):
        return "runtime.RawExtension"
    version, short = kind.name.rsplit(".", 2)[-2:]
    return f"{version}.{short}"
