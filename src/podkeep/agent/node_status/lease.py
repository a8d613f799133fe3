"""The Node's lease, by which the API knows that the node is alive (component-helpers, apimachinery/lease)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from podkeep.base.backoff import doubling
from podkeep.base.errors import PodkeepError
from podkeep.client.client import Client
from podkeep.client.errors import ApiError
from podkeep.client.resources import LEASES, NODES

log = logging.getLogger(__name__)

NAMESPACE = "kube-node-lease"
RENEW_SHARE = 0.25
"""Of the lease's duration, after which it is renewed."""
_JITTER = 0.04
_UPDATES = 5
_WAIT_S, _MAX_WAIT_S = 0.2, 7.0


class NodeLease:
    """Keeps a lease. ``run`` it in a task."""

    def __init__(self, client: Client, name: str, duration: int) -> None:
        self._client, self._name, self._duration = client, name, duration
        self._lease: dict[str, Any] | None = None
        self._said = ""

    async def run(self) -> None:
        """Renew the lease until cancelled."""
        period = self._duration * RENEW_SHARE
        while True:
            await self._renew()
            await asyncio.sleep(period * (1 + random.random() * _JITTER))

    async def _renew(self) -> None:
        if self._lease is not None and await self._updated():
            return
        waits = doubling(_WAIT_S, _MAX_WAIT_S)
        while True:
            if await self._ensured():
                return
            await asyncio.sleep(waits.next())

    async def _ensured(self) -> bool:
        try:
            try:
                self._lease = await self._client.get(LEASES, self._name, NAMESPACE)
            except ApiError as error:
                if not error.not_found:
                    raise
                self._lease = await self._client.create(LEASES, await self._wanted(None), NAMESPACE)
                self._well()
                return True
        except PodkeepError as error:
            self._failed(error)
            return False
        return await self._updated()

    async def _updated(self) -> bool:
        """Return whether the lease could be renewed; it is read again if somebody else wrote it."""
        assert self._lease is not None
        for _ in range(_UPDATES):
            try:
                self._lease = await self._client.update(LEASES, await self._wanted(self._lease))
            except ApiError as error:
                self._failed(error)
                # Writing on with what is known would fail again: the lease is read anew first (OptimisticLockError in
                # upstream).
                if error.not_found or error.conflict:
                    self._lease = None
                    return False
            except PodkeepError as error:
                self._failed(error)
                return False
            else:
                self._well()
                return True
        return False

    async def _wanted(self, lease: Mapping[str, Any] | None) -> dict[str, Any]:
        metadata = dict(lease["metadata"]) if lease else {"name": self._name, "namespace": NAMESPACE}
        metadata.pop("managedFields", None)
        # With the Node as its owner the lease is removed with it, by the garbage collector of the cluster.
        if not metadata.get("ownerReferences"):
            node = await self._client.get(NODES, self._name)
            owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": node["metadata"]["uid"]}
            metadata["ownerReferences"] = [owner]
        spec = dict(lease.get("spec") or {}) if lease else {"holderIdentity": self._name}
        spec |= {"leaseDurationSeconds": self._duration, "renewTime": micro_time(datetime.now(UTC))}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}

    def _failed(self, error: PodkeepError) -> None:
        if error.message != self._said:
            log.warning("the node's lease cannot be renewed: %s", error)
            self._said = error.message

    def _well(self) -> None:
        if self._said:
            log.info("the node's lease is renewed again")
            self._said = ""


def micro_time(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
