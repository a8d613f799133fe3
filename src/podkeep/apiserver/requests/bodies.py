"""Bodies of requests: from bytes to objects held against their type, and what is said of fields that it does not have.

The texts are kube-apiserver's (``endpoints/handlers``). Owns: limits of bytes and depth, duplicate keys, unknown
fields. Does not own: types of fields (``schema.decode``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from podkeep.api.fields import first_of
from podkeep.apiserver.meta import values
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.meta.status import StatusError, bad_request, too_large
from podkeep.apiserver.requests.media_types import JSON, PROTOBUF
from podkeep.apiserver.schema import protobuf
from podkeep.apiserver.schema.decode import WrongType, decode, json_word
from podkeep.apiserver.schema.protobuf import NotProtobuf, TooManyFields
from podkeep.apiserver.schema.table import Kind, kubernetes
from podkeep.apiserver.schema.types import Struct
from podkeep.base.errors import InvalidArgument
from podkeep.http.messages import Refused, Request

MAX_BYTES = 3 << 20
MAX_DEPTH = 64
MAX_PATCH_VALUES = 50_000
"""JSON values of a JSON patch, which are not validated one by one: enough for as many operations as it may have."""
_SUMMARY_CHARACTERS = 30
_LONG_NUMBER = re.compile(rb"[0-9]{19}|[0-9][eE]")
_BYTE = re.compile(r" \(byte ([0-9]+)\)$")


class FieldValidation(StrEnum):
    """What is done about fields that are unknown or given twice."""

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


class Malformed(Exception):
    """A body is not JSON or not YAML; the text says where."""


@dataclass(slots=True)
class Parsed:
    """The plain value of a body, and what upstream's strict decoders say of what its text says twice, up to a bound."""

    value: Any
    duplicates: list[str] = field(default_factory=list)
    """Of JSON: paths."""
    repeated: list[str] = field(default_factory=list)
    """Of YAML: lines and keys."""

    @property
    def complaints(self) -> list[str]:
        """What is said of them, that of YAML first."""
        yaml = [f"yaml: unmarshal errors:\n{chr(10).join(self.repeated)}"] if self.repeated else []
        return yaml + [f'duplicate field "{path}"' for path in self.duplicates]


async def read(request: Request) -> bytes:
    """Return the whole body of a request.

    :raises StatusError: 413, if it is too long.
    """
    try:
        return await request.body.read(MAX_BYTES)
    except Refused as refusal:
        if refusal.status != 413:
            raise
        raise too_large(f"limit is {MAX_BYTES}") from refusal


def parse(data: bytes, media_type: str, *, strict: bool, most: int | None = None) -> Parsed:
    """Return the value of a body.

    :param strict: also look for keys that are given twice.
    :param most: how many values it may have; None: as many as an object, whose managed fields count apart.
    :raises Malformed: if it is not of its media type.
    :raises StatusError: 400, if it nests too deeply; 413, if it has too many values.
    """
    # kubectl sends JSON as application/apply-patch+yaml: what begins like JSON is tried as that first.
    if media_type != JSON and data.lstrip()[:1] != b"{":
        return _yaml(data, strict=strict)
    # Before anything is decoded: 3 MiB can be more than a million values.
    if _commas(data) >= (values.MAX_VALUES + values.MAX_MANAGED_VALUES if most is None else most):
        if media_type != JSON:
            return _yaml(data, strict=strict)
        raise values.too_many(values.MAX_VALUES if most is None else most)
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.DecodeError as error:
        if media_type != JSON:
            return _yaml(data, strict=strict)  # a mapping in braces is YAML, too
        raise Malformed(_where(data, str(error))) from None
    except UnicodeDecodeError as error:
        raise Malformed(f"{_position(data, error.start)}: not UTF-8") from None
    # With fewer brackets it cannot nest too deeply: hardly any body has to be walked.
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH or _LONG_NUMBER.search(data):
        value = _bounded(value, 0)
    if data.count(b",") + data.count(b"{") + data.count(b"[") >= values.MAX_VALUES:  # those of texts count here, too
        _require_few(value, most)
    return Parsed(value, _duplicates(data) if strict else [])


