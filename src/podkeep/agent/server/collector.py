"""Statistics are gathered here: from the runtime, /proc, cgroups and file systems; what they mean is ``stats.py``'s.

Nothing is measured while nobody asks. Sizes of logs and volumes are kept for a minute (kubelet:
volumeStatsAggPeriod), since a tree of files takes long to count: as long as its pod likes. So who asks waits for them a
while only, and has the former ones else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from podkeep.agent.server import node_usage, stats
from podkeep.agent.server.node_usage import NodeUsage
from podkeep.agent.server.stats import FileSystem, Inventory, Json, NodeFacts, PodDisk, Size
from podkeep.api.pod import Pod
from podkeep.api.status import PodStatus
from podkeep.base.concurrency.tasks import Tasks, on_thread
from podkeep.base.errors import PodkeepError
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from podkeep.kernel.cgroup import cgroup_stats, cgroups
from podkeep.kernel.cgroup.cgroup_stats import StatsReader, Usage

log = logging.getLogger(__name__)

_CORES_S = 10.0
"""Over how long a time the node's share of processors is measured, at least."""
_SIZES_S = 60.0
_WAIT_S = 2.0
"""How long sizes that are being measured are waited for."""


class Disk(Protocol):
    """Measures what a pod takes of the node's disk. Blocking."""

    def __call__(self, pod: Pod, *, ending: threading.Event) -> PodDisk:
        """Return the sizes of its logs, volumes and files; what was seen of them when ``ending`` is set."""
        ...


class Collector:
    """Gathers the statistics of one node.

    :param root: directory whose file system logs and volumes are on (kubelet: nodefs).
    :param groups: cgroups of the system to tell of, by kubelet's names for them.
    """

    def __init__(
        self,
        client: CriClient,
        node: str,
        root: Path,
        *,
        pods: Callable[[], Iterable[tuple[Pod, PodStatus]]],
        disk: Disk,
        groups: dict[str, str],
    ) -> None:
        self._client, self._node, self._root = client, node, root
        self._pods, self._disk, self._groups = pods, disk, groups
        self._started = int(node_usage.boot_time() * 1e9)
        self._agent_started = time.time_ns()
        self._cores = _Cores()
        self._sizes: dict[str, tuple[float, PodDisk]] = {}
        self._measuring: asyncio.Task[None] | None = None
        self._tasks = Tasks("measuring what pods have on disks")
        self._ending = threading.Event()
        self._reader: StatsReader | None = None

    async def close(self) -> None:
        """Give up what is being measured, and close descriptors."""
        self._ending.set()
        await self._tasks.close()
        if self._reader is not None:
            self._reader.close()

    async def summary(self, *, cpu_and_memory: bool = False) -> Json:
        """Return what ``/stats/summary`` answers.

        :param cpu_and_memory: leave disks, network and processes out, which are measured with more effort.
        :raises PodkeepError: if the runtime or the kernel does not say.
        """
        created, pods = await asyncio.gather(self._created(), self._sandbox_stats())
        usage = await asyncio.to_thread(node_usage.read)
        moment = time.time_ns()
        root = await asyncio.to_thread(file_system, self._root)
        if cpu_and_memory:
            inventory = Inventory(created=created, root=root, file_systems={}, disks={})
            node = stats.node_stats(await self._facts(usage, root, moment, None))
            small = {key: node[key] for key in ("nodeName", "startTime", "systemContainers", "cpu", "memory", "swap")}
            return {"node": small, "pods": [_small(stats.pod_stats(item, inventory)) for item in pods]}
        images = await self._client.images.ImageFsInfo(api_pb2.ImageFsInfoRequest())
        mounts = {layer.writable_layer.fs_id.mountpoint for item in pods for layer in item.linux.containers} | {
            item.fs_id.mountpoint for item in (*images.image_filesystems, *images.container_filesystems)
        }
        systems = await asyncio.to_thread(_file_systems, mounts - {""})
        inventory = Inventory(created=created, root=root, file_systems=systems, disks=await self._disks())
        node = stats.node_stats(await self._facts(usage, root, moment, (images, systems)))
        return {"node": node, "pods": [stats.pod_stats(item, inventory) for item in pods]}

    async def _created(self) -> dict[str, int]:
        sandboxes, containers = await asyncio.gather(
            self._client.runtime.ListPodSandbox(
                api_pb2.ListPodSandboxRequest(
                    filter=api_pb2.PodSandboxFilter(state=api_pb2.PodSandboxStateValue(state=api_pb2.SANDBOX_READY))
                )
            ),
            self._client.runtime.ListContainers(
                api_pb2.ListContainersRequest(
                    filter=api_pb2.ContainerFilter(state=api_pb2.ContainerStateValue(state=api_pb2.CONTAINER_RUNNING))
                )
            ),
        )
        found = {item.id: item.created_at for item in sandboxes.items}
        return found | {item.id: item.created_at for item in containers.containers}

    async def _sandbox_stats(self) -> list[api_pb2.PodSandboxStats]:
        answer = await self._client.runtime.ListPodSandboxStats(api_pb2.ListPodSandboxStatsRequest())
        return list(answer.stats)

    async def _facts(
        self,
        usage: NodeUsage,
        root: FileSystem,
        moment: int,
        images: tuple[api_pb2.ImageFsInfoResponse, dict[str, FileSystem]] | None,
    ) -> NodeFacts:
        answer, systems = images or (api_pb2.ImageFsInfoResponse(), {})
        image = next(iter(answer.image_filesystems), None)
        layers = next(iter(answer.container_filesystems), image)
        return NodeFacts(
            name=self._node,
            started=self._started,
            moment=moment,
            usage=usage,
            nano_cores=self._cores.of(usage.cpu_ns, time.monotonic_ns()),
            root=root,
            images=systems.get(image.fs_id.mountpoint) if image else None,
            images_size=_size(image),
            containers=systems.get(layers.fs_id.mountpoint) if layers else None,
            containers_size=_size(layers),
            groups=await asyncio.to_thread(self._group_usages),
        )

    def _group_usages(self) -> dict[str, tuple[int, Usage]]:
        found: dict[str, tuple[int, Usage]] = {}
        try:
            if self._reader is None:
                self._reader = cgroup_stats.open_reader(cgroups.detect())
            for name, path in self._groups.items():
                usage = self._reader.usage(path)
                if usage is not None:
                    found[name] = (self._agent_started if name == "kubelet" else self._started, usage)
        except PodkeepError as error:
            log.info("statistics of the system's cgroups are left out: %s", error.message)
        return found

    async def _disks(self) -> dict[str, PodDisk]:
        # One count at a time, however many ask: a second walk over the same files would take as long and slow down
        # both.
        if self._measuring is None or self._measuring.done():
            self._measuring = self._tasks.start(self._measure())
        await asyncio.wait({self._measuring}, timeout=_WAIT_S)
        return {uid: disk for uid, (_, disk) in self._sizes.items()}

    async def _measure(self) -> None:
        """Measure the pods that were not measured for a while, one after the other."""
        there = {pod.metadata.uid: pod for pod, _ in self._pods()}
        for uid in self._sizes.keys() - there.keys():
            del self._sizes[uid]
        for uid, pod in there.items():
            now = time.monotonic()
            if uid in self._sizes and now - self._sizes[uid][0] <= _SIZES_S:
                continue
            with suppress(OSError, PodkeepError):
                disk = await on_thread(partial(self._disk, pod, ending=self._ending))
                self._sizes[uid] = (time.monotonic(), disk)


