"""How much of what can become scarce there is, and what pods use of it.

Owns: where figures come from. The node's own are a few files and statvfs(3) calls each time. What pods use costs a call
of the runtime (ListPodSandboxStats) and walks over their files: it is asked for when a threshold is met, or for pods
that have a limit of local storage. The memory of the machine is its working set as upstream has it, without what the
kernel would drop first; from /proc/meminfo, which is right for both versions of cgroups.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from podkeep.agent.convert import names
from podkeep.agent.eviction.ranking import Filesystems
from podkeep.agent.eviction.usage import ContainerUse, DiskUse, PodUse, is_local
from podkeep.agent.logs import files as log_files
from podkeep.agent.poddirs import PodDir, PodDirs
from podkeep.agent.resources import cgroup_names
from podkeep.agent.resources import thresholds as signals
from podkeep.agent.resources.thresholds import Observation, Observations
from podkeep.api.pod import Pod
from podkeep.base.config import Config
from podkeep.base.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    NotFound,
    PodkeepError,
    Unavailable,
    Unimplemented,
)
from podkeep.base.ids import PodUID
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from podkeep.kernel.cgroup import cgroup_stats, systemd
from podkeep.kernel.cgroup.cgroups import detect
from podkeep.kernel.files import openat, tree_size
from podkeep.kernel.files.tree_size import TreeSize
from podkeep.kernel.process import totals

log = logging.getLogger(__name__)

_ALL_S = 60.0
"""How long the files of all pods are counted together. What was not seen until then counts nothing."""
_TURN_S = 1.0
"""How long those of one pod are counted while others wait; less if these are many."""
_PLUGINS = ("kubernetes.io~empty-dir", "kubernetes.io~configmap", "kubernetes.io~git-repo")


class Statistics:
    """Reads what pods, containers and file systems of this node use."""

    def __init__(self, client: CriClient, config: Config, dirs: PodDirs) -> None:
        self._client = client
        self._config = config
        self._dirs = dirs
        self._cgroups = cgroup_stats.open_reader(detect())
        root = cgroup_names.root(config)
        self._pods_cgroup = systemd.expand(root) if systemd.is_slice(root) else root
        self._images = self._layers = ""
        self._ending = threading.Event()

    def close(self) -> None:
        """Give up what is being counted, and close what is open."""
        self._ending.set()
        self._cgroups.close()

    async def filesystems(self) -> Filesystems:
        """Return how the file systems of images and writable layers lie.

        :raises PodkeepError: if the runtime does not say where they are.
        """
        await self._find()
        return await asyncio.to_thread(self._apart)

    async def observe(self) -> Observations:
        """Return how much there is of everything that has a threshold."""
        with suppress(PodkeepError):  # then there is nothing to say about images
            await self._find()
        return await asyncio.to_thread(self._observe)

    async def pods(self, pods: Iterable[Pod], *, turn: float | None) -> dict[str, PodUse]:
        """Return what pods use, by UID; those that the runtime says nothing of are left out.

        :param turn: for how many seconds the files of each are counted; None: to their end.
        :raises PodkeepError: if the runtime does not answer.
        """
        wanted, by_uid = await self._listed(pods)
        return await asyncio.to_thread(
            lambda: {
                pod.metadata.uid: self._pod(pod, by_uid[pod.metadata.uid].linux, _Counting.of(self._ending, turn))
                for pod in wanted
            }
        )

    async def to_rank(self, pods: Iterable[Pod], *, files: bool) -> dict[str, PodUse]:
        """Return what pods use, as :meth:`pods` does, so that one of them is chosen.

        :param files: whether what is on disks is counted, also by the runtime, whose list is as old as its last walk.
            It takes as long as pods have it take: here and there a minute at most.
        :raises PodkeepError: if the runtime does not answer.
        """
        wanted, by_uid = await self._listed(pods)
        if files:
            await self._count_anew([pod.metadata.uid for pod in wanted], by_uid)
        linux = {uid: item.linux for uid, item in by_uid.items()}
        if files:
            return await asyncio.to_thread(self._in_turns, wanted, linux)
        return {pod.metadata.uid: self._pod(pod, linux[pod.metadata.uid], None) for pod in wanted}

    async def _listed(self, pods: Iterable[Pod]) -> tuple[list[Pod], dict[str, api_pb2.PodSandboxStats]]:
        """Return the pods of which the runtime says what they use, and that, by UID."""
        answer = await self._client.runtime.ListPodSandboxStats(api_pb2.ListPodSandboxStatsRequest())
        by_uid: dict[str, api_pb2.PodSandboxStats] = {}
        for item in answer.stats:
            uid = item.attributes.metadata.uid
            # Of several sandboxes of a pod, the one that runs has figures.
            if uid not in by_uid or item.linux.HasField("memory"):
                by_uid[uid] = item
        return [pod for pod in pods if pod.metadata.uid in by_uid], by_uid

    async def _count_anew(self, wanted: Iterable[str], by_uid: dict[str, api_pb2.PodSandboxStats]) -> None:
        """Replace the statistics of pods by such as are counted now; what takes too long stays as it was listed."""
        late = time.monotonic() + _ALL_S
        for uid in wanted:
            left = late - time.monotonic()
            if left <= 0 or self._ending.is_set():
                return
            request = api_pb2.PodSandboxStatsRequest(pod_sandbox_id=by_uid[uid].attributes.id)
            try:
                by_uid[uid] = (await self._client.runtime.PodSandboxStats(request, timeout=left)).stats
            except (NotFound, FailedPrecondition):
                continue  # it has ended since it was listed
            except (Unavailable, DeadlineExceeded, Unimplemented) as error:
                log.warning("eviction manager: sizes of pods are as old as the runtime has them: %s", error)
                return
            except PodkeepError as error:
                # Of this pod alone: no pod may keep the others from being counted.
                log.warning("eviction manager: what pod %s wrote is as old as the runtime has it: %s", uid, error)

    async def _find(self) -> None:
        if self._images:
            return
        answer = await self._client.images.ImageFsInfo(api_pb2.ImageFsInfoRequest())
        images = [item.fs_id.mountpoint for item in answer.image_filesystems]
        layers = [item.fs_id.mountpoint for item in answer.container_filesystems]
        self._images = images[0] if images else ""
        self._layers = layers[0] if layers else self._images

    def _apart(self) -> Filesystems:
        # On a new node nothing has made it yet, and which disk it is on could not be told.
        with suppress(OSError):
            self._dirs.make()
        node, images, layers = (_device(path) for path in (str(self._dirs.pods), self._images, self._layers))
        return Filesystems(
            images_apart=None not in (images, node) and images != node,
            layers_apart=layers is not None and layers != images,
        )

    def _observe(self) -> Observations:
        found: dict[str, Observation] = {}
        # What cannot be read has no observation, so that its thresholds are not met: no pod is ended for a lack of
        # figures.
        with suppress(Internal):
            if (memory := memory_available(totals.memory())) is not None:
                found[signals.MEMORY] = memory
            most = totals.max_tasks()
            found[signals.PIDS] = Observation(available=most - totals.tasks(), capacity=most)
        pods = self._cgroups.usage(self._pods_cgroup)
        if pods is not None and pods.memory.limit is not None:
            limit, used = pods.memory.limit, pods.memory.working_set
            found[signals.ALLOCATABLE_MEMORY] = Observation(available=max(limit - used, 0), capacity=limit)
        for path, disk, inodes in (
            (str(self._dirs.pods), signals.NODEFS, signals.NODEFS_INODES),
            (self._images, signals.IMAGEFS, signals.IMAGEFS_INODES),
            (self._layers, signals.CONTAINERFS, signals.CONTAINERFS_INODES),
        ):
            found |= _filesystem(path, disk, inodes)
        return found

    def _in_turns(self, pods: Sequence[Pod], by_uid: Mapping[str, api_pb2.LinuxPodSandboxStats]) -> dict[str, PodUse]:
        """Count all pods a little, then those whose files are more than that for as long as there is."""
        late = time.monotonic() + _ALL_S
        turn = min(_TURN_S, _ALL_S / 2 / max(len(pods), 1))
        found: dict[str, PodUse] = {}

        def count(pod: Pod, seconds: float) -> PodUse:
            uid = pod.metadata.uid
            found[uid] = self._pod(pod, by_uid[uid], _Counting.of(self._ending, seconds))
            return found[uid]

        longer = [pod for pod in pods if count(pod, turn).partly]
        for index, pod in enumerate(longer):
            share = (late - time.monotonic()) / (len(longer) - index)
            # Or it would be counted less far than it was.
            if share > turn:
                count(pod, share)
        return found

    def _pod(self, pod: Pod, stats: api_pb2.LinuxPodSandboxStats, counting: _Counting | None) -> PodUse:
        began = time.monotonic()
        logs = Path(names.log_directory(self._config.agent.pod_logs, pod))
        containers = {}
        # Of several attempts of a container the newest counts, as with a kubelet, however a runtime lists them.
        for item in sorted(stats.containers, key=lambda item: item.attributes.metadata.attempt):
            name = item.attributes.labels.get(names.CONTAINER_NAME) or item.attributes.metadata.name
            layer = None
            if item.HasField("writable_layer"):
                disk = item.writable_layer
                layer = DiskUse(disk.used_bytes.value, disk.inodes_used.value)
            containers[name] = ContainerUse(
                memory=item.memory.working_set_bytes.value if item.HasField("memory") else None,
                layer=layer,
                logs=DiskUse() if counting is None else counting.logs(logs / name),
            )
        volumes = {} if counting is None else self._volumes(pod, counting)
        local = {volume.name for volume in pod.spec.volumes if is_local(volume)}
        other = DiskUse() if counting is None else counting.other(self._dirs.directory(PodUID(pod.metadata.uid)))
        return PodUse(
            memory=stats.memory.working_set_bytes.value if stats.HasField("memory") else None,
            processes=stats.process.process_count.value,
            containers=containers,
            volumes={name: use for name, use in volumes.items() if name in local},
            in_memory={name: use for name, use in volumes.items() if name not in local},
            other=other,
            seconds=time.monotonic() - began,
            partly=counting is not None and counting.partly,
        )

    def _volumes(self, pod: Pod, counting: _Counting) -> dict[str, DiskUse]:
        directory = self._dirs.directory(PodUID(pod.metadata.uid))
        found = {}
        for volume in pod.spec.volumes:
            for plugin in _PLUGINS:
                use = counting.volume(directory.volume(plugin, volume.name))
                if use is not None:
                    found[volume.name] = use
        return found


@dataclass
class _Counting:
    """Counts the files of one pod until a time (``time.monotonic``), or the end of the agent.

    ``partly``: what was counted last was not counted to its end.
    """

    ending: threading.Event
    late: float
    partly: bool = False

    @classmethod
    def of(cls, ending: threading.Event, turn: float | None) -> _Counting:
        return cls(ending, math.inf if turn is None else time.monotonic() + turn)

    def stop(self) -> bool:
        self.partly = self.partly or self.ending.is_set() or time.monotonic() > self.late
        return self.partly

    def volume(self, path: Path) -> DiskUse | None:
        volume = tree_size.open_volume(path)
        if volume is None:
            return None
        with openat.closing(volume.fd):
            if volume.apart:  # it knows what is on it
                info = os.fstatvfs(volume.fd)
                return DiskUse((info.f_blocks - info.f_bfree) * info.f_frsize, info.f_files - info.f_ffree)
            found = tree_size.count(volume.fd, stop=self.stop, partly=True)
        return DiskUse() if found is None else _use(found)

    def other(self, directory: PodDir) -> DiskUse:
        return _use(directory.size_beside_volumes(self.stop))

    def logs(self, directory: Path) -> DiskUse:
        try:
            fd = log_files.open_directory(directory)
        except (OSError, FailedPrecondition):
            return DiskUse()
        with openat.closing(fd):
            found = tree_size.count(fd, stop=self.stop, partly=True)
        return DiskUse() if found is None else _use(found)


def _use(size: TreeSize) -> DiskUse:
    return DiskUse(size.used_bytes, size.inodes, hidden=size.hidden)


def memory_available(found: Mapping[str, int]) -> Observation | None:
    """Return the memory of a machine, from its /proc/meminfo in bytes: what is free, and inactive page cache."""
    if "MemTotal" not in found or "MemFree" not in found:
        return None
    return Observation(available=found["MemFree"] + found.get("Inactive(file)", 0), capacity=found["MemTotal"])


def _filesystem(path: str, disk: str, inodes: str) -> dict[str, Observation]:
    if not path:
        return {}
    try:
        info = os.statvfs(path)
    except (OSError, ValueError):  # the second of a NUL, which a runtime may say
        return {}
    found = {disk: Observation(available=info.f_bavail * info.f_frsize, capacity=info.f_blocks * info.f_frsize)}
    if info.f_files:  # some file systems have no fixed number of them
        found[inodes] = Observation(available=info.f_favail, capacity=info.f_files)
    return found


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev if path else None
    except (OSError, ValueError):
        return None
