"""RPCs of statistics: container and pod stats, metric descriptors and pod metrics, each as a list and as a stream.

Records are chosen in the event loop; reading and the making of messages happen on a thread, for a stream in parts.
What goes away while a list is made is left out of it, or listed as ended; no list fails because of one container.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.base.ids import SandboxID
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.blockdev import device_name
from podkeep.runtime.layout import Layout
from podkeep.runtime.records import Container, ContainerState, Sandbox, SandboxState
from podkeep.runtime.rpc.chunks import CHUNK_ITEMS, in_chunks
from podkeep.runtime.rpc.convert.labels import labels_match
from podkeep.runtime.rpc.convert.metrics import descriptor_messages, sandbox_metrics_message
from podkeep.runtime.rpc.convert.stats import container_stats_message, sandbox_stats_message
from podkeep.runtime.state import State
from podkeep.runtime.stats.collector import Collector
from podkeep.runtime.stats.targets import ContainerTarget, SandboxTarget, container_target, sandbox_target

_SHOWN = frozenset({ContainerState.CREATED, ContainerState.RUNNING, ContainerState.EXITED})

Target = TypeVar("Target")
Answer = TypeVar("Answer", bound=Message)


class StatsRpc:
    """One method per RPC, from message to message."""

    def __init__(self, state: State, layout: Layout, collector: Collector) -> None:
        self._state, self._layout, self._collector = state, layout, collector
        # The same as ImageFsInfo's: the kubelet takes two names for two file systems.
        self._mountpoint = str(layout.images)

    async def container(self, request: api.ContainerStatsRequest) -> api.ContainerStatsResponse:
        container = self._state.container(_required(request.container_id, "container_id"))
        if container.status.state not in _SHOWN:
            raise NotFound(f"container {container.id} is {container.status.state.value}")
        [message] = await asyncio.to_thread(self._read_containers, self._container_targets([container]))
        return api.ContainerStatsResponse(stats=message)

    async def list_containers(self, request: api.ListContainerStatsRequest) -> api.ListContainerStatsResponse:
        targets = self._container_targets(self._chosen_containers(request.filter))
        return api.ListContainerStatsResponse(stats=await asyncio.to_thread(self._read_containers, targets))

    async def stream_containers(
        self, request: api.StreamContainerStatsRequest
    ) -> AsyncIterator[api.StreamContainerStatsResponse]:
        targets = self._container_targets(self._chosen_containers(request.filter))
        async for chunk in _in_parts(targets, self._read_containers):
            yield api.StreamContainerStatsResponse(container_stats=chunk)

    async def sandbox(self, request: api.PodSandboxStatsRequest) -> api.PodSandboxStatsResponse:
        sandbox = self._state.sandbox(_required(request.pod_sandbox_id, "pod_sandbox_id"))
        found: list[api.PodSandboxStats] = []
        if sandbox.status.state is SandboxState.READY:
            found = await asyncio.to_thread(self._read_sandboxes, self._sandbox_targets([sandbox]))
        if not found:
            raise FailedPrecondition(f"pod sandbox {sandbox.id} is not ready: it uses nothing any more")
        return api.PodSandboxStatsResponse(stats=found[0])

    async def list_sandboxes(self, request: api.ListPodSandboxStatsRequest) -> api.ListPodSandboxStatsResponse:
        targets = self._sandbox_targets(self._chosen_sandboxes(request.filter))
        return api.ListPodSandboxStatsResponse(stats=await asyncio.to_thread(self._read_sandboxes, targets))

    async def stream_sandboxes(
        self, request: api.StreamPodSandboxStatsRequest
    ) -> AsyncIterator[api.StreamPodSandboxStatsResponse]:
        targets = self._sandbox_targets(self._chosen_sandboxes(request.filter))
        async for chunk in _in_parts(targets, self._read_sandboxes):
            yield api.StreamPodSandboxStatsResponse(pod_sandbox_stats=chunk)

    async def descriptors(self, _request: api.ListMetricDescriptorsRequest) -> api.ListMetricDescriptorsResponse:
        return api.ListMetricDescriptorsResponse(descriptors=descriptor_messages())

    async def list_metrics(self, _request: api.ListPodSandboxMetricsRequest) -> api.ListPodSandboxMetricsResponse:
        targets = self._sandbox_targets(self._chosen_sandboxes(api.PodSandboxStatsFilter()))
        return api.ListPodSandboxMetricsResponse(pod_metrics=await asyncio.to_thread(self._read_metrics, targets))

    async def stream_metrics(
        self, _request: api.StreamPodSandboxMetricsRequest
    ) -> AsyncIterator[api.StreamPodSandboxMetricsResponse]:
        targets = self._sandbox_targets(self._chosen_sandboxes(api.PodSandboxStatsFilter()))
        async for chunk in _in_parts(targets, self._read_metrics):
            yield api.StreamPodSandboxMetricsResponse(pod_sandbox_metrics=chunk)

    def _chosen_containers(self, chosen: api.ContainerStatsFilter) -> list[Container]:
        return [
            item
            for item in self._state.containers()
            if item.status.state in _SHOWN
            and item.id.startswith(chosen.id)
            and item.sandbox_id.startswith(chosen.pod_sandbox_id)
            and labels_match(item.config.labels, chosen.label_selector)
        ]

    def _chosen_sandboxes(self, chosen: api.PodSandboxStatsFilter) -> list[Sandbox]:
        return [
            item
            for item in self._state.sandboxes()
            if item.status.state is SandboxState.READY
            and item.id.startswith(chosen.id)
            and labels_match(item.config.labels, chosen.label_selector)
        ]

    def _container_targets(self, containers: Sequence[Container]) -> list[ContainerTarget]:
        sandboxes = {item.id: item for item in self._state.sandboxes()}
        return [container_target(item, sandboxes[item.sandbox_id], self._layout) for item in containers]

    def _sandbox_targets(self, sandboxes: Sequence[Sandbox]) -> list[SandboxTarget]:
        below: dict[SandboxID, list[Container]] = {item.id: [] for item in sandboxes}
        for container in self._state.containers():
            if container.sandbox_id in below and container.status.state in _SHOWN:
                below[container.sandbox_id].append(container)
        return [
            sandbox_target(
                sandbox,
                tuple(container_target(item, sandbox, self._layout) for item in below[sandbox.id]),
                self._layout,
            )
            for sandbox in sandboxes
        ]

    def _read_containers(self, targets: Sequence[ContainerTarget]) -> list[api.ContainerStats]:
        return [container_stats_message(item, self._mountpoint) for item in self._collector.containers(targets)]

    def _read_sandboxes(self, targets: Sequence[SandboxTarget]) -> list[api.PodSandboxStats]:
        return [sandbox_stats_message(item, self._mountpoint) for item in self._collector.sandboxes(targets)]

    def _read_metrics(self, targets: Sequence[SandboxTarget]) -> list[api.PodSandboxMetrics]:
        file_system = self._collector.file_system()
        return [sandbox_metrics_message(item, file_system, device_name) for item in self._collector.metrics(targets)]


async def _in_parts(
    targets: Sequence[Target], read: Callable[[Sequence[Target]], list[Answer]]
) -> AsyncIterator[list[Answer]]:
    """Yield what ``read`` says of ``targets`` in lists for one message each."""
    for start in range(0, len(targets), CHUNK_ITEMS):
        messages = await asyncio.to_thread(read, targets[start : start + CHUNK_ITEMS])
        async for chunk in in_chunks(messages):
            yield chunk


def _required(text: str, field: str) -> str:
    if not text:
        raise InvalidArgument(f"{field} is required")
    return text
