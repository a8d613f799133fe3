"""The Node object, as small as a scheduler needs it."""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import UTC, datetime
from typing import Any

from podkeep.agent.node import Node
from podkeep.base.errors import PodkeepError
from podkeep.client.client import Client
from podkeep.client.errors import ApiError
from podkeep.client.reflector import Backoff
from podkeep.client.resources import NODES

log = logging.getLogger(__name__)


async def keep_registered(client: Client, node: Node) -> None:
    """Register the node once the API answers."""
    backoff = Backoff(first=0.2, most=7.0)
    while True:
        try:
            await _register(client, node)
            return
        except PodkeepError as error:
            log.warning("node %s is not registered: %s; trying again", node.name, error)
            await asyncio.sleep(backoff.next())


async def _register(client: Client, node: Node) -> None:
    """Make the Node object if there is none, and say that the node is ready."""
    try:
        await client.create(NODES, {"metadata": {"name": node.name, "labels": dict(node.labels)}})
    except ApiError as error:
        if not error.already_exists:
            raise
    await client.patch(NODES, node.name, {"status": _status(node)}, subresource="status")


def _status(node: Node) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    size = {"cpu": str(os.cpu_count() or 1), "memory": str(node.memory), "pods": str(node.config.agent.max_pods)}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    return {
        "conditions": [{**ready, "lastHeartbeatTime": now, "lastTransitionTime": now}],
        "capacity": size,
        "allocatable": size,
        "addresses": [
            *({"type": "InternalIP", "address": address} for address in node.host_ips),
            {"type": "Hostname", "address": node.name},
        ],
    }
