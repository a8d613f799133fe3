"""The rules of cluster roles that aggregate others, written into them for those who read them.

After kube-controller-manager's clusterrole-aggregation-controller. Authorization does not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from podkeep.apiserver.auth.default_policy import aggregations
from podkeep.apiserver.auth.rbac import CLUSTER_ROLES
from podkeep.apiserver.controllers.controller import Change, Item, Patch, Plan, revised, service_account
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import metadata


class RoleAggregation:
    """The controller."""

    name = "clusterrole-aggregation-controller"
    user = service_account("clusterrole-aggregation-controller")
    resources = frozenset({CLUSTER_ROLES})

    def observe(self, change: Change) -> Iterator[Item]:
        """Return the one thing to look at: whatever changes may be part of any other role."""
        yield CLUSTER_ROLES

    def reconcile(self, item: Item, lister: Lister, _now: datetime) -> Plan:
        """Return the lists of rules that are out of date."""
        writes = [
            Patch(
                resource=CLUSTER_ROLES,
                namespace="",
                name=metadata(change.value)["name"],
                patch=revised(change.value, {"rules": change.value["rules"]}),
            )
            for change in aggregations(lister)
        ]
        return Plan(writes=writes)
