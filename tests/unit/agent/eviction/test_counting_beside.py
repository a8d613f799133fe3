"""A disk that is full does not keep memory from being looked at, however long pods take to be counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from podkeep.agent.eviction import manager as manager_module
from podkeep.agent.eviction.ending import Ending
from podkeep.agent.eviction.manager import EvictionManager
from podkeep.agent.eviction.statistics import Statistics
from podkeep.agent.metrics import EVICTIONS
from podkeep.agent.poddirs import PodDirs
from podkeep.api import manifest
from podkeep.api.pod import Pod
from podkeep.base.config import AgentConfig, Config
from podkeep.base.metrics import Metrics
from podkeep.cri.v1 import api_pb2
from support.evicted import PodsOfNode
from unit.cri.cri_endpoint import run, talking

ALWAYS = "1Ei"
"""A threshold that is always met."""


def pod(name: str) -> Pod:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "main", "image": "i:1"}]},
    }
    return manifest.parse(yaml.safe_dump(document), source="f").pods[0]


def stats(name: str, *, memory: int, written: int) -> api_pb2.PodSandboxStats:
    found = api_pb2.PodSandboxStats()
    found.attributes.id = name
    found.attributes.metadata.uid = f"uid-{name}"
    found.linux.memory.working_set_bytes.value = memory
    container = found.linux.containers.add()
    container.attributes.metadata.name = "main"
    container.writable_layer.used_bytes.value = written
    return found


class World(PodsOfNode):
    """The pods of a node whose runtime counts for as long as it is let, and what the node says and does."""

    def __init__(self, *names: str) -> None:
        super().__init__(pod(name) for name in names)
        self.metrics = Metrics()
        self.asked = asyncio.Event()
        self.counted = asyncio.Event()

    def pod(self, pod: Pod, kind: str, reason: str, message: str, annotations: dict[str, str] | None = None) -> None:
        self.said.append(message.partition(".")[0])

    async def nothing(self) -> None: ...

    async def listed(self, _: Any) -> api_pb2.ListPodSandboxStatsResponse:
        # Who writes most uses least memory.
        found = [stats("writes", memory=1 << 20, written=1 << 40), stats("thinks", memory=1 << 30, written=1)]
        return api_pb2.ListPodSandboxStatsResponse(stats=[*found, stats("late", memory=0, written=1)])

    async def single(self, request: api_pb2.PodSandboxStatsRequest) -> api_pb2.PodSandboxStatsResponse:
        self.asked.set()
        await self.counted.wait()
        (found,) = (item for item in (await self.listed(None)).stats if item.attributes.id == request.pod_sandbox_id)
        return api_pb2.PodSandboxStatsResponse(stats=found)


@asynccontextmanager
async def managed(
    tmp_path: Path, world: World, *, images_on: Path | None = None, **settings: Any
) -> AsyncIterator[EvictionManager]:
    """Yield the manager of a node whose disk is too full, by its settings."""
    settings = {"eviction_hard": {"nodefs.available": ALWAYS}} | settings
    agent = AgentConfig(root=str(tmp_path), pod_logs=str(tmp_path / "logs"), **settings)
    (tmp_path / "pods").mkdir()

    async def filesystems(_: Any) -> api_pb2.ImageFsInfoResponse:
        place = api_pb2.FilesystemUsage(fs_id=api_pb2.FilesystemIdentifier(mountpoint=str(images_on or tmp_path)))
        return api_pb2.ImageFsInfoResponse(image_filesystems=[place])

    rpcs = {"ListPodSandboxStats": world.listed, "PodSandboxStats": world.single}
    config = Config(agent=agent)
    async with talking(tmp_path / "s", runtime=rpcs, images={"ImageFsInfo": filesystems}) as client:
        statistics = Statistics(client, config, PodDirs.of(config))
        manager = EvictionManager(
            agent=agent,
            statistics=statistics,
            pods=world,
            events=world,
            containers=world.nothing,
            images=world.nothing,
            metrics=world.metrics,
        )
        yield manager
        world.counted.set()
        statistics.close()


class Stuck(World):
    """Of its pods, the one that uses most memory does not end."""

    async def end(self, pod: Pod, ending: Ending) -> None:
        self.ended.append(pod.metadata.name)
        if pod.metadata.name == "thinks":
            await asyncio.Event().wait()
        self.running.remove(pod)


@pytest.mark.slow
def test_a_pod_that_does_not_end_is_not_evicted_in_place_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was chosen again at each look, and no other pod was ever ended."""
    monkeypatch.setattr(manager_module, "_LEAST_WAIT_S", 0.0)

    async def work() -> None:
        world = Stuck("writes", "thinks")
        async with managed(tmp_path, world, eviction_hard={"memory.available": ALWAYS}) as manager:
            for _ in range(3):
                await manager.look()
        assert world.ended == ["thinks", "writes", "thinks"]
        assert world.said.count("Container runtime did not kill the pod within specified grace period") == 2

    run(work())


@pytest.mark.slow
def test_memory_is_looked_at_while_what_fills_a_disk_is_counted(tmp_path: Path) -> None:
    """A count of two minutes was waited for, while the node ran out of memory."""
    soft: dict[str, Any] = {
        "eviction_soft": {"memory.available": ALWAYS},
        "eviction_soft_grace_period": {"memory.available": 0.001},
    }

    async def work() -> None:
        world = World("writes", "thinks")
        async with managed(tmp_path, world, **soft) as manager:
            assert await manager.look() == []
            assert world.asked.is_set(), "the disk is due alone, and its pods are counted"
            await manager.look()
        assert world.ended == ["thinks"]
        assert world.said[0] == "Attempting to reclaim ephemeral-storage"

    run(work())


@pytest.mark.slow
def test_a_pod_that_came_after_the_count_does_not_go_for_a_full_disk(tmp_path: Path) -> None:
    """Of those of which nothing is known, the first would go."""

    async def work() -> None:
        world = World("writes", "thinks")
        async with managed(tmp_path, world) as manager:
            assert await manager.look() == []
            world.running.append(pod("late"))
            world.counted.set()
            await manager.look()
        assert world.ended == ["writes"]

    run(work())


@pytest.mark.slow
def test_what_was_counted_of_one_full_disk_does_not_end_a_pod_for_another(tmp_path: Path) -> None:
    """The images on that one had not been removed yet."""
    soft: dict[str, Any] = {
        "eviction_soft": {"imagefs.available": ALWAYS, "nodefs.available": ALWAYS},
        # The other disk is due after the first look.
        "eviction_soft_grace_period": {"imagefs.available": 0.001, "nodefs.available": 0.0},
    }

    async def work() -> None:
        world = World("writes", "thinks")
        # Any file system that is another one than that of the pods.
        async with managed(tmp_path, world, images_on=Path("/proc"), eviction_hard={}, **soft) as manager:
            assert await manager.look() == []
            assert world.asked.is_set(), "the disk of the pods is due alone, and they are counted"
            world.counted.set()
            while not world.ended:
                await manager.look()
        assert world.metrics.value(EVICTIONS, "nodefs.available") == 1

    run(work())
