"""OpenAPI v2 as protobuf, in the messages of gnostic (``openapiv2/OpenAPIv2.proto``): clients ask for nothing else.

As much of the format as the documents of ``openapi.py`` have. Numbers are those of the fields there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_LENGTH_DELIMITED = 2


def document(swagger: Mapping[str, Any]) -> bytes:
    info = swagger["info"]
    return b"".join(
        (
            _text(1, swagger["swagger"]),
            _bytes(2, _text(1, info["title"]) + _text(2, info["version"])),
            _bytes(8, b"".join(_named(2, path, _path_item(item)) for path, item in swagger["paths"].items())),
            _bytes(9, b"".join(_named(1, name, _schema(item)) for name, item in swagger["definitions"].items())),
        )
    )


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _bytes(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return _bytes(number, text.encode()) if text else b""


def _flag(number: int, value: bool) -> bytes:
    return _varint(number << 3) + b"\x01" if value else b""


def _named(number: int, name: str, value: bytes) -> bytes:
    """Return one of a map's entries: ``NamedPathItem``, ``NamedSchema``, ``NamedAny`` and others are alike."""
    return _bytes(number, _text(1, name) + _bytes(2, value))


def _extensions(number: int, item: Mapping[str, Any]) -> bytes:
    """Return ``vendor_extension``; the value of each is YAML, of which JSON is a part."""
    return b"".join(
        _named(number, name, _text(2, msgspec.json.encode(value).decode()))
        for name, value in item.items()
        if name.startswith("x-")
    )


_METHODS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}


def _path_item(item: Mapping[str, Any]) -> bytes:
    operations = (_bytes(_METHODS[name], _operation(value)) for name, value in item.items() if name in _METHODS)
    return b"".join((*operations, *(_bytes(9, _parameter(value)) for value in item["parameters"])))


def _operation(item: Mapping[str, Any]) -> bytes:
    responses = (_named(1, code, _bytes(1, _response(value))) for code, value in item["responses"].items())
    return b"".join(
        (
            _text(5, item["operationId"]),
            *(_text(6, value) for value in item["produces"]),
            *(_text(7, value) for value in item["consumes"]),
            *(_bytes(8, _parameter(value)) for value in item["parameters"]),
            _bytes(9, b"".join(responses)),
            _extensions(13, item),
        )
    )


def _response(item: Mapping[str, Any]) -> bytes:
    schema = _bytes(2, _bytes(1, _schema(item["schema"]))) if "schema" in item else b""
    return _text(1, item["description"]) + schema


def _parameter(item: Mapping[str, Any]) -> bytes:
    name, where = _text(4, item["name"]), _text(2, item["in"])
    if item["in"] == "body":
        body = _text(2, item["name"]) + _text(3, item["in"]) + _bytes(5, _schema(item["schema"]))
        return _bytes(1, _bytes(1, body))
    required, said = _flag(1, item.get("required", False)), _text(3, item.get("description", ""))
    if item["in"] == "query":
        query = required + where + said + name + _text(6, item["type"])
        return _bytes(1, _bytes(2, _bytes(3, query)))
    path = required + where + said + name + _text(5, item["type"])
    return _bytes(1, _bytes(2, _bytes(4, path)))


def _schema(item: Mapping[str, Any]) -> bytes:
    parts = [
        _text(1, item.get("$ref", "")),
        _text(2, item.get("format", "")),
        _text(4, item.get("description", "")),
        *(_text(19, name) for name in item.get("required", ())),
    ]
    if "additionalProperties" in item:
        parts.append(_bytes(21, _bytes(1, _schema(item["additionalProperties"]))))
    if "type" in item:
        parts.append(_bytes(22, _text(1, item["type"])))
    if "items" in item:
        parts.append(_bytes(23, _bytes(1, _schema(item["items"]))))
    if "properties" in item:
        properties = (_named(1, name, _schema(value)) for name, value in item["properties"].items())
        parts.append(_bytes(25, b"".join(properties)))
    parts.append(_extensions(31, item))
    return b"".join(parts)
