"""Discovery: which groups, versions and resources there are; aggregated, and group by group. Computed once."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from podkeep.apiserver.discovery.catalog import Catalog, Entry
from podkeep.apiserver.requests.media_types import JSON, clauses
from podkeep.apiserver.requests.output import encode

GROUP = "apidiscovery.k8s.io"
_VERSIONS = ("v2", "v2beta1")


def asked_version(accept: str) -> str:
    """Return the version of the aggregated document that a client likes best; empty: it likes the plain one."""
    for clause in clauses(accept):
        given = dict(clause.parameters)
        if clause.media_type != JSON:
            continue
        if not given.keys() & {"g", "v", "as"}:
            return ""
        if (given.get("g"), given.get("as")) == (GROUP, "APIGroupDiscoveryList") and given.get("v") in _VERSIONS:
            return str(given["v"])
    return ""


class Discovery:
    """The documents below ``/api`` and ``/apis``."""

    def __init__(self, catalog: Catalog, address: str) -> None:
        """Compute them.

        :param address: ``HOST:PORT`` at which clients reach the server.
        """
        self._catalog = catalog
        self._plain = dict(self._documents(address))

    def plain(self, path: str) -> Mapping[str, Any] | None:
        """Return the document at a path; None if there is none."""
        return self._plain.get(path.rstrip("/"))

    @cache  # noqa: B019 - there is one for the life of the process
    def aggregated(self, path: str, version: str) -> tuple[bytes, str]:
        """Return what ``apidiscovery.k8s.io`` says of ``/api`` or ``/apis``, and its ETag."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for group, group_version in self._catalog.group_versions:
            if (group == "") == (path == "/api"):
                found = {"version": group_version, "resources": list(self._nested(group, group_version))}
                groups.setdefault(group, []).append(found | {"freshness": "Current"})
        document = {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": f"{GROUP}/{version}",
            "metadata": {},
            "items": [
                {"metadata": {"name": name} if name else {}, "versions": items} for name, items in groups.items()
            ],
        }
        body = encode(document)
        return body, f'"{hashlib.sha256(body).hexdigest().upper()}"'

    def _nested(self, group: str, version: str) -> Iterator[dict[str, Any]]:
        entries = self._catalog.of(group, version)
        for entry in entries:
            if entry.subresource:
                continue
            parts = [item for item in entries if item.subresource and item.plural == entry.plural]
            found = {
                "resource": entry.plural,
                "responseKind": _response_kind(entry),
                "scope": "Namespaced" if entry.namespaced else "Cluster",
                "singularResource": entry.singular,
                "verbs": sorted(entry.verbs),
                "shortNames": _short_names(entry),
                "categories": _categories(entry),
                "subresources": [
                    {"subresource": part.subresource, "responseKind": _response_kind(part), "verbs": sorted(part.verbs)}
                    for part in parts
                ],
            }
            yield {name: value for name, value in found.items() if value}

    def _documents(self, address: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
        yield "/api", {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}
        groups = []
        for group, version in self._catalog.group_versions:
            if not group:
                yield f"/api/{version}", self._resource_list(group, version)
                continue
            named = {"groupVersion": f"{group}/{version}", "version": version}
            document = {"name": group, "versions": [named], "preferredVersion": named}
            groups.append(document)
            yield f"/apis/{group}", {"kind": "APIGroup", "apiVersion": "v1", **document}
            yield f"/apis/{group}/{version}", self._resource_list(group, version)
        yield "/apis", {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def _resource_list(self, group: str, version: str) -> dict[str, Any]:
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": [_api_resource(entry) for entry in self._catalog.of(group, version)],
        }


def _api_resource(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": entry.name,
        "singularName": entry.singular,
        "namespaced": entry.namespaced,
        "kind": entry.kind.kind,
        "verbs": sorted(entry.verbs),
    }
    if (entry.kind.group, entry.kind.version) != (entry.group, entry.version):
        found |= {"group": entry.kind.group, "version": entry.kind.version}
    if short := _short_names(entry):
        found["shortNames"] = short
    if categories := _categories(entry):
        found["categories"] = categories
    if entry.resource and not entry.subresource:
        # As kube-apiserver makes it (StorageVersionHash).
        text = f"{entry.group}/{entry.version}/{entry.kind.kind}"
        found["storageVersionHash"] = base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()
    return found


def _short_names(entry: Entry) -> list[str]:
    return list(entry.resource.short_names) if entry.resource and not entry.subresource else []


def _categories(entry: Entry) -> list[str]:
    return list(entry.resource.categories) if entry.resource and not entry.subresource else []


def _response_kind(entry: Entry) -> dict[str, str]:
    return {"group": entry.kind.group, "version": entry.kind.version, "kind": entry.kind.kind}
