"""Strict decoding: plain values to API types, every wrong field found in one pass and named by its path.

Unlike a JSON decoder this accepts ``null`` as "not set" (as Kubernetes does) and goes on after an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from podkeep.api.fields import FieldErrors
from podkeep.api.scalars import Form
from podkeep.base.text import base64_text, quantity
from podkeep.base.text.similar import similar

Struct = TypeVar("Struct", bound=msgspec.Struct)

_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LIMITS = {Form.INT32: 1 << 31, Form.INT64: 1 << 63}
_ZERO: Mapping[Any, Any] = {str: "", int: 0, bool: False}
_WORDS: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "list",
    dict: "object",
    NoneType: "null",
}
_WRONG = object()
"""Stands for a value that could not be decoded; its error is already noted."""


def decode(kind: type[Struct], value: Mapping[str, Any], errors: FieldErrors, path: str = "") -> Struct:
    """Return ``value`` as a ``kind``; wrong or unknown fields are noted in ``errors`` and left at their default.

    Unknown ones are not noted if ``errors`` is tolerant.
    """
    known = _fields(kind)
    given: dict[str, Any] = {}
    for name, content in value.items():
        where = join(path, name)
        if name not in known:
            if not errors.tolerant:
                errors.add(where, _unknown(name, known))
        elif content is not None:
            field = known[name]
            decoded = _value(field.type, content, where, errors)
            if decoded is not _WRONG:
                given[field.name] = decoded
    for field in known.values():
        if (
            field.name not in given
            and field.default is msgspec.NODEFAULT
            and field.default_factory is msgspec.NODEFAULT
        ):
            # The struct cannot be made without it; what is required and empty is for validation to say, or noted
            # already.
            given[field.name] = _ZERO.get(_plain_type(field.type))
    return kind(**given)


def join(path: str, name: str) -> str:
    """Return the path of field ``name`` inside ``path``; names that are no identifiers are put in brackets."""
    if not _PLAIN_KEY.fullmatch(name):
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _unknown(name: str, known: Mapping[str, object]) -> str:
    near = similar(name, known)
    return f"unknown field (did you mean {near[0]}?)" if near else "unknown field"


def _plain_type(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _value(kind: Any, value: Any, path: str, errors: FieldErrors) -> Any:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
        return _value(kind, value, path, errors)
    if origin is Literal:
        return _choice(get_args(kind), value, path, errors)
    if origin is Annotated:
        return _formed(get_args(kind)[1], value, path, errors)
    if origin is tuple:
        return _sequence(get_args(kind)[0], value, path, errors)
    if origin is dict:
        return _mapping(get_args(kind)[1], value, path, errors)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return (
            decode(kind, value, errors, path) if isinstance(value, dict) else _expected("object", value, path, errors)
        )
    if kind is bytes:
        return _base64(value, path, errors)
    if kind is Any:
        return value
    # Not isinstance(): a bool is an int in Python, and no number in the API.
    return value if type(value) is kind else _expected(_WORDS.get(kind, kind.__name__), value, path, errors)


def _choice(choices: tuple[str, ...], value: Any, path: str, errors: FieldErrors) -> Any:
    if not isinstance(value, str):
        return _expected("string", value, path, errors)
    if value in choices:
        return value
    errors.unsupported(path, value, [choice for choice in choices if choice])
    return _WRONG


def _formed(form: Form, value: Any, path: str, errors: FieldErrors) -> Any:
    if form in _LIMITS:
        if type(value) is not int:
            return _expected("integer", value, path, errors)
        if not -_LIMITS[form] <= value < _LIMITS[form]:
            errors.invalid(path, value, f"must be {form.value}")
            return _WRONG
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if form is Form.INT_OR_STRING and type(value) is int:
        return value
    if form is Form.QUANTITY and number:
        value = str(value)
    if not isinstance(value, str):
        return _expected("quantity" if form is Form.QUANTITY else "string", value, path, errors)
    if form is Form.QUANTITY:
        try:
            quantity.parse(value)
        except ValueError as error:
            errors.invalid(path, value, str(error))
            return _WRONG
    if form is Form.TIME and not _TIME.fullmatch(value):
        errors.invalid(path, value, "must be a time such as 2026-01-31T08:00:00Z")
        return _WRONG
    return value


def _sequence(item: Any, value: Any, path: str, errors: FieldErrors) -> Any:
    if not isinstance(value, list):
        return _expected("list", value, path, errors)
    decoded = []
    for index, content in enumerate(value):
        where = f"{path}[{index}]"
        one = _expected(_name(item), None, where, errors) if content is None else _value(item, content, where, errors)
        if one is not _WRONG:
            decoded.append(one)
    return tuple(decoded)


def _mapping(item: Any, value: Any, path: str, errors: FieldErrors) -> Any:
    if not isinstance(value, dict):
        return _expected("object", value, path, errors)
    decoded = {}
    for key, content in value.items():
        # A null value in a map of texts is the empty text, as in Kubernetes' own decoder.
        one = _value(item, "" if content is None else content, f"{path}[{key}]", errors)
        if one is not _WRONG:
            decoded[key] = one
    return decoded


def _base64(value: Any, path: str, errors: FieldErrors) -> Any:
    if not isinstance(value, str):
        return _expected("base64 text", value, path, errors)
    try:
        return base64_text.decode(value)
    except ValueError:
        errors.add(path, "expected base64 text; plain text belongs in stringData or data of a ConfigMap")
        return _WRONG


def _expected(wanted: str, value: Any, path: str, errors: FieldErrors) -> Any:
    # What was meant as a text and is none: YAML takes 1, on and no for something else.
    advice = ": write it in quotes" if wanted == "string" and isinstance(value, bool | int | float) else ""
    errors.add(path, f"expected {wanted}, got {type_name(value)}{advice}")
    return _WRONG


def _name(kind: Any) -> str:
    kind = _plain_type(kind)
    return "object" if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else _WORDS.get(kind, "value")


def type_name(value: Any) -> str:
    """Return what a value from a manifest is, in the words of YAML and JSON."""
    return _WORDS.get(type(value), type(value).__name__)
