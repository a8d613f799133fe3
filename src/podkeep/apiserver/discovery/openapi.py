"""OpenAPI: what is served, for clients that check, explain and merge with it; v3 by group and version, and v2.

Made of the catalog and the table when it is first asked for. Hashes come from what it is made of, so that the list of
documents costs none of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from podkeep import __version__
from podkeep.apiserver.discovery import gnostic, health, openapi_schemas
from podkeep.apiserver.discovery.catalog import Catalog, Entry
from podkeep.apiserver.discovery.openapi_schemas import DELETE_OPTIONS, PATCH, STATUS, V2, V3, Dialect, definitions
from podkeep.apiserver.registry.registry import PatchType
from podkeep.apiserver.requests.media_types import APPLY, JSON, YAML
from podkeep.apiserver.requests.output import encode
from podkeep.apiserver.schema.table import Kind, kubernetes

PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
V3_PATH = "/openapi/v3"
_PATCHES = (APPLY, *(str(item) for item in PatchType))
_ACTIONS = {"update": "put", "create": "post"}
_METHODS = {"get": "get", "update": "put", "create": "post", "patch": "patch", "delete": "delete"}
_WRITE = (
    ("dryRun", "string", "All: do everything but store it."),
    ("fieldManager", "string", "Who makes this change, in managedFields."),
    ("fieldValidation", "string", "What is done about fields that are unknown or given twice: Ignore, Warn or Strict."),
)
_LIST = (
    ("allowWatchBookmarks", "boolean", "Send events of type BOOKMARK."),
    ("continue", "string", "Where the list goes on; from metadata.continue of its last page."),
    ("fieldSelector", "string", "Take only objects with these values of fields."),
    ("labelSelector", "string", "Take only objects with these labels."),
    ("limit", "integer", "Items of a page at most."),
    ("resourceVersion", "string", "From which version on."),
    ("resourceVersionMatch", "string", "How resourceVersion is meant: Exact or NotOlderThan."),
    ("sendInitialEvents", "boolean", "Begin a watch with the objects that there are."),
    ("timeoutSeconds", "integer", "How long at most."),
    ("watch", "boolean", "Send changes instead of a list."),
)
_DELETE = (
    ("dryRun", "string", "All: do everything but store it."),
    ("gracePeriodSeconds", "integer", "How long the object may take to end."),
    ("orphanDependents", "boolean", "Use propagationPolicy."),
    ("propagationPolicy", "string", "How dependents are deleted: Orphan, Background or Foreground."),
)
_FORCE = ("force", "boolean", "Take over fields that others manage (apply only).")
_PRETTY = ("pretty", "string", "true: indent the answer.")


class OpenApi:
    """The documents below ``/openapi``."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._v3: dict[str, bytes] = {}
        self._places = {_place(group, version): (group, version) for group, version in catalog.group_versions}
        self._owners: dict[str, list[Kind]] = {}
        table = kubernetes()
        for kind in sorted(table.kinds):
            self._owners.setdefault(table.kind(kind).name, []).append(kind)

    # v3

    def root(self) -> dict[str, Any]:
        """Return the list of documents, each with a hash that changes when it does."""
        return {
            "paths": {
                place: {"serverRelativeURL": f"{V3_PATH}/{place}?hash={self.hash(place)}"} for place in self._places
            }
        }

    def hash(self, place: str) -> str:
        """Return what tells a document from its successors."""
        names = [(entry.name, sorted(entry.verbs)) for entry in self._catalog.of(*self._places[place])]
        return hashlib.sha256(self._content + encode([place, names])).hexdigest().upper()

    @cached_property
    def _content(self) -> bytes:
        """The digest of what all documents are made of."""
        said = encode(openapi_schemas.descriptions())
        return hashlib.sha256(__version__.encode() + said + kubernetes().digest).digest()

    def v3(self, place: str) -> bytes | None:
        """Return the document of a group and version, ``api/v1`` or ``apis/apps/v1``; None if there is none."""
        if place not in self._places:
            return None
        found = self._v3.get(place)
        if found is None:
            found = self._v3[place] = encode(self._document_v3(*self._places[place]))
        return found

    def _document_v3(self, group: str, version: str) -> dict[str, Any]:
        entries = self._catalog.of(group, version)
        names = {name for entry in entries for name in _types(entry)} | {DELETE_OPTIONS, STATUS, PATCH}
        return {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": _version()},
            "paths": dict(self._paths(entries, V3)),
            "components": {"schemas": definitions(names, V3, self._owners)},
        }

    # v2

    @cached_property
    def _document_v2(self) -> dict[str, Any]:
        entries = self._catalog.entries
        names = {name for entry in entries for name in _types(entry)} | {DELETE_OPTIONS, STATUS, PATCH}
        return {
            "swagger": "2.0",
            "info": {"title": "Kubernetes", "version": _version()},
            "paths": dict(self._paths(entries, V2)),
            "definitions": definitions(names, V2, self._owners),
        }

    @cached_property
    def v2_json(self) -> bytes:
        return encode(self._document_v2)

    @cached_property
    def v2_protobuf(self) -> bytes:
        """The whole interface as gnostic's protobuf, which is what client-go reads."""
        return gnostic.document(self._document_v2)

    # paths

    def _paths(self, entries: Sequence[Entry], dialect: Dialect) -> Iterator[tuple[str, dict[str, Any]]]:
        for entry in entries:
            yield from _entry_paths(entry, dialect)


