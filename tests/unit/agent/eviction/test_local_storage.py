"""Limits of local storage hold whatever else there is: many files, volumes in memory, pods beyond their limits."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from podkeep.agent.eviction import ranking, statistics
from podkeep.agent.eviction.ending import Ending
from podkeep.agent.eviction.local_storage import LocalStorage
from podkeep.agent.eviction.manager import EvictionManager
from podkeep.agent.eviction.ranking import Filesystems
from podkeep.agent.eviction.statistics import Statistics
from podkeep.agent.eviction.usage import DiskUse, PodUse
from podkeep.agent.metrics import AgentMetrics
from podkeep.agent.poddirs import PodDirs
from podkeep.agent.resources import thresholds as signals
from podkeep.agent.server import disk
from podkeep.api.pod import Pod
from podkeep.base.config import AgentConfig, Config
from podkeep.base.ids import PodUID
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from support.exchanged import ExchangedLog
from support.pods import container
from support.pods import pod as pods_of
from unit.cri.cri_endpoint import run, talking

MI = 1 << 20
DATA = {"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}


def pod(uid: str, *volumes: Mapping[str, Any], limits: str = "") -> Pod:
    return pods_of(container(limits=limits), name=uid, metadata={"uid": uid}, volumes=volumes)


async def stats(_: Any) -> api_pb2.ListPodSandboxStatsResponse:
    found = api_pb2.ListPodSandboxStatsResponse()
    for uid in ("large", "small", "memory"):
        item = found.stats.add()
        item.attributes.id = f"of-{uid}"
        item.attributes.metadata.uid = uid
        item.linux.memory.working_set_bytes.value = MI
    return found


async def one(request: api_pb2.PodSandboxStatsRequest) -> api_pb2.PodSandboxStatsResponse:
    listed = await stats(request)
    return api_pb2.PodSandboxStatsResponse(
        stats=next(item for item in listed.stats if item.attributes.id == request.pod_sandbox_id)
    )


async def file_systems(_: Any) -> api_pb2.ImageFsInfoResponse:
    return api_pb2.ImageFsInfoResponse()


def configuration(root: Path, **agent: Any) -> Config:
    return Config(agent=AgentConfig(root=str(root), pod_logs=str(root / "logs"), **agent))


def endpoint(path: Path) -> Any:
    return talking(
        path / "s",
        runtime={"ListPodSandboxStats": stats, "PodSandboxStats": one},
        images={"ImageFsInfo": file_systems},
    )


def statistics_of(client: CriClient, config: Config) -> Statistics:
    return Statistics(client, config, PodDirs.of(config))


def volume(config: Config, uid: str, name: str) -> Path:
    path = PodDirs.of(config).directory(PodUID(uid)).volume("kubernetes.io~empty-dir", name)
    path.mkdir(parents=True)
    return path


def fill(config: Config, uid: str, *, directories: int = 200) -> None:
    """Many directories, of which a walk visits the one with the large file last or in between, and that file."""
    root = volume(config, uid, "data")
    for number in range(directories):
        (root / f"{number}").mkdir()
    names = os.listdir(root)
    for name in (names[0], names[-1]):
        (root / name / "file").write_bytes(b"x" * 4 * MI)


async def until_counted(storage: LocalStorage, pods: Sequence[Pod], uid: str) -> PodUse:
    while True:
        found = (await storage.uses(pods)).get(uid)
        if found is not None and not found.partly:
            return found


def test_who_takes_longer_than_a_turn_is_counted_to_the_end_and_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many files made first would hide from a limit what comes after them."""
    monkeypatch.setattr("podkeep.agent.eviction.local_storage.TURN_S", 0.0)
    config = configuration(tmp_path)
    pods = [pod("large", DATA), pod("small", DATA)]
    fill(config, "large")
    volume(config, "small", "data")

    async def work() -> PodUse:
        async with endpoint(tmp_path) as client:
            statistics = statistics_of(client, config)
            storage = LocalStorage(statistics)
            first = await storage.uses(pods)
            assert set(first) == {"large", "small"}
            assert first["large"].partly
            found = await until_counted(storage, pods, "large")
            statistics.close()
            await storage.close()
            return found

    use = run(work())
    assert use.volumes["data"].used_bytes >= 8 * MI
    violation = ranking.violation(pods[0], use, Filesystems())
    assert violation is not None
    assert violation.signal == "emptydirfs.limit"