class _Cores:
    """How much of the processors is used: the difference between two readings that are some seconds apart."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None
        self._value: int | None = None

    def of(self, cpu_ns: int, now_ns: int) -> int | None:
        """Return nanoseconds for each second; None before there are two readings."""
        if self._before is None:
            self._before = cpu_ns, now_ns
            return None
        passed = now_ns - self._before[1]
        if self._value is None and passed > 0:
            return max(0, (cpu_ns - self._before[0]) * 10**9 // passed)
        if passed >= _CORES_S * 1e9:
            self._value = max(0, (cpu_ns - self._before[0]) * 10**9 // passed)
            self._before = cpu_ns, now_ns
        return self._value


def _small(pod: Json) -> Json:
    kept = ("podRef", "startTime", "cpu", "memory", "swap")
    containers = [
        {key: item[key] for key in ("name", "startTime", "cpu", "memory", "swap") if key in item}
        for item in pod["containers"]
    ]
    return {key: pod[key] for key in kept if key in pod} | {"containers": containers}


def _size(usage: api_pb2.FilesystemUsage | None) -> Size | None:
    return None if usage is None else Size(used_bytes=usage.used_bytes.value, inodes=usage.inodes_used.value)


def file_system(path: Path) -> FileSystem:
    """Return the file system that ``path`` is on, or what of its directories above is there.

    :raises OSError: if it cannot be had.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    return file_system_of(os.statvfs(path))


def file_system_of(found: os.statvfs_result) -> FileSystem:
    """Return what the kernel says of a file system."""
    return FileSystem(
        moment=time.time_ns(),
        available=found.f_bavail * found.f_frsize,
        capacity=found.f_blocks * found.f_frsize,
        inodes=found.f_files,
        inodes_free=found.f_ffree,
    )


def _file_systems(mounts: set[str]) -> dict[str, FileSystem]:
    found = {}
    for mount in mounts:
        with suppress(OSError):
            found[mount] = file_system(Path(mount))
    return found
