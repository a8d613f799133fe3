"""Giving a pod that runs other resources: its cgroup, its containers, its classes.

Owns the order, which is a kubelet's (kuberuntime, doPodResizeAction): what grows is given to the pod before its
containers, what shrinks is taken from the containers before the pod. Does not own whether a pod may have it
(``allocations.py``), or which containers need it (``pod/plan.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import structs

from podkeep.agent.resources import cgroup_names, pod_limits, podcgroups, qos, requests, resize
from podkeep.agent.resources import class_messages as convert
from podkeep.agent.resources.pod_limits import CgroupLimits
from podkeep.agent.resources.resize import Allocation
from podkeep.api.containers import Container, ResourceRequirements
from podkeep.api.pod import Pod
from podkeep.base.config import Config
from podkeep.base.errors import FailedPrecondition, NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

_NOTHING = ResourceRequirements()


class Running(FrozenStruct, kw_only=True):
    """A container that runs, by its ID, and what its specification says now."""

    id: str
    container: Container


class Resizer:
    """Changes resources of pods of this node.

    :param memory: bytes of memory of the machine.
    :param page_sizes: sizes of huge pages that it has.
    """

    def __init__(self, client: CriClient, config: Config, memory: int, page_sizes: Sequence[str]) -> None:
        self._client = client
        self._config = config
        self._memory = memory
        self._page_sizes = page_sizes

    async def begin(self, pod: Pod, had: Allocation, running: Sequence[Running]) -> CgroupLimits:
        """Check that no limit of memory falls below what is in use, and give the pod's cgroup what grows.

        :returns: the limits that the cgroup is to have once its containers have theirs; none if only classes change.
        :raises FailedPrecondition: if memory is in use.
        :raises PodkeepError: if the kernel or the runtime refuses.
        """
        if resize.same_amounts(resize.of(pod), had):
            return CgroupLimits()
        root = cgroup_names.root(self._config)
        agent = self._config.agent
        wanted = pod_limits.of_pod(pod, pids_limit=agent.pod_pids_limit, cfs_quota=agent.cpu_cfs_quota)
        now = await asyncio.to_thread(podcgroups.current, root, pod)
        await self._require_memory(pod, had, running, wanted, now)
        await asyncio.to_thread(podcgroups.update, root, pod, larger(wanted, now))
        # Only CPU and memory can be changed while a pod runs (KEP-1287).
        return structs.replace(wanted, hugepages={}, pids=None)

    async def container(self, pod: Pod, had: Allocation, running: Running) -> None:
        """Give one container its resources, and its classes if they changed.

        :raises NotFound: if it is gone.
        :raises PodkeepError: if the runtime refuses.
        """
        given = qos.linux_resources(
            pod,
            running.container,
            self._memory,
            self._page_sizes,
            cfs_quota=self._config.agent.cpu_cfs_quota,
        )
        before = had.containers.get(running.container.name, _NOTHING)
        classes = running.container.resources.classes
        linux = api_pb2.LinuxContainerResources(
            cpu_period=given.cpu_period_us,
            cpu_quota=given.cpu_quota_us,
            cpu_shares=given.cpu_shares,
            memory_limit_in_bytes=given.memory_limit_bytes,
        )
        request = api_pb2.UpdateContainerResourcesRequest(
            container_id=running.id,
            # What a class means may be the same files: they are left alone when nothing else changes.
            linux=None if resize.same_amounts(resize.of(pod), had) else linux,
            class_resources=convert.of_container(classes) if classes != before.classes else None,
        )
        await self._client.runtime.UpdateContainerResources(request)

    async def finish(self, pod: Pod, wanted: CgroupLimits) -> None:
        """Give the pod's cgroup what it is to have in the end.

        :raises PodkeepError: if the kernel refuses.
        """
        await asyncio.to_thread(podcgroups.update, cgroup_names.root(self._config), pod, wanted)

    async def _require_memory(
        self, pod: Pod, had: Allocation, running: Sequence[Running], wanted: CgroupLimits, now: CgroupLimits
    ) -> None:
        problems = []
        if wanted.memory is not None and (now.memory is None or wanted.memory < now.memory):
            used = await asyncio.to_thread(podcgroups.memory_in_use, cgroup_names.root(self._config), pod)
            if used >= wanted.memory:
                problems.append(f"attempting to set pod memory limit ({wanted.memory}) below current usage ({used})")
        for item in running:
            before = had.containers.get(item.container.name, _NOTHING)
            limit = _memory(item.container.resources)
            if not limit or limit >= (_memory(before) or limit + 1):
                continue
            usage = await self._usage(item.id)
            if usage is not None and usage >= limit:
                problems.append(
                    f'attempting to set container "{item.container.name}" memory limit ({limit}) below current usage '
                    f"({usage})"
                )
        if problems:
            shown = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
            raise FailedPrecondition(f"cannot decrease memory limits: {shown}")

    async def _usage(self, container: str) -> int | None:
        try:
            answer = await self._client.runtime.ContainerStats(api_pb2.ContainerStatsRequest(container_id=container))
        except NotFound:
            return None
        return answer.stats.memory.usage_bytes.value if answer.stats.HasField("memory") else None


def in_order(running: Sequence[Running], had: Allocation) -> list[Running]:
    """Return containers in the order in which they are changed: first those whose memory shrinks."""

    def grows(item: Running) -> bool:
        return _memory(item.container.resources) >= _memory(had.containers.get(item.container.name, _NOTHING))

    # What shrinks makes room below the pod's limit for what grows.
    return sorted(running, key=grows)


def larger(wanted: CgroupLimits, now: CgroupLimits) -> CgroupLimits:
    """Return the limits of a pod's cgroup while its containers change from what they have to what they get."""
    quota = wanted.quota_us
    if quota is not None and now.quota_us is not None:
        # 0 is no limit, which is more than any number.
        quota = 0 if 0 in (quota, now.quota_us) else max(quota, now.quota_us)
    memory = wanted.memory
    if memory is not None:
        memory = None if now.memory is None else max(memory, now.memory)
    shares = wanted.shares
    if shares is not None and now.shares is not None:
        shares = max(shares, now.shares)
    return CgroupLimits(shares=shares, quota_us=quota, memory=memory)


def _memory(given: ResourceRequirements) -> int:
    return requests.amount(requests.MEMORY, given.limits.get(requests.MEMORY, "0"))