@pytest.mark.slow
def test_a_long_count_of_one_pod_does_not_put_off_the_next_of_another(tmp_path: Path) -> None:
    """What is counted within a turn, too: a count is followed by a pause of fifty times what it took."""
    config = configuration(tmp_path)
    pods = [pod("large", DATA), pod("small", DATA)]
    fill(config, "large", directories=800)
    volume(config, "small", "data")

    async def work() -> list[str]:
        async with endpoint(tmp_path) as client:
            statistics = statistics_of(client, config)
            storage = LocalStorage(statistics)
            counted: list[str] = []
            while counted.count("large") < 2:
                counted += sorted(await storage.uses(pods))
                await asyncio.sleep(0)
            statistics.close()
            await storage.close()
            return counted

    counted = run(work())
    assert counted[0] == "large"
    assert counted[1 : counted.index("large", 1)].count("small") > 3


@pytest.mark.slow
def test_many_pods_together_are_counted_for_a_bounded_share_of_the_time(tmp_path: Path) -> None:
    """Each for a fiftieth: fifty pods with many files kept a processor busy."""
    config = configuration(tmp_path)
    pods = [pod(f"many-{number}", DATA) for number in range(30)]
    for item in pods:
        root = volume(config, item.metadata.uid, "data")
        for number in range(100):
            (root / f"{number}").mkdir()

    async def listed(_: Any) -> api_pb2.ListPodSandboxStatsResponse:
        found = api_pb2.ListPodSandboxStatsResponse()
        for item in pods:
            found.stats.add().attributes.metadata.uid = item.metadata.uid
        return found

    async def work() -> float:
        async with talking(tmp_path / "s", runtime={"ListPodSandboxStats": listed}) as client:
            statistics = statistics_of(client, config)
            storage = LocalStorage(statistics)
            counted: list[PodUse] = []
            began = time.monotonic()
            while len(counted) < 5 * len(pods):
                counted += (await storage.uses(pods)).values()
                await asyncio.sleep(0.001)
            took = time.monotonic() - began
            statistics.close()
            await storage.close()
            # What was counted last has not rested yet, however long a busy machine kept it. Unbounded it would be 0.6.
            return sum(use.seconds for use in counted[: -len(pods)]) / took

    assert run(work()) < 0.3


def used(tmp_path: Path, config: Config, pods: Sequence[Pod]) -> Mapping[str, PodUse]:
    """Return what pods use, as they are ranked by it on a full disk."""

    async def work() -> Mapping[str, PodUse]:
        async with endpoint(tmp_path) as client:
            statistics = statistics_of(client, config)
            found = await statistics.to_rank(pods, files=True)
            statistics.close()
            return found

    return run(work())


