"""Which resources are served, and finding one by what a path or an object says."""

from __future__ import annotations

from collections.abc import Iterable

from podkeep.apiserver.kinds.access import rbac, service_accounts
from podkeep.apiserver.kinds.cluster import configuration, events, leases, namespaces, nodes
from podkeep.apiserver.kinds.pods import pod
from podkeep.apiserver.kinds.policy import limit_ranges, priority_classes, resource_quotas, runtime_classes
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.kinds.storage import csi, persistent_volume_claims, persistent_volumes, storage_classes
from podkeep.apiserver.kinds.workloads import workloads
from podkeep.apiserver.schema.table import Kind

RESOURCES: tuple[Resource, ...] = (
    *configuration.RESOURCES,
    *csi.RESOURCES,
    *events.RESOURCES,
    *leases.RESOURCES,
    *limit_ranges.RESOURCES,
    *namespaces.RESOURCES,
    *nodes.RESOURCES,
    *persistent_volume_claims.RESOURCES,
    *persistent_volumes.RESOURCES,
    *pod.RESOURCES,
    *priority_classes.RESOURCES,
    *rbac.RESOURCES,
    *resource_quotas.RESOURCES,
    *runtime_classes.RESOURCES,
    *service_accounts.RESOURCES,
    *storage_classes.RESOURCES,
    *workloads.RESOURCES,
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
        return self._by_path.get((group, version, plural))

    def by_kind(self, kind: Kind) -> Resource | None:
        return self._by_kind.get(kind)

    def of(self, group: str, version: str) -> list[Resource]:
        found = (item for item in self.resources if (item.group, item.kind.version) == (group, version))
        return sorted(found, key=lambda item: item.plural)
