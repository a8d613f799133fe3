"""The types of fields, in the terms of Kubernetes' OpenAPI extensions (``x-kubernetes-list-type`` and others)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec

from podkeep.base.frozen import FrozenStruct


class Format(StrEnum):
    """What a scalar may hold."""

    STRING = "string"
    INT32 = "int32"
    INT64 = "int64"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    BYTES = "bytes"  # base64
    TIME = "time"  # RFC 3339, whole seconds
    MICROTIME = "microtime"  # RFC 3339, six digits
    QUANTITY = "quantity"
    INT_OR_STRING = "int-or-string"


class ListType(StrEnum):
    """How two versions of a list become one in a server-side apply (Kubernetes: ``listType``)."""

    ATOMIC = "atomic"
    SET = "set"
    MAP = "map"


class Scalar(FrozenStruct):
    """One value."""

    format: Format


class Anything(FrozenStruct):
    """Any JSON, not looked at and never merged: ``FieldsV1``, ``RawExtension``."""


class List(FrozenStruct):
    """A list; ``keys`` are the fields that tell the items of a ``map`` list apart, with what a missing one means."""

    items: Type
    list_type: ListType = ListType.ATOMIC
    keys: tuple[str, ...] = ()
    key_defaults: Mapping[str, str] = msgspec.field(default_factory=dict)


class Map(FrozenStruct):
    """An object with any keys."""

    values: Type
    atomic: bool = False


class Field(FrozenStruct):
    """A field of a struct.

    ``patch_strategy`` and ``patch_merge_key`` are for strategic merge patches; ``feature_gate`` names the gate of a
    field that is podkeep's own.
    """

    type: Type
    patch_strategy: frozenset[str] = frozenset()
    patch_merge_key: str = ""
    feature_gate: str = ""


class Struct(FrozenStruct, eq=False):
    """An object with known fields. ``name`` is OpenAPI's: ``io.k8s.api.core.v1.Pod``.

    ``always`` are the structs and lists among them that Go's type has also when they are empty: no pointers to structs,
    no lists that are left out. ``omitted`` are those that it leaves out when they are empty, 0 or false: no pointers to
    scalars.
    """

    name: str
    fields: Mapping[str, Field]
    required: frozenset[str] = frozenset()
    atomic: bool = False
    always: frozenset[str] = frozenset()
    omitted: frozenset[str] = frozenset()

    def __repr__(self) -> str:  # without its fields: a type may contain itself
        return f"Struct({self.name!r})"

    @property
    def short_name(self) -> str:
        """The name in Go: ``Pod``."""
        return self.name.rpartition(".")[2]


Type: TypeAlias = Scalar | Anything | List | Map | Struct