def _yaml(data: bytes, *, strict: bool) -> Parsed:
    from podkeep.api import documents  # clients send JSON, and the start is shorter without it

    repeated: list[tuple[str, int]] = []

    def note(key: str, line: int) -> None:
        if strict:
            repeated.append((key, line))

    try:
        # Of a mapping its keys are nodes, too.
        # They are counted while the text is scanned: to compose 3 MiB of the smallest takes 9 to 20 s.
        found = documents.parse(data.decode(), source="body", on_repeated=note, max_nodes=2 * values.MAX_VALUES)
    except UnicodeDecodeError as error:
        raise Malformed(f"{_position(data, error.start)}: not UTF-8") from None
    except documents.TooManyValues:
        raise values.too_many(values.MAX_VALUES) from None
    except InvalidArgument as error:
        raise Malformed(error.message.removeprefix("body: ")) from None
    value = _bounded(found[0].value, 0) if found else None
    values.require_few(value)
    told = (f"  line {line}: key {msgspec.json.encode(key).decode()} already set in map" for key, line in repeated)
    return Parsed(value, repeated=first_of(told))


def _commas(data: bytes) -> int:
    """Return how many commas of a JSON text are between values: there is at least one value more."""
    count = data.count(b",")
    if count < values.MAX_VALUES:
        return count
    # A backslash is in a text, and no quotation mark of those that are left is.
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    return b"".join(plain.split(b'"')[::2]).count(b",")


def _require_few(value: Any, most: int | None) -> None:
    if most is None:
        values.require_few(value)
    elif values.has_more(value, most):
        raise values.too_many(most)


def _where(data: bytes, problem: str) -> str:
    match = _BYTE.search(problem)
    at = int(match[1]) if match else len(data)
    return f"{_position(data, at)}: {_BYTE.sub('', problem)}"


def _position(data: bytes, at: int) -> str:
    return f"line {data.count(10, 0, at) + 1}, column {at - data.rfind(10, 0, at)}"


