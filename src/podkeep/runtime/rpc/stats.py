"""RPCs of statistics: container and pod stats, metric descriptors and pod metrics, each as a list and as a stream.

Records are chosen in the event loop; reading and the making of messages happen on a thread, for a stream in parts.
Sizes of writable layers are those of the last walk in the background; those of a single pod are counted for its answer.
What goes away while a list is made is left out of it, or listed as ended; no list fails because of one container.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

from podkeep.base.concurrency.tasks import on_thread
from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.base.ids import SandboxID
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount.blockdev import device_name
from podkeep.runtime.class_resources.model import RDT
from podkeep.runtime.model.records import Container, Sandbox, SandboxState
from podkeep.runtime.model.state import State
from podkeep.runtime.rpc.chunks import CHUNK_ITEMS, in_chunks
from podkeep.runtime.rpc.convert.labels import labels_match
from podkeep.runtime.rpc.convert.metrics import descriptor_messages, fill_sandbox_metrics
from podkeep.runtime.rpc.convert.stats import StatsMessages
from podkeep.runtime.stats.collector import Collector
from podkeep.runtime.stats.targets import ContainerTarget, SandboxTarget, Targets

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer as _Repeated


Target = TypeVar("Target")


class StatsRpc:
    """One method per RPC, from message to message."""

    def __init__(self, state: State, targets: Targets, collector: Collector, *, mountpoint: str) -> None:
        """``mountpoint`` is that of ImageFsInfo: the kubelet takes two names for two file systems."""
        self._state, self._targets, self._collector = state, targets, collector
        self._messages = StatsMessages(mountpoint=mountpoint)
        # One at a time: whoever asks for many pods at once takes one thread and one processor.
        self._counting = asyncio.Lock()

    async def container(self, request: api.ContainerStatsRequest) -> api.ContainerStatsResponse:
        container = self._state.container(_required(request.container_id, "container_id"))
        if not container.status.state.shown:
            raise NotFound(f"container {container.id} is {container.status.state.value}")
        answer = api.ListContainerStatsResponse()
        await asyncio.to_thread(self._read_containers, self._container_targets([container]), answer.stats)
        return api.ContainerStatsResponse(stats=answer.stats[0])

    async def list_containers(self, request: api.ListContainerStatsRequest) -> api.ListContainerStatsResponse:
        targets = self._container_targets(self._chosen_containers(request.filter))
        answer = api.ListContainerStatsResponse()
        await asyncio.to_thread(self._read_containers, targets, answer.stats)
        return answer

    async def stream_containers(
        self, request: api.StreamContainerStatsRequest
    ) -> AsyncIterator[api.StreamContainerStatsResponse]:
        targets = self._container_targets(self._chosen_containers(request.filter))
        for part in _parts(targets):
            answer = api.ListContainerStatsResponse()
            await asyncio.to_thread(self._read_containers, part, answer.stats)
            async for chunk in in_chunks(answer.stats):
                yield api.StreamContainerStatsResponse(container_stats=chunk)

    async def sandbox(self, request: api.PodSandboxStatsRequest) -> api.PodSandboxStatsResponse:
        sandbox = self._state.sandbox(_required(request.pod_sandbox_id, "pod_sandbox_id"))
        answer = api.ListPodSandboxStatsResponse()
        if sandbox.status.state is SandboxState.READY:
            async with self._counting:
                (target,) = self._sandbox_targets([sandbox])
                # To its end, also for a client that gives up: it is one at a time for as long as it takes the thread.
                await on_thread(partial(self._collector.count_layers, target))
            await asyncio.to_thread(self._read_sandboxes, self._sandbox_targets([sandbox]), answer.stats)
        if not answer.stats:
            raise FailedPrecondition(f"pod sandbox {sandbox.id} is not ready: it uses nothing any more")
        return api.PodSandboxStatsResponse(stats=answer.stats[0])

    async def list_sandboxes(self, request: api.ListPodSandboxStatsRequest) -> api.ListPodSandboxStatsResponse:
        targets = self._sandbox_targets(self._chosen_sandboxes(request.filter))
        answer = api.ListPodSandboxStatsResponse()
        await asyncio.to_thread(self._read_sandboxes, targets, answer.stats)
        return answer

    async def stream_sandboxes(
        self, request: api.StreamPodSandboxStatsRequest
    ) -> AsyncIterator[api.StreamPodSandboxStatsResponse]:
        targets = self._sandbox_targets(self._chosen_sandboxes(request.filter))
        for part in _parts(targets):
            answer = api.ListPodSandboxStatsResponse()
            await asyncio.to_thread(self._read_sandboxes, part, answer.stats)
            async for chunk in in_chunks(answer.stats):
                yield api.StreamPodSandboxStatsResponse(pod_sandbox_stats=chunk)

    async def descriptors(self, _request: api.ListMetricDescriptorsRequest) -> api.ListMetricDescriptorsResponse:
        rdt = any(RDT in item.status.class_resources for item in self._state.containers())
        return api.ListMetricDescriptorsResponse(descriptors=descriptor_messages(rdt=rdt))

    async def list_metrics(self, _request: api.ListPodSandboxMetricsRequest) -> api.ListPodSandboxMetricsResponse:
        targets = self._sandbox_targets(self._chosen_sandboxes(api.PodSandboxStatsFilter()))
        answer = api.ListPodSandboxMetricsResponse()
        await asyncio.to_thread(self._read_metrics, targets, answer.pod_metrics)
        return answer

    async def stream_metrics(
        self, _request: api.StreamPodSandboxMetricsRequest
    ) -> AsyncIterator[api.StreamPodSandboxMetricsResponse]:
        targets = self._sandbox_targets(self._chosen_sandboxes(api.PodSandboxStatsFilter()))
        for part in _parts(targets):
            answer = api.ListPodSandboxMetricsResponse()
            await asyncio.to_thread(self._read_metrics, part, answer.pod_metrics)
            async for chunk in in_chunks(answer.pod_metrics):
                yield api.StreamPodSandboxMetricsResponse(pod_sandbox_metrics=chunk)

    def _chosen_containers(self, chosen: api.ContainerStatsFilter) -> list[Container]:
        return [
            item
            for item in self._state.containers()
            if item.status.state.shown
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
        return [self._targets.container(item, sandboxes[item.sandbox_id]) for item in containers]

    def _sandbox_targets(self, sandboxes: Sequence[Sandbox]) -> list[SandboxTarget]:
        below: dict[SandboxID, list[Container]] = {item.id: [] for item in sandboxes}
        for container in self._state.containers():
            if container.sandbox_id in below and container.status.state.shown:
                below[container.sandbox_id].append(container)
        return [self._targets.sandbox(sandbox, below[sandbox.id]) for sandbox in sandboxes]

    def _read_containers(self, targets: Sequence[ContainerTarget], into: _Repeated[api.ContainerStats]) -> None:
        self._messages.fill_containers(into, self._collector.containers(targets))

    def _read_sandboxes(self, targets: Sequence[SandboxTarget], into: _Repeated[api.PodSandboxStats]) -> None:
        self._messages.fill_sandboxes(into, self._collector.sandboxes(targets))

    def _read_metrics(self, targets: Sequence[SandboxTarget], into: _Repeated[api.PodSandboxMetrics]) -> None:
        # Names of devices are looked up in sysfs: once for each list.
        file_system, name_of = self._collector.file_system(), cache(device_name)
        for found in self._collector.metrics(targets):
            fill_sandbox_metrics(into.add(), found, file_system, name_of)


def _parts(targets: Sequence[Target]) -> Iterator[Sequence[Target]]:
    """Yield ``targets`` in parts that are read in one go."""
    return (targets[start : start + CHUNK_ITEMS] for start in range(0, len(targets), CHUNK_ITEMS))


def _required(text: str, field: str) -> str:
    if not text:
        raise InvalidArgument(f"{field} is required")
    return text
