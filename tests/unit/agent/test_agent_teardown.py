"""Taking pods down: exactly this pod's logs and directory, nobody else's."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from podkeep.agent.convert import names
from podkeep.agent.pod.remove import remove_pod
from podkeep.agent.pod.teardown import remove_node_state
from podkeep.agent.poddirs import PodDirs, PodIdentity
from podkeep.base.config import AgentConfig, Config
from podkeep.base.errors import FailedPrecondition, NotFound
from podkeep.base.ids import PodUID
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from unit.cri.cri_endpoint import serving

SOCKET = "/run/podkeep/podkeep.sock"


def node(tmp_path: Path) -> tuple[PodDirs, Config]:
    """Return an agent's directories with the logs of two pods, one of whose UIDs ends with the other's."""
    agent = AgentConfig(root=str(tmp_path / "kubelet"), pod_logs=str(tmp_path / "logs"))
    for name in ("default_a_1", "default_b_x_1", "a-file"):
        (tmp_path / "logs" / name / "c").mkdir(parents=True)
    return PodDirs(Path(agent.root), SOCKET), Config(agent=agent)


def test_logs_of_a_pod_whose_uid_ends_alike_stay(tmp_path: Path) -> None:
    dirs, config = node(tmp_path)
    remove_node_state(dirs, config, PodUID("1"))
    assert sorted(os.listdir(tmp_path / "logs")) == ["a-file", "default_b_x_1"]
    remove_node_state(dirs, config, PodUID("x_1"))
    assert os.listdir(tmp_path / "logs") == ["a-file"]


def test_logs_and_volumes_of_a_kubelets_pod_stay(tmp_path: Path) -> None:
    dirs, config = node(tmp_path)
    (dirs.pods / "1/volumes").mkdir(parents=True)
    remove_node_state(dirs, config, PodUID("1"))
    assert (dirs.pods / "1/volumes").is_dir()
    assert (tmp_path / "logs/default_a_1/c").is_dir()
    (dirs.pods / "1/volumes").rmdir()
    os.close(dirs.own(PodUID("1")))
    dirs.identify(PodUID("1"), PodIdentity(namespace="default", name="a"))
    remove_node_state(dirs, config, PodUID("1"))
    assert dirs.all() == []
    assert not (tmp_path / "logs/default_a_1").exists()


def test_a_sandbox_without_the_label_of_a_pod_is_another_clients(tmp_path: Path) -> None:
    async def unlabelled(request: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
        return api_pb2.ListPodSandboxResponse(items=[api_pb2.PodSandbox(id="s")])

    async def run() -> None:
        _, config = node(tmp_path)
        rpcs = {"ListPodSandbox": unlabelled}
        async with serving(tmp_path / "s", runtime=rpcs), CriClient(str(tmp_path / "s")) as client:
            with pytest.raises(NotFound, match="pod default/a not found"):
                await remove_pod(client, config, "a", "default", 0)

    asyncio.run(run())


def test_a_pod_that_a_runtime_lists_unasked_is_not_removed(tmp_path: Path) -> None:
    """The lists hold everything, whatever was asked for."""
    other = {names.POD_NAMESPACE: "default", names.POD_NAME: "b", names.POD_UID: "2"}

    async def sandboxes(_: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
        return api_pb2.ListPodSandboxResponse(items=[api_pb2.PodSandbox(id="s", labels=other)])

    async def run() -> None:
        _, config = node(tmp_path)
        rpcs = {"ListPodSandbox": sandboxes}
        async with serving(tmp_path / "s", runtime=rpcs), CriClient(str(tmp_path / "s")) as client:
            with pytest.raises(NotFound, match="pod default/a not found"):
                await remove_pod(client, config, "a", "default", 0)

    asyncio.run(run())


@pytest.mark.parametrize(("path", "place"), [("/m", "/m"), ("", "agent.static_pod_path")])
def test_a_pod_that_the_node_agent_runs_is_not_waited_for(tmp_path: Path, path: str, place: str) -> None:
    """The agent reads no requests for removal: who asks for the end of a static pod is told at once how it ends."""

    async def no_sandboxes(_: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
        return api_pb2.ListPodSandboxResponse()

    async def run() -> None:
        dirs, config = node(tmp_path)
        config = replace(config, agent=replace(config.agent, static_pod_path=path))
        lock = dirs.own(PodUID("1"))
        dirs.identify(PodUID("1"), PodIdentity(namespace="default", name="a"), managed=True)
        rpcs = {"ListPodSandbox": no_sandboxes}
        try:
            async with serving(tmp_path / "s", runtime=rpcs), CriClient(str(tmp_path / "s")) as client:
                with pytest.raises(FailedPrecondition) as refused:
                    await remove_pod(client, config, "a", "default", 0)
        finally:
            os.close(lock)
        assert refused.value.message == "pod default/a is run by the node agent"
        assert (
            refused.value.hint
            == f"a static pod ends when its file is removed from {place}; delete any other in the API"
        )
        assert dirs.requested_deletion(PodUID("1")) is None

    asyncio.run(run())
