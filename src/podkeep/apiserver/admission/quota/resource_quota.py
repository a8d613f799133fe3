"""The plugin ``ResourceQuota``: objects that would use more than a quota allows are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal

from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.quota import usage as quota_usage
from podkeep.apiserver.admission.quota.ledger import QuotaLedger
from podkeep.apiserver.admission.quota.usage import CLAIMS, PODS, QUOTAS, SERVICES, Amounts, Object
from podkeep.apiserver.admission.refusal import refused, require_few
from podkeep.apiserver.kinds.resources import Target
from podkeep.base.text import quantity

MAX_QUOTAS = 100
"""Of a namespace: each object of it is held against all of them, also when they are counted."""


def _utc() -> datetime:
    return datetime.now(UTC)


class ResourceQuota:
    """The plugin. Nothing is charged here: what is written counts from then on.

    :param now: tells the time.
    """

    def __init__(self, ledger: QuotaLedger, now: Callable[[], datetime] = _utc) -> None:
        self._ledger = ledger
        self._now = now

    async def ready(self, target: Target) -> None:
        """Wait until what a write may be charged to is counted."""
        if target.namespace and target.subresource in ("", "resize"):
            await self._ledger.ready(target.namespace, target.resource.storage_name)

    def mutate(self, attributes: Attributes) -> None: ...

    def validate(self, attributes: Attributes) -> None:
        """Refuse what would exceed a quota.

        :raises StatusError: 403.
        """
        value, namespace = attributes.value, attributes.target.namespace
        resource = attributes.target.resource.storage_name
        if value is None or not namespace or resource in quota_usage.NOT_COUNTED or not _concerns(attributes):
            return
        quotas = self._ledger.quotas(namespace)
        if resource == QUOTAS and attributes.operation is Operation.CREATE and len(quotas) >= MAX_QUOTAS:
            raise refused(attributes, f"namespace {namespace} may have {MAX_QUOTAS} quotas; delete some first")
        if resource == PODS:
            require_few(attributes, len(quotas), f"{len(quotas)} quotas")
        # Once for all quotas: what a pod uses is a sum over its containers.
        now = self._now()
        uses = [{} if one is None else quota_usage.usage(resource, one, now) for one in (value, attributes.old)]
        for quota in quotas:
            self._check(attributes, resource, value, quota, *uses)

    def _check(
        self, attributes: Attributes, resource: str, value: Object, quota: Object, new: Amounts, before: Amounts
    ) -> None:
        hard: Mapping[str, str] = quota.get("spec", {}).get("hard", {})
        names, name = quota_usage.concerned(resource, hard), quota["metadata"]["name"]
        if not names or not quota_usage.in_scope(quota, resource, value):
            return
        if resource == PODS and (why := quota_usage.missing(value, names)):
            raise refused(attributes, f"failed quota: {name}: {why}")
        more = dict(new)
        old = attributes.old
        if old is not None and quota_usage.in_scope(quota, resource, old):
            for item, amount in before.items():
                more[item] = more.get(item, Decimal(0)) - amount
        # What takes no more of a quota than before is let be, even if the quota is exceeded: it may have become
        # smaller.
        asked = {item: amount for item, amount in more.items() if item in hard and amount > 0}
        if not asked:
            return
        used = self._ledger.used(attributes.target.namespace, name)
        exceeded = sorted(
            item for item, amount in asked.items() if used.get(item, Decimal(0)) + amount > quantity.parse(hard[item])
        )
        if exceeded:
            requested = _listed({item: quota_usage.text(asked[item], hard[item]) for item in exceeded})
            usage = _listed({item: quota_usage.text(used.get(item, Decimal(0)), hard[item]) for item in exceeded})
            limited = _listed({item: hard[item] for item in exceeded})
            raise refused(
                attributes, f"exceeded quota: {name}, requested: {requested}, used: {usage}, limited: {limited}"
            )


def _concerns(attributes: Attributes) -> bool:
    """Tell whether a write may change what an object uses."""
    resource, subresource = attributes.target.resource.storage_name, attributes.target.subresource
    operation, value, old = attributes.operation, attributes.value, attributes.old
    if resource == PODS:
        if subresource == "resize":
            return operation is Operation.UPDATE
        if subresource or value is None:
            return False
        # An update of a pod uses no more of anything; `activeDeadlineSeconds` moves it from one scope to another.
        return old is None or quota_usage.is_terminating(old) != quota_usage.is_terminating(value)
    if subresource:
        return False
    return operation is Operation.CREATE or resource in (SERVICES, CLAIMS)


def _listed(amounts: Mapping[str, str]) -> str:
    return ",".join(f"{name}={amount}" for name, amount in amounts.items())
