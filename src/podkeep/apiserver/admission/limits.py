"""The plugins that hold pods and claims against limits, priorities and quotas, by name."""

from __future__ import annotations

from podkeep.api.feature_gates import FeatureGates
from podkeep.apiserver.admission.attributes import Admission
from podkeep.apiserver.admission.limit_ranger import LimitRanger
from podkeep.apiserver.admission.priority import Priority
from podkeep.apiserver.admission.quota.class_quota import ClassQuota
from podkeep.apiserver.admission.quota.ledger import QuotaLedger
from podkeep.apiserver.admission.quota.resource_quota import ResourceQuota
from podkeep.apiserver.admission.runtime_class import RuntimeClass
from podkeep.apiserver.meta.lister import NewestLister


def plugins(lister: NewestLister, gates: FeatureGates) -> dict[str, Admission]:
    """Return them, over one ledger of quotas.

    :param lister: of the store that the writes go to; quotas are not exceeded only if it tells of all of them.
    """
    ledger = QuotaLedger(lister)
    return {
        "ClassQuota": ClassQuota(ledger, gates),
        "LimitRanger": LimitRanger(lister),
        "Priority": Priority(lister),
        "ResourceQuota": ResourceQuota(ledger),
        "RuntimeClass": RuntimeClass(lister),
    }
