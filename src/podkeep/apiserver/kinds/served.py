"""Which resources are served, and finding one by what a path or an object says."""

from __future__ import annotations

from collections.abc import Iterable

from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.schema.table import Kind

_STATUS = Strategy(status=True)
RESOURCES: tuple[Resource, ...] = (
    Resource(kind=Kind("", "v1", "ConfigMap"), plural="configmaps", short_names=("cm",)),
    Resource(
        kind=Kind("", "v1", "Namespace"),
        plural="namespaces",
        namespaced=False,
        short_names=("ns",),
        subresources=frozenset({"status", "finalize"}),
        strategy=_STATUS,
    ),
    Resource(
        kind=Kind("", "v1", "Node"),
        plural="nodes",
        namespaced=False,
        short_names=("no",),
        subresources=frozenset({"status"}),
        strategy=_STATUS,
    ),
    Resource(kind=Kind("coordination.k8s.io", "v1", "Lease"), plural="leases"),
    Resource(
        kind=Kind("", "v1", "Pod"),
        plural="pods",
        short_names=("po",),
        categories=("all",),
        subresources=frozenset({"status"}),
        strategy=_STATUS,
    ),
)


class Served:
    """Resources by group, version and name."""

    def __init__(self, resources: Iterable[Resource] = RESOURCES) -> None:
        self.resources = tuple(resources)
        self._by_path = {(item.group, item.kind.version, item.plural): item for item in self.resources}
        self._by_kind = {item.kind: item for item in self.resources}
        self.group_versions = sorted({(item.group, item.kind.version) for item in self.resources})
        """Each group and version, the core group first."""

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """Return the resource that a path names; None if there is none."""
        return self._by_path.get((group, version, plural))

    def by_kind(self, kind: Kind) -> Resource | None:
        """Return the resource of a kind; None if there is none."""
        return self._by_kind.get(kind)

    def of(self, group: str, version: str) -> list[Resource]:
        """Return the resources of a group and version, by name."""
        found = (item for item in self.resources if (item.group, item.kind.version) == (group, version))
        return sorted(found, key=lambda item: item.plural)