def test_who_has_the_most_is_found_behind_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk all pods are counted a little, and then those with more for as long as there is."""
    monkeypatch.setattr("podkeep.agent.eviction.statistics._TURN_S", 0.0)
    config = configuration(tmp_path)
    pods = [pod("small", DATA), pod("large", DATA)]
    fill(config, "large")
    (volume(config, "small", "data") / "file").write_bytes(b"x" * MI)

    uses = used(tmp_path, config, pods)
    order = ranking.rank("nodefs.available", pods, lambda item: uses.get(item.metadata.uid), Filesystems())
    assert [item.metadata.uid for item in order] == ["large", "small"]
    assert not uses["large"].partly


def test_a_volume_in_memory_takes_nothing_of_a_disk(tmp_path: Path) -> None:
    """It is no use of ephemeral storage, and no reason to go when a disk is full."""
    config = configuration(tmp_path)
    memory = pod("memory", {"name": "cache", "emptyDir": {"medium": "Memory"}}, limits="ephemeral-storage=1Mi")
    pods = [memory, pod("small", DATA)]
    (volume(config, "memory", "cache") / "file").write_bytes(b"x" * 8 * MI)
    (volume(config, "small", "data") / "file").write_bytes(b"x" * MI)

    uses = used(tmp_path, config, pods)
    assert ranking.violation(memory, uses["memory"], Filesystems()) is None
    order = ranking.rank("nodefs.available", pods, lambda item: uses.get(item.metadata.uid), Filesystems())
    assert [item.metadata.uid for item in order] == ["small", "memory"]


def test_what_a_link_on_the_way_to_logs_leads_to_is_not_counted(tmp_path: Path) -> None:
    log, meta = ExchangedLog(tmp_path), {"name": "web", "uid": "uid"}
    config, asked = configuration(tmp_path), pods_of(container(), name="web", metadata=meta)
    before = disk.measure(PodDirs.of(config), config.agent.pod_logs, asked, threading.Event())
    assert before.logs["main"].inodes == 1
    log.exchange("pod")
    after = disk.measure(PodDirs.of(config), config.agent.pod_logs, asked, threading.Event())
    assert after.logs == {}
    counting = statistics._Counting.of(threading.Event(), None)
    assert counting.logs(log.path.parent) == DiskUse()


class Ended:
    """The pods of a node: those that were ended run again at once, as a controller has it."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._pods = pods
        self.ended: list[str] = []

    def active(self) -> Sequence[Pod]:
        return self._pods

    async def end(self, pod: Pod, ending: Ending) -> None:
        self.ended.append(f"{pod.metadata.uid}: {ending.message.partition(' ')[0]}")

    async def settled(self, pod: Pod) -> None:
        assert pod in self._pods

    def node(self, kind: str, reason: str, message: str) -> None:
        assert (kind, reason) == ("Warning", "EvictionThresholdMet"), message

    def pod(self, pod: Pod, kind: str, reason: str, message: str, annotations: dict[str, str] | None = None) -> None:
        assert (kind, reason) == ("Warning", "Evicted"), f"{pod.metadata.uid}: {message} {annotations}"


def test_pods_beyond_their_limits_do_not_put_off_what_the_node_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes again and again with a full volume would have the machine run out of memory."""
    monkeypatch.setattr("podkeep.agent.eviction.local_storage._SHARE", 0)
    config = configuration(tmp_path, eviction_hard={"memory.available": "99%"}, enforce_node_allocatable=("none",))
    pods = Ended([pod("large", DATA)])
    fill(config, "large")

    async def nothing() -> None:
        await asyncio.sleep(0)

    async def work() -> None:
        async with endpoint(tmp_path) as client:
            statistics = statistics_of(client, config)
            manager = EvictionManager(
                agent=config.agent,
                statistics=statistics,
                pods=pods,
                events=pods,
                containers=nothing,
                images=nothing,
                metrics=AgentMetrics(),
            )
            for _ in range(3):
                await manager.look()
            statistics.close()

    run(work())
    assert pods.ended == ["large: Usage", "large: The", "large: Usage"]


def test_a_runtime_whose_images_are_nowhere_hides_no_other_figure(tmp_path: Path) -> None:
    """The memory of the node above all."""

    async def nowhere(_: Any) -> api_pb2.ImageFsInfoResponse:
        place = api_pb2.FilesystemIdentifier(mountpoint="/images/\0")
        return api_pb2.ImageFsInfoResponse(image_filesystems=[api_pb2.FilesystemUsage(fs_id=place)])

    async def look() -> None:
        async with talking(tmp_path / "s", images={"ImageFsInfo": nowhere}) as client:
            statistics = statistics_of(client, configuration(tmp_path))
            found = await statistics.observe()
            assert {signals.MEMORY, signals.PIDS} <= found.keys()
            assert signals.IMAGEFS not in found
            assert await statistics.filesystems() == Filesystems(images_apart=False, layers_apart=False)
            statistics.close()

    run(look())


def test_images_are_not_apart_from_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    """A new node, before its first pod: what is thought of its disks then is thought for as long as the agent runs."""

    async def here(_: Any) -> api_pb2.ImageFsInfoResponse:
        place = api_pb2.FilesystemIdentifier(mountpoint=str(tmp_path))
        return api_pb2.ImageFsInfoResponse(image_filesystems=[api_pb2.FilesystemUsage(fs_id=place)])

    async def look() -> None:
        async with talking(tmp_path / "s", images={"ImageFsInfo": here}) as client:
            statistics = statistics_of(client, configuration(tmp_path))
            assert await statistics.filesystems() == Filesystems(images_apart=False, layers_apart=False)
            assert signals.NODEFS in await statistics.observe()
            statistics.close()

    run(look())
