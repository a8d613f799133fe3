"""Objects in Kubernetes' protobuf, as newer clients of Go send them, to the JSON that the same clients would send.

``protobuf.json`` has the field numbers of each type of the table (k8s.io/api: ``generated.proto``); fields of an object
within the numbers stand, in JSON, beside it. What is zero is there as well, although these clients would leave some of
it out: the decoder drops that. Answers are never protobuf: these clients take JSON as well.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

import msgspec

from podkeep.apiserver.schema.types import Anything, Format, List, Map, Scalar, Struct, Type

MAGIC = b"k8s\x00"
"""What a body begins with (apimachinery: ``runtime/serializer/protobuf``)."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VALUE_FIELDS = 16
"""Of a message that is one value: an entry of a map, a time, what a body begins with. None has more than four."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Numbers: TypeAlias = Mapping[str, Any]


class NotProtobuf(Exception):
    """A body is not protobuf, or not of the type that it should have; the text says why."""


class TooManyFields(Exception):
    """A body has more fields than are taken."""


class _Budget:
    """How many fields are taken yet of a body: each takes some 4 µs, and nothing else is served meanwhile."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooManyFields


@cache
def _numbers() -> Mapping[str, Numbers]:
    text = resources.files("podkeep.apiserver.schema").joinpath("protobuf.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, dict[str, Any]])


def envelope(data: bytes) -> tuple[str, str, bytes]:
    """Return ``apiVersion`` and ``kind`` of a body, and the object (message ``runtime.Unknown``).

    :raises NotProtobuf: if it is no such message.
    """
    if not data.startswith(MAGIC):
        raise NotProtobuf("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    meta, raw = b"", b""
    for number, value in _value_fields(data[len(MAGIC) :]):
        if number == 1:
            meta = _as_bytes(value)
        elif number == 2:
            raw = _as_bytes(value)
        # runtime.Unknown: contentEncoding and contentType.
        elif value and number in (3, 4):
            raise NotProtobuf("the object has an encoding of its own")
    named = {number: _text(value) for number, value in _value_fields(meta)}
    return named.get(1, ""), named.get(2, ""), raw


def to_json(data: bytes, kind: Struct, most: int) -> dict[str, Any]:
    """Return an object as JSON that the decoder holds against its type.

    :param most: fields that it may have, those of all its parts together.
    :raises NotProtobuf: if it is not of this type.
    :raises TooManyFields: if it has more.
    """
    return _object(data, kind, _Budget(most))


def _object(data: bytes, kind: Struct, budget: _Budget) -> dict[str, Any]:
    made: dict[str, Any] = {}
    _fill(made, data, kind, _numbers().get(kind.name, {}), budget)
    return made


def _fill(made: dict[str, Any], data: bytes, kind: Struct, numbers: Numbers, budget: _Budget) -> None:
    for number, value in _fields(data):
        budget.take()
        name = numbers.get(str(number))
        if name is None:
            continue
        if not isinstance(name, str):
            _fill(made, _as_bytes(value), kind, name, budget)
            continue
        field = kind.fields.get(name)
        if field is None:
            continue
        if isinstance(field.type, List):
            made.setdefault(name, []).append(_value(value, field.type.items, budget))
        elif isinstance(field.type, Map):
            key, item = _entry(_as_bytes(value), field.type.values, budget)
            made.setdefault(name, {})[key] = item
        else:
            found = _value(value, field.type, budget)
            if found is not None:
                made[name] = found


def _entry(data: bytes, kind: Type, budget: _Budget) -> tuple[str, Any]:
    found = dict(_value_fields(data))
    # What is zero may be missing.
    return _text(found.get(1, b"")), _value(found.get(2, 0 if _is_number(kind) else b""), kind, budget)


def _is_number(kind: Type) -> bool:
    return isinstance(kind, Scalar) and kind.format in (Format.INT32, Format.INT64, Format.BOOLEAN)


def _value(value: int | bytes, kind: Type, budget: _Budget) -> Any:
    if isinstance(kind, Scalar):
        return _scalar(value, kind.format)
    data = _as_bytes(value)
    if isinstance(kind, Struct):
        return _object(data, kind, budget)
    if isinstance(kind, Anything):
        return _anything(data)
    if isinstance(kind, List):  # a list within a map is a message with one field
        return [_item(item, kind.items, budget) for _, item in _fields(data)]
    raise NotProtobuf("a map within a list")


def _item(value: int | bytes, kind: Type, budget: _Budget) -> Any:
    budget.take()
    return _value(value, kind, budget)


def _scalar(value: int | bytes, form: Format) -> Any:
    if form in (Format.INT32, Format.INT64):
        return _signed(value)
    if form is Format.BOOLEAN:
        return bool(_as_number(value))
    if form is Format.DOUBLE:
        return struct.unpack("<d", _as_number(value).to_bytes(8, "little"))[0]
    data = _as_bytes(value)
    if form is Format.BYTES:
        return base64.b64encode(data).decode()
    if form is Format.STRING:
        return _text(data)
    found = dict(_value_fields(data))
    if form is Format.QUANTITY:
        return _text(found.get(1, b""))
    if form is Format.INT_OR_STRING:
        return _text(found.get(3, b"")) if _as_number(found.get(1, 0)) else _signed(found.get(2, 0))
    return _time(found, micro=form is Format.MICROTIME)


def _time(found: Mapping[int, int | bytes], *, micro: bool) -> str | None:
    if not found:
        return None
    try:
        moment = _EPOCH + timedelta(seconds=_signed(found.get(1, 0)), microseconds=_signed(found.get(2, 0)) // 1000)
    except OverflowError:
        raise NotProtobuf("a time is out of range") from None
    part = f".{moment.microsecond:06d}" if micro else ""
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}{part}Z"


def _anything(data: bytes) -> Any:
    raw = _as_bytes(dict(_value_fields(data)).get(1, b""))
    try:
        return msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotProtobuf("an embedded object is not JSON") from None


def _text(value: int | bytes) -> str:
    try:
        return _as_bytes(value).decode()
    except UnicodeDecodeError:
        raise NotProtobuf("a text is not UTF-8") from None


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise NotProtobuf("a field has another type than its number says")
    return value


def _as_number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise NotProtobuf("a field has another type than its number says")
    return value


def _signed(value: int | bytes) -> int:
    number = _as_number(value)
    # A negative int32 is a varint of 64 bits as well (protobuf.dev: Encoding).
    return number - (1 << 64) if number >= 1 << 63 else number


def _value_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message that is one value, which are not counted."""
    for count, field in enumerate(_fields(data)):
        if count == _MAX_VALUE_FIELDS:
            raise NotProtobuf(f"a message that is one value has more than {_MAX_VALUE_FIELDS} fields")
        yield field


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message: numbers, and bytes of what has a length."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire, 0)
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif not size:
            raise NotProtobuf(f"proto: illegal wireType {wire}")
        if at + size > end:
            raise NotProtobuf("unexpected EOF")
        piece = data[at : at + size]
        at += size
        yield number, piece if wire == _BYTES else int.from_bytes(piece, "little")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise NotProtobuf("unexpected EOF")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            raise NotProtobuf("proto: integer overflow")