def _version() -> str:
    return "v" + ".".join(map(str, health.KUBERNETES))


def _place(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _types(entry: Entry) -> Iterator[str]:
    table = kubernetes()
    kinds = [entry.kind]
    if entry.resource and not entry.subresource:
        kinds.append(_list_kind(entry.kind))
    yield from (table.kind(kind).name for kind in kinds if kind in table.kinds)


def _list_kind(kind: Kind) -> Kind:
    return kind._replace(kind=f"{kind.kind}List")


def _entry_paths(entry: Entry, dialect: Dialect) -> Iterator[tuple[str, dict[str, Any]]]:
    prefix = f"/{_place(entry.group, entry.version)}"
    inside = f"{prefix}/namespaces/{{namespace}}/{entry.plural}" if entry.namespaced else f"{prefix}/{entry.plural}"
    spaces = [_path_parameter("namespace", dialect)] if entry.namespaced else []
    name = _path_parameter("name", dialect)
    operation = _Operations(entry, dialect)
    if entry.subresource:
        verbs = [verb for verb in _METHODS if verb in entry.verbs]
        yield (
            f"{inside}/{{name}}/{entry.subresource}",
            {_METHODS[verb]: operation.of(verb) for verb in verbs} | {"parameters": [name, *spaces]},
        )
        return
    on_all = {"list": "get", "create": "post", "deletecollection": "delete"}
    found = {method: operation.of(verb) for verb, method in on_all.items() if verb in entry.verbs}
    yield inside, found | {"parameters": spaces}
    if entry.namespaced and "list" in entry.verbs:
        yield f"{prefix}/{entry.plural}", {"get": operation.of("list"), "parameters": []}
    one = {method: operation.of(verb) for verb, method in _METHODS.items() if verb in entry.verbs and verb != "create"}
    if one:
        yield f"{inside}/{{name}}", one | {"parameters": [name, *spaces]}


class _Operations:
    """What can be done at an entry's paths."""

    def __init__(self, entry: Entry, dialect: Dialect) -> None:
        self._entry, self._dialect = entry, dialect
        table = kubernetes()
        self._type = table.kind(entry.kind).name if entry.kind in table.kinds else ""
        listed = _list_kind(entry.kind)
        self._list_type = table.kind(listed).name if listed in table.kinds else self._type

    def of(self, verb: str) -> dict[str, Any]:
        entry = self._entry
        answer = self._list_type if verb == "list" else STATUS if verb.startswith("delete") else self._type
        made: dict[str, Any] = {
            "operationId": f"{verb}{_place(entry.group, entry.version).title()}{entry.name.title()}".replace("/", ""),
            "x-kubernetes-action": _ACTIONS.get(verb, verb),
            "x-kubernetes-group-version-kind": entry.kind._asdict(),
            "parameters": [_query_parameter(item, self._dialect) for item in _parameters(verb)],
        }
        types = _PATCHES if verb == "patch" else (JSON, YAML)
        body = {"patch": PATCH, "create": self._type, "update": self._type}.get(
            verb, DELETE_OPTIONS if verb.startswith("delete") else ""
        )
        if self._dialect is V3:
            content = {JSON: {"schema": self._ref(answer)}} if answer else {}
            made["responses"] = {"200": {"description": "OK", "content": content}}
            if body:
                made["requestBody"] = {"content": {name: {"schema": self._ref(body)} for name in types}}
            return made
        made["consumes"], made["produces"] = list(types), [JSON, YAML]
        schema = {"schema": self._ref(answer)} if answer else {}
        made["responses"] = {"200": {"description": "OK", **schema}}
        if body:
            made["parameters"].append({"name": "body", "in": "body", "schema": self._ref(body)})
        return made

    def _ref(self, name: str) -> dict[str, Any]:
        return {"$ref": f"{self._dialect.prefix}{name}"}


def _parameters(verb: str) -> Iterator[tuple[str, str, str]]:
    yield _PRETTY
    if verb in ("create", "update", "patch"):
        yield from _WRITE
    if verb == "patch":
        yield _FORCE
    if verb in ("delete", "deletecollection"):
        yield from _DELETE
    if verb in ("list", "deletecollection"):
        yield from _LIST


def _query_parameter(item: tuple[str, str, str], dialect: Dialect) -> dict[str, Any]:
    name, kind, text = item
    found: dict[str, Any] = {"name": name, "in": "query", "description": text}
    return found | ({"schema": {"type": kind}} if dialect is V3 else {"type": kind})


def _path_parameter(name: str, dialect: Dialect) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "in": "path", "required": True}
    return found | ({"schema": {"type": "string"}} if dialect is V3 else {"type": "string"})


def wants_protobuf(accept: str) -> bool:
    """Tell whether a client asks for OpenAPI v2 as protobuf."""
    return "proto-openapi.spec.v2" in accept and "protobuf" in accept
