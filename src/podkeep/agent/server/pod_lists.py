"""Lists of pods: those that the node is to have, and those that the runtime has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from podkeep.agent.convert.names import CONTAINER_NAME
from podkeep.api.containers import Container, EphemeralContainer
from podkeep.api.pod import Pod
from podkeep.api.status import PodStatus
from podkeep.base.text import rfc3339
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2


def containers(pod: Pod) -> dict[str, Container | EphemeralContainer]:
    found: dict[str, Container | EphemeralContainer] = {}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        found[container.name] = container
    for ephemeral in pod.spec.ephemeral_containers:
        found[ephemeral.name] = ephemeral
    return found


def encoded(pods: Iterable[tuple[Pod, PodStatus]]) -> bytes:
    return _list([_object(*item) for item in pods])


def _list(items: list[Any]) -> bytes:
    return msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})


def _object(pod: Pod, status: PodStatus) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(pod)
    return {key: found[key] for key in ("metadata", "spec") if key in found} | {"status": msgspec.to_builtins(status)}


async def running(client: CriClient) -> bytes:
    """Return the pods that the runtime runs: their names and the images of their containers, nothing more.

    :raises PodkeepError: if the runtime does not say.
    """
    ready = api_pb2.PodSandboxFilter(state=api_pb2.PodSandboxStateValue(state=api_pb2.SANDBOX_READY))
    alive = api_pb2.ContainerFilter(state=api_pb2.ContainerStateValue(state=api_pb2.CONTAINER_RUNNING))
    sandboxes, found = await asyncio.gather(
        client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest(filter=ready)),
        client.runtime.ListContainers(api_pb2.ListContainersRequest(filter=alive)),
    )
    by_sandbox: dict[str, list[dict[str, Any]]] = {}
    for item in found.containers:
        described = {"name": item.labels.get(CONTAINER_NAME) or item.metadata.name, "image": item.image.image}
        by_sandbox.setdefault(item.pod_sandbox_id, []).append(described | {"resources": {}})
    return _list(
        [
            {
                "metadata": {
                    "name": item.metadata.name,
                    "namespace": item.metadata.namespace,
                    "uid": item.metadata.uid,
                },
                "spec": {"containers": by_sandbox.get(item.id, [])},
                "status": {},
            }
            for item in sandboxes.items
        ]
    )


async def checkpoint_file(directory: str, pod: Pod, container: str) -> str:
    """Return where a checkpoint of a container goes (kubelet: CheckpointContainer); the directory is made."""
    await asyncio.to_thread(Path(directory).mkdir, mode=0o700, parents=True, exist_ok=True)
    now = rfc3339.of_seconds(time.time())
    name = f"checkpoint-{pod.metadata.name}_{pod.metadata.namespace}-{container}-{now}.tar"
    return str(Path(directory) / name)