def _bounded(value: Any, depth: int) -> Any:
    """Return a value with the numbers that Kubernetes would make of it.

    :raises StatusError: 400, if it nests too deeply or has a number that no computer has.
    """
    if depth > MAX_DEPTH:
        raise _too_deep()
    if isinstance(value, dict):
        return {name: _bounded(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_bounded(item, depth + 1) for item in value]
    # Go reads a number that is no int64 as a float64.
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        try:
            return float(value)
        except OverflowError:
            raise bad_request("a number is out of range") from None
    if (isinstance(value, float) and value != value) or value in (float("inf"), float("-inf")):
        raise bad_request("a number is out of range")
    return value


def _too_deep() -> StatusError:
    return bad_request(f"the body nests more than {MAX_DEPTH} levels deep")


class _Twice(dict[str, Any]):
    """An object of which a text has ``names`` several times."""

    names: frozenset[str] = frozenset()


def _duplicates(data: bytes) -> list[str]:
    """Return the paths of fields that a JSON text has twice. It is known to be JSON."""
    found: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) == len(pairs):
            return made
        # Sets: a body can have 10,000 keys twice, and looking for each in a list would take seconds.
        seen: set[str] = set()
        twice = _Twice(made)
        twice.names = frozenset(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        found.append("")
        return twice

    try:
        value = json.loads(data, object_pairs_hook=collect)
    except (ValueError, RecursionError):
        return []
    return first_of("".join(path).removeprefix(".") for path in _paths(value, ())) if found else []


def _paths(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of what is there twice, in parts: as texts, a long name would be in all those below it."""
    if isinstance(value, dict):
        for name, item in value.items():
            here = (*path, f".{name}")
            if isinstance(value, _Twice) and name in value.names:
                yield here
            yield from _paths(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _paths(item, (*path, f"[{index}]"))


def decode_object(data: bytes, media_type: str, kind: Kind, validation: FieldValidation, warnings: list[str]) -> Object:
    """Return the object that a body has, held against its type.

    :param kind: what is expected; a body may leave it out.
    :raises StatusError: 400, if it is something else, or malformed, or has fields that ``validation`` refuses.
    """
    strict = validation is not FieldValidation.IGNORE
    try:
        parsed = _protobuf(data, kind) if media_type == PROTOBUF else parse(data, media_type, strict=strict)
    except Malformed as error:
        raise _unrecognized(kind, _parse_error(error, media_type), data) from None
    value = parsed.value
    if not isinstance(value, dict):
        what = json_word(value)
        why = (
            f"couldn't get version/kind; json parse error: json: cannot unmarshal {what} into Go value of type struct "
            '{ APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
        )
        raise _unrecognized(kind, why, data)
    given = given_kind(value, kind)
    if given != kind:
        raise _another_kind(given, kind)
    try:
        decoded = decode(value, kubernetes().kind(kind))
    except WrongType as error:
        raise _cannot_be_handled(kind, str(error)) from None
    complaints = [f'unknown field "{path}"' for path in decoded.unknown]
    complaints = parsed.complaints + complaints if parsed.repeated else complaints + parsed.complaints
    if complaints and validation is FieldValidation.STRICT:
        raise _cannot_be_handled(kind, f"strict decoding error: {', '.join(complaints)}")
    if strict:
        warnings.extend(complaints)
    return decoded.value


def _protobuf(data: bytes, kind: Kind) -> Parsed:
    """Return an object as the JSON that it could be, with the kind that it says it has."""
    try:
        version, name, raw = protobuf.envelope(data)
        named = {"apiVersion": version, "kind": name}
        struct = kubernetes().kind(kind)
        return Parsed(named | _from_protobuf(raw, struct) if given_kind(named, kind) == kind else named)
    except NotProtobuf as error:
        raise Malformed(str(error)) from None


def _from_protobuf(raw: bytes, struct: Struct) -> dict[str, Any]:
    try:
        value = protobuf.to_json(raw, struct, values.MAX_VALUES)
    except TooManyFields:
        raise values.too_many(values.MAX_VALUES) from None
    values.require_few(value)  # there may be JSON within it
    return value


def _parse_error(error: Malformed, media_type: str) -> str:
    if media_type == PROTOBUF:
        return str(error)
    if media_type == JSON:
        return f"couldn't get version/kind; json parse error: {error}"
    return f"error converting YAML to JSON: yaml: {error}"


_EVICTION = Kind("policy", "v1", "Eviction")
"""It is taken as ``v1beta1``, too, which had the same fields: clients before 1.22 send that (``EvictionREST``)."""


def given_kind(value: Mapping[str, Any], expected: Kind) -> Kind:
    """Return the kind that an object says it has; what it leaves out is as expected.

    :raises StatusError: 400, if it is not text.
    """
    version, kind = value.get("apiVersion") or expected.api_version, value.get("kind") or expected.kind
    if not isinstance(version, str) or not isinstance(kind, str):
        raise bad_request("apiVersion and kind must be strings")
    group, separator, name = version.rpartition("/")
    given = Kind(group if separator else "", name, kind)
    return _EVICTION if given == _EVICTION._replace(version="v1beta1") else given


def _another_kind(given: Kind, expected: Kind) -> StatusError:
    if given not in kubernetes().kinds:
        return _cannot_be_handled(
            expected, f'no kind "{given.kind}" is registered for version "{given.api_version}"', given
        )
    if given.kind == expected.kind:
        return bad_request(
            f"the API version in the data ({given.api_version}) does not match the expected API version"
            f" ({expected.api_version})"
        )
    return _cannot_be_handled(expected, given.no_conversion_to(expected), given)


def _cannot_be_handled(kind: Kind, why: str, given: Kind | None = None) -> StatusError:
    said = given or kind
    return bad_request(f'{said.kind} in version "{said.version}" cannot be handled as a {kind.kind}: {why}')


def _unrecognized(kind: Kind, why: str, data: bytes) -> StatusError:
    cut = data[:_SUMMARY_CHARACTERS]
    shown = cut.decode(errors="replace") if data[:1] == b"{" else cut.hex()
    more = " ..." if len(data) > len(cut) else ""
    summary = f"{shown}{more}" if data else "<empty>"
    return bad_request(f"the object provided is unrecognized (must be of type {kind.kind}): {why} ({summary})")


def decode_as(data: bytes, media_type: str, struct: Struct) -> Object:
    """Return a body held against a type, whatever it says of its kind; unknown fields are dropped.

    :raises StatusError: 400, if it is malformed.
    """
    try:
        if media_type == PROTOBUF:
            version, kind, raw = protobuf.envelope(data)
            return {"apiVersion": version, "kind": kind} | decode(_from_protobuf(raw, struct), struct).value
        value = parse(data, media_type, strict=False).value
        return decode(value, struct).value
    except NotProtobuf as error:
        raise bad_request(str(error)) from None
    except Malformed as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None
    except WrongType as error:
        raise bad_request(str(error)) from None
