"""The Node object, as small as a scheduler needs it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from podkeep.agent.node import Node
from podkeep.client.client import Client
from podkeep.client.errors import ApiError
from podkeep.client.resources import NODES


async def register(client: Client, node: Node, port: int) -> None:
    """Make the Node object if there is none, and say that the node is ready.

    :param port: of the kubelet's endpoints.
    """
    try:
        await client.create(NODES, {"metadata": {"name": node.name, "labels": dict(node.labels)}})
    except ApiError as error:
        if not error.already_exists:
            raise
    await client.patch(NODES, node.name, {"status": _status(node, port)}, subresource="status")


def _status(node: Node, port: int) -> dict[str, Any]:
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
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
