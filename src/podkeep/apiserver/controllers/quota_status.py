"""What quotas count is told in their status (kube-controller-manager: resourcequota).

How much of a quota an object uses is decided in ``admission``, by the same functions for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from podkeep.api.feature_gates import CLASS_RESOURCES, FeatureGates
from podkeep.apiserver.admission.quota import usage as quota_usage
from podkeep.apiserver.admission.quota.ledger import QuotaLedger
from podkeep.apiserver.admission.quota.usage import QUOTAS
from podkeep.apiserver.controllers.controller import (
    NOTHING,
    Change,
    Item,
    Patch,
    Plan,
    merge_patch,
    revised,
    service_account,
)
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.storage.records import Key

INTERVAL = timedelta(seconds=0.2)
"""How often a quota's status is written at most."""
COUNTING = timedelta(seconds=0.1)
"""When the next portion of a namespace is counted, until all of it is."""
RESYNC = timedelta(minutes=5)
"""When a quota is counted again though nothing has changed: pods stop to count when their time is up."""
_CLASSES = ("podClassResources", "containerClassResources")


class QuotaStatus:
    """The controller. It remembers which resources the quotas of each namespace count.

    :param ledger: over the store that is watched.
    """

    name = "resourcequota-controller"
    user = service_account(name)
    resources = None

    def __init__(self, ledger: QuotaLedger, gates: FeatureGates | None = None) -> None:
        self._ledger = ledger
        self._with_classes = (gates or FeatureGates()).enabled(CLASS_RESOURCES)
        self._counted: dict[str, dict[Key, set[str]]] = {}
        self._written: dict[Key, datetime] = {}

    def observe(self, change: Change) -> Iterator[Item]:
        """Return the quotas that count an object, or the quota itself."""
        key = change.key
        if key.resource == QUOTAS:
            of_namespace = self._counted.setdefault(key.namespace, {})
            of_namespace.pop(key, None)
            if change.is_deletion:
                self._written.pop(key, None)
            else:
                hard = change.value.get("spec", {}).get("hard", {})
                of_namespace[key] = quota_usage.counted_resources(hard)
                yield key
            if not of_namespace:
                del self._counted[key.namespace]
        for quota, resources in self._counted.get(key.namespace, {}).items():
            if key.resource in resources:
                yield quota

    def reconcile(self, item: Item, lister: Lister, now: datetime) -> Plan:
        assert isinstance(item, Key)
        quota = lister.get(*item)
        if quota is None:
            return NOTHING
        known = {found["metadata"]["name"] for found in self._ledger.quotas(item.namespace)}
        if item.name not in known:
            return NOTHING  # it goes, and the store will tell
        if not self._ledger.count_some(item.namespace):
            return Plan(after=COUNTING.total_seconds())
        status = quota_usage.status(quota, self._ledger.used(item.namespace, item.name))
        if not self._with_classes:
            status = {name: value for name, value in status.items() if name not in _CLASSES}
        difference = merge_patch(quota.get("status", {}), status)
        if not difference:
            return Plan(after=RESYNC.total_seconds())
        # Many objects that come at once make one status: each write of it is told to all watchers.
        left = (self._written.get(item, now - INTERVAL) + INTERVAL - now).total_seconds()
        if left > 0:
            return Plan(after=left)
        self._written[item] = now
        patch = revised(quota, {"status": difference})
        write = Patch(resource=QUOTAS, namespace=item.namespace, name=item.name, subresource="status", patch=patch)
        return Plan(writes=[write], after=RESYNC.total_seconds())
