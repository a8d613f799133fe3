"""What pods wrote is counted anew, each by itself: a pod whose statistics fail does not keep the others' old."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from podkeep.agent.eviction.statistics import Statistics
from podkeep.agent.poddirs import PodDirs
from podkeep.api import manifest
from podkeep.api.pod import Pod
from podkeep.base.config import AgentConfig, Config
from podkeep.base.errors import FailedPrecondition, Internal, NotFound, PodkeepError, Unimplemented
from podkeep.cri.v1 import api_pb2
from unit.cri.cri_endpoint import run, talking

UIDS = ("uid-1", "uid-2")


def pod(uid: str) -> Pod:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": uid, "uid": uid},
        "spec": {"containers": [{"name": "main", "image": "i:1"}]},
    }
    return manifest.parse(yaml.safe_dump(document), source="f").pods[0]


def stats(uid: str, written: int) -> api_pb2.PodSandboxStats:
    found = api_pb2.PodSandboxStats()
    found.attributes.id = f"of-{uid}"
    found.attributes.metadata.uid = uid
    container = found.linux.containers.add()
    container.attributes.metadata.name = "main"
    container.writable_layer.used_bytes.value = written
    return found


@pytest.mark.parametrize(
    ("failure", "written"),
    [(Internal("no statistics"), 9), (NotFound("gone"), 9), (FailedPrecondition("ended"), 9), (Unimplemented("no"), 1)],
)
def test_a_pod_that_cannot_be_counted_leaves_the_others_to_be(
    tmp_path: Path, failure: PodkeepError, written: int
) -> None:
    """Only a runtime that counts no pod is not asked for each of them."""
    asked: list[str] = []

    async def listed(_: Any) -> api_pb2.ListPodSandboxStatsResponse:
        return api_pb2.ListPodSandboxStatsResponse(stats=[stats(uid, 1) for uid in UIDS])

    async def single(request: api_pb2.PodSandboxStatsRequest) -> api_pb2.PodSandboxStatsResponse:
        asked.append(request.pod_sandbox_id)
        if request.pod_sandbox_id == f"of-{UIDS[0]}":
            raise failure
        return api_pb2.PodSandboxStatsResponse(stats=stats(UIDS[1], 9))

    async def work() -> list[int]:
        rpcs = {"ListPodSandboxStats": listed, "PodSandboxStats": single}
        config = Config(agent=AgentConfig(root=str(tmp_path), pod_logs=str(tmp_path / "logs")))
        async with talking(tmp_path / "s", runtime=rpcs) as client:
            statistics = Statistics(client, config, PodDirs.of(config))
            found = await statistics.to_rank([pod(uid) for uid in UIDS], files=True)
            statistics.close()
        layers = [found[uid].containers["main"].layer for uid in UIDS]
        return [layer.used_bytes for layer in layers if layer is not None]

    assert run(work()) == [1, written]
    assert len(asked) == (2 if written == 9 else 1)


def test_the_newest_attempt_of_a_container_counts(tmp_path: Path) -> None:
    """An older one, which has ended, must not hide what it wrote; a runtime lists them in any order."""
    answer = api_pb2.ListPodSandboxStatsResponse(stats=[stats(UIDS[0], 9)])
    answer.stats[0].linux.containers[0].attributes.metadata.attempt = 1
    older = answer.stats[0].linux.containers.add()
    older.attributes.metadata.name = "main"
    older.writable_layer.used_bytes.value = 1

    async def listed(_: Any) -> api_pb2.ListPodSandboxStatsResponse:
        return answer

    async def work() -> Any:
        config = Config(agent=AgentConfig(root=str(tmp_path), pod_logs=str(tmp_path / "logs")))
        async with talking(tmp_path / "s", runtime={"ListPodSandboxStats": listed}) as client:
            statistics = Statistics(client, config, PodDirs.of(config))
            found = await statistics.to_rank([pod(UIDS[0])], files=False)
            statistics.close()
        return found[UIDS[0]].containers["main"].layer

    assert run(work()).used_bytes == 9
