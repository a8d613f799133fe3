"""Types of the table as OpenAPI schemas, in the two dialects that clients read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from podkeep.apiserver.schema.table import Kind, kubernetes
from podkeep.apiserver.schema.types import Anything, Field, Format, List, Map, Scalar, Struct, Type
from podkeep.base.frozen import FrozenStruct

_TIME = "io.k8s.apimachinery.pkg.apis.meta.v1.Time"
_MICRO_TIME = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime"
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
PATCH = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch"
DELETE_OPTIONS = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
STATUS = "io.k8s.apimachinery.pkg.apis.meta.v1.Status"
_NAMED_SCALARS = {
    Format.TIME: _TIME,
    Format.MICROTIME: _MICRO_TIME,
    Format.QUANTITY: _QUANTITY,
    Format.INT_OR_STRING: _INT_OR_STRING,
}
_SCALARS: Mapping[Format, dict[str, Any]] = {
    Format.STRING: {"type": "string"},
    Format.INT32: {"type": "integer", "format": "int32"},
    Format.INT64: {"type": "integer", "format": "int64"},
    Format.DOUBLE: {"type": "number", "format": "double"},
    Format.BOOLEAN: {"type": "boolean"},
    Format.BYTES: {"type": "string", "format": "byte"},
}


class Dialect(FrozenStruct):
    """OpenAPI v2 or v3: where definitions are, how a field refers to one, and those that are no structs."""

    prefix: str
    wraps: bool
    """References are within ``allOf``, so that something may stand beside them."""
    special: Mapping[str, dict[str, Any]] = msgspec.field(default_factory=dict)

    def reference(self, name: str) -> dict[str, Any]:
        found = {"$ref": f"{self.prefix}{name}"}
        return {"allOf": [found]} if self.wraps else found


_TIMES: dict[str, dict[str, Any]] = {
    _TIME: {"type": "string", "format": "date-time"},
    _MICRO_TIME: {"type": "string", "format": "date-time"},
    PATCH: {"type": "object"},
}
V2 = Dialect(
    "#/definitions/",
    False,
    {**_TIMES, _QUANTITY: {"type": "string"}, _INT_OR_STRING: {"type": "string", "format": "int-or-string"}},
)
_EITHER = [{"type": "integer"}, {"type": "string"}]
V3 = Dialect(
    "#/components/schemas/",
    True,
    {
        **_TIMES,
        _QUANTITY: {"oneOf": [{"type": "string"}, {"type": "number"}]},
        _INT_OR_STRING: {"format": "int-or-string", "oneOf": _EITHER},
    },
)


@cache
def descriptions() -> Mapping[str, str]:
    """Return what is said of types and fields, by ``Pod`` and ``Pod.spec`` with the names that types have in Go."""
    text = resources.files("podkeep.apiserver.discovery").joinpath("descriptions.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, str])


def definitions(names: Iterable[str], dialect: Dialect, owners: Mapping[str, list[Kind]]) -> dict[str, Any]:
    """Return the definitions of types, and of all that they refer to, by name.

    :param owners: the kinds that a type is, by its name.
    """
    found: dict[str, Any] = {}
    wanted = sorted(names, reverse=True)
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        if name in dialect.special:
            found[name] = dialect.special[name]
            continue
        references: set[str] = set()
        found[name] = _struct(kubernetes().struct(name), dialect, references)
        if kinds := owners.get(name):
            found[name]["x-kubernetes-group-version-kind"] = [kind._asdict() for kind in kinds]
        wanted += sorted(references - found.keys(), reverse=True)
    return dict(sorted(found.items()))


def _struct(struct: Struct, dialect: Dialect, references: set[str]) -> dict[str, Any]:
    said = descriptions()
    made: dict[str, Any] = {}
    if text := said.get(struct.short_name):
        made["description"] = text
    made["type"] = "object"
    properties = {}
    for name, item in sorted(struct.fields.items()):
        schema = _field(item, dialect, references)
        if text := said.get(f"{struct.short_name}.{name}") or said.get(f"*.{name}"):
            schema["description"] = text
        properties[name] = schema
    if properties:
        made["properties"] = properties
    if struct.required:
        made["required"] = sorted(struct.required)
    if struct.atomic:
        made["x-kubernetes-map-type"] = "atomic"
    return made


def _field(item: Field, dialect: Dialect, references: set[str]) -> dict[str, Any]:
    schema = _type(item.type, dialect, references)
    if isinstance(item.type, List):
        schema["x-kubernetes-list-type"] = str(item.type.list_type)
        if item.type.keys:
            schema["x-kubernetes-list-map-keys"] = list(item.type.keys)
    elif isinstance(item.type, Map) and item.type.atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    if item.patch_strategy:
        schema["x-kubernetes-patch-strategy"] = ",".join(sorted(item.patch_strategy))
    if item.patch_merge_key:
        schema["x-kubernetes-patch-merge-key"] = item.patch_merge_key
    return schema


def _type(kind: Type, dialect: Dialect, references: set[str]) -> dict[str, Any]:
    if isinstance(kind, Scalar):
        name = _NAMED_SCALARS.get(kind.format)
        if name is None:
            # A copy: the field's description is put into it.
            return dict(_SCALARS[kind.format])
        references.add(name)
        return dialect.reference(name)
    if isinstance(kind, Struct):
        references.add(kind.name)
        return dialect.reference(kind.name)
    if isinstance(kind, List):
        return {"type": "array", "items": _type(kind.items, dialect, references)}
    if isinstance(kind, Map):
        return {"type": "object", "additionalProperties": _type(kind.values, dialect, references)}
    assert isinstance(kind, Anything)
    return {"type": "object"}
