"""Reading the table: types by name and by group, version and kind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from podkeep.apiserver.schema.types import Anything, Field, Format, List, ListType, Map, Scalar, Struct, Type

_SCALARS = {str(item): Scalar(item) for item in Format} | {"any": Anything()}


class Kind(NamedTuple):
    """A group (empty for the core group), version and kind."""

    group: str
    version: str
    kind: str

    @property
    def api_version(self) -> str:
        """The field ``apiVersion``: ``v1``, ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def no_conversion_to(self, other: Kind) -> str:
        """Return why an object of this kind is none of another, as kube-apiserver says it."""
        # It converts to the types that it works with: one package for each group, and one type for all events.
        package = other.group.partition(".")[0]
        into = "core" if package in ("", "events") else package
        return f"converting ({self.version}.{self.kind}) to ({into}.{other.kind}): unknown conversion"


class Table:
    """The types of an interface. Each is made when it is first asked for, and once.

    :param definitions: by OpenAPI's names; the file beside this module shows the shape.
    """

    def __init__(self, definitions: Mapping[str, Mapping[str, Any]], digest: bytes = b"") -> None:
        self.digest = digest
        """Tells this table from others, as long as they come from files."""
        self._definitions = definitions
        self._structs: dict[str, Struct] = {}
        self._kinds = {Kind(*given["kind"]): name for name, given in definitions.items() if "kind" in given}

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset(self._kinds)

    def kind(self, kind: Kind) -> Struct:
        """Return the type of a kind.

        :raises KeyError: if there is none.
        """
        return self.struct(self._kinds[kind])

    def struct(self, name: str) -> Struct:
        """Return a type by OpenAPI's name.

        :raises KeyError: if there is none.
        """
        found = self._structs.get(name)
        if found is None:
            given = self._definitions[name]
            fields: dict[str, Field] = {}
            required, always = (frozenset(given.get(key, ())) for key in ("required", "always"))
            found = Struct(name, fields, required, given.get("mapType") == "atomic", always, _omitted(given, required))
            self._structs[name] = found  # before its fields: a type may contain itself
            fields.update((field, self._field(value)) for field, value in given["fields"].items())
        return found

    def _field(self, given: str | Mapping[str, Any]) -> Field:
        if isinstance(given, str):
            return Field(self._type(given, {}))
        return Field(
            self._type(given["type"], given),
            frozenset(filter(None, given.get("patchStrategy", "").split(","))),
            given.get("patchMergeKey", ""),
            given.get("featureGate", ""),
        )

    def _type(self, text: str, options: Mapping[str, Any]) -> Type:
        if text.startswith("[]"):
            items = self._type(text.removeprefix("[]"), {})
            list_type = ListType(options.get("listType", ListType.ATOMIC))
            return List(items, list_type, tuple(options.get("listMapKeys", ())), options.get("listKeyDefaults", {}))
        if text.startswith("map[]"):
            return Map(self._type(text.removeprefix("map[]"), {}), options.get("mapType") == "atomic")
        if text in _SCALARS:
            return _SCALARS[text]
        struct = self.struct(text)
        if options.get("mapType") == "granular" and struct.atomic:  # a field may overrule its type
            return structs.replace(struct, atomic=False)
        return struct


def _omitted(given: Mapping[str, Any], required: frozenset[str]) -> frozenset[str]:
    """Return the fields of a struct that are left out when they are empty.

    The table says it of scalars alone: lists and maps are left out unless they are required, and an empty time is one
    that is not set.
    """
    types = {name: value if isinstance(value, str) else value["type"] for name, value in given["fields"].items()}
    several = {name for name, text in types.items() if text.startswith(("[]", "map[]"))}
    times = {name for name, text in types.items() if text in (Format.TIME, Format.MICROTIME)}
    return frozenset(given.get("omitted", ())) | (several - required) | times


@cache
def kubernetes() -> Table:
    """Return the table of Kubernetes 1.36, with what podkeep adds to it."""
    text = resources.files("podkeep.apiserver.schema").joinpath("kubernetes.json").read_bytes()
    return Table(msgspec.json.decode(text), hashlib.sha256(text).digest())
