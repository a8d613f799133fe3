"""Pulls at a time, credentials of plugins, and what is counted of images."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from podkeep.agent.events import PullFailed
from podkeep.agent.images.plugins import CredentialPlugins
from podkeep.agent.images.puller import Images, LocalImage, PodPull, PullLimits, Wanted
from podkeep.agent.metrics import ENSURE_IMAGE_REQUESTS, AgentMetrics
from podkeep.base.concurrency.threads import SharedThreads, working_for
from podkeep.base.config import AgentConfig
from podkeep.base.errors import NotFound
from podkeep.base.registries.docker_config import Credentials, Keyring
from podkeep.cri.v1 import api_pb2
from support.processes import write_script
from support.waiting import TIMEOUT_S
from unit.cri.cri_endpoint import run, talking


class Registry:
    """An image service whose pulls end when a test says so; ``auths`` are who it was asked as."""

    def __init__(self, *, waits: bool = True, accepted: str = "") -> None:
        self.under_way: list[str] = []
        self.most = 0
        self.go = asyncio.Event()
        self.began = asyncio.Semaphore(0)
        self.waits, self.accepted = waits, accepted
        self.auths: list[str] = []

    async def pull(self, request: api_pb2.PullImageRequest) -> api_pb2.PullImageResponse:
        self.auths.append(request.auth.username)
        if self.accepted and request.auth.username != self.accepted:
            raise NotFound("pull access denied")
        self.under_way.append(request.image.image)
        self.most = max(self.most, len(self.under_way))
        self.began.release()
        if self.waits:
            await self.go.wait()
        self.under_way.remove(request.image.image)
        return api_pb2.PullImageResponse(image_ref=f"sha256:{request.image.image}")

    async def status(self, request: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        if not request.image.image.startswith("sha256:"):
            return api_pb2.ImageStatusResponse()
        return api_pb2.ImageStatusResponse(image=api_pb2.Image(id=request.image.image, size=5 << 20))


def pod(uid: str = "u", **more: Any) -> PodPull:
    return PodPull(uid=uid, sandbox=api_pb2.PodSandboxConfig(), report=lambda event: None, **more)


def with_registry(socket: Path, work: Callable[[Registry, Any], Awaitable[Any]], **settings: Any) -> Any:
    async def all_of_it() -> Any:
        registry = Registry(**settings)
        async with talking(socket, images={"PullImage": registry.pull, "ImageStatus": registry.status}) as client:
            return await work(registry, client)

    return run(all_of_it())


@pytest.mark.parametrize(("limit", "most"), [(0, 4), (1, 1), (3, 3)])
def test_so_many_pulls_at_a_time(tmp_path: Path, limit: int, most: int) -> None:
    """All of them end; the others wait, and count as wanted meanwhile."""

    async def work(registry: Registry, client: Any) -> tuple[int, int, frozenset[str]]:
        images = Images(client, limits=PullLimits(parallel=limit))
        names = [f"r.example/i{number}:1" for number in range(4)]
        pulls = [
            asyncio.ensure_future(images.ensure(Wanted(image=name, policy="IfNotPresent"), pod())) for name in names
        ]
        for _ in range(most):
            await registry.began.acquire()
        assert images.wanted == frozenset(names)
        registry.go.set()
        done = await asyncio.gather(*pulls)
        return registry.most, len(done), images.wanted

    assert with_registry(tmp_path / "s", work) == (most, 4, frozenset())


def test_so_many_pulls_in_a_second(tmp_path: Path) -> None:
    """Burst first, then as the time allows; who is too early fails as a kubelet's pod does."""
    now = [100.0]

    async def work(registry: Registry, client: Any) -> list[str]:
        images = Images(client, clock=lambda: now[0], limits=PullLimits(per_second=2, burst=2))
        seen = []
        for number, pause in enumerate((0, 0, 0, 0.5, 0, 100, 0, 0)):
            now[0] += pause
            try:
                await images.ensure(Wanted(image=f"r.example/i{number}:1", policy="Always"), pod())
                seen.append("pulled")
            except PullFailed as failure:
                seen.append(failure.detail)
        return seen

    seen = with_registry(tmp_path / "s", work, waits=False)
    late = "pull QPS exceeded; hint: agent.registry_pull_qps and agent.registry_burst say so"
    assert seen == ["pulled", "pulled", late, "pulled", late, "pulled", "pulled", late]


def plugin(tmp_path: Path, script: str) -> AgentConfig:
    """Return the configuration of a plugin for ``r.example`` that is this shell script."""
    programs = tmp_path / "bin"
    programs.mkdir()
    write_script(programs / "login", f"#!/bin/sh\n{script}\n")
    provider = {
        "name": "login",
        "matchImages": ["r.example", "*.example/team"],
        "defaultCacheDuration": "1h",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    }
    config = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [provider]}
    (tmp_path / "plugins.json").write_text(json.dumps(config))
    return AgentConfig(
        image_credential_provider_config=str(tmp_path / "plugins.json"), image_credential_provider_bin_dir=str(programs)
    )


ANSWER = {
    "kind": "CredentialProviderResponse",
    "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    "cacheKeyType": "Registry",
    "auth": {"r.example": {"username": "plugin", "password": "p"}, "other.example": {"username": "no"}},
}


@pytest.mark.requirement("V30")
def test_plugins_come_after_pull_secrets_and_before_the_nodes_own(tmp_path: Path) -> None:
    """For images and image volumes alike; a plugin that is not meant for an image is not asked for it."""
    config = plugin(tmp_path, f"cat >> {tmp_path}/asked; echo '{json.dumps(ANSWER)}'")

    async def work(registry: Registry, client: Any) -> list[list[str]]:
        images = Images(client, plugins=CredentialPlugins.of(config))
        keyring = Keyring([("r.example", Credentials(username="secret", password="s"))])
        seen = []
        for image, container in (("r.example/app:1", "c"), ("r.example/data:1", ""), ("z.example/app:1", "c")):
            registry.auths.clear()
            try:
                wanted = Wanted(image=image, policy="IfNotPresent", container=container)
                assert isinstance(await images.ensure(wanted, pod(keyring=keyring)), LocalImage)
            finally:
                seen.append(list(registry.auths))
        return seen

    seen = with_registry(tmp_path / "s", work, waits=False)
    assert seen == [["secret"], ["secret"], [""]]
    (tmp_path / "asked").unlink()

    async def refused(registry: Registry, client: Any) -> list[str]:
        images = Images(client, plugins=CredentialPlugins.of(config))
        keyring = Keyring([("r.example", Credentials(username="secret", password="s"))])
        await images.ensure(Wanted(image="r.example/app:1", policy="Always"), pod(keyring=keyring))
        return registry.auths

    assert with_registry(tmp_path / "t", refused, waits=False, accepted="plugin") == ["secret", "plugin"]
    assert json.loads((tmp_path / "asked").read_text()) == {
        "kind": "CredentialProviderRequest",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "image": "r.example/app",
    }


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "echo '{}'"])
def test_a_plugin_that_fails_hinders_nothing(tmp_path: Path, script: str) -> None:
    config = plugin(tmp_path, script)

    async def work(registry: Registry, client: Any) -> list[str]:
        images = Images(client, plugins=CredentialPlugins.of(config))
        await images.ensure(Wanted(image="r.example/app:1", policy="Always"), pod())
        return registry.auths

    assert with_registry(tmp_path / "s", work, waits=False) == [""]


@pytest.mark.slow
def test_plugins_that_hang_keep_nothing_else_waiting(tmp_path: Path) -> None:
    """They have threads of their share, a namespace some of these, and who needs no plugin does not wait for one."""
    config = plugin(tmp_path, f"echo >> {tmp_path}/asked; while ! [ -e {tmp_path}/go ]; do sleep 0.1; done; exit 1")
    os.mkfifo(tmp_path / "asked")

    async def ask(plugins: CredentialPlugins, number: int, namespace: str) -> None:
        metadata = api_pb2.PodSandboxMetadata(namespace=namespace)
        of = PodPull(uid=str(number), sandbox=api_pb2.PodSandboxConfig(metadata=metadata), report=lambda event: None)
        with working_for(of.uid):
            assert not await plugins.credentials(f"r.example/i{number}", of)

    async def scenario(plugins: CredentialPlugins) -> None:
        loop, began = asyncio.get_running_loop(), asyncio.Semaphore(0)
        loop.set_default_executor(SharedThreads(8, share=4, name="test"))
        asked = os.open(tmp_path / "asked", os.O_RDWR | os.O_NONBLOCK)
        loop.add_reader(asked, lambda: [began.release() for _ in os.read(asked, 1)])
        hung = [asyncio.create_task(ask(plugins, number, "hostile")) for number in range(20)]
        other = asyncio.create_task(ask(plugins, 20, "other"))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                for _ in range(3):
                    await began.acquire()
                with working_for("somebody"):
                    await asyncio.to_thread(lambda: None)
                assert list(await plugins.credentials("z.example/app", pod())) == []
                assert not any(task.done() for task in (*hung, other))
        finally:
            (tmp_path / "go").touch()
        await asyncio.gather(*hung, other)
        for _ in range(18):
            await began.acquire()
        loop.remove_reader(asked)
        os.close(asked)

    plugins = CredentialPlugins.of(config)
    assert plugins is not None
    asyncio.run(scenario(plugins))


@pytest.mark.requirement("V97")
def test_pulls_are_counted_and_timed(tmp_path: Path) -> None:
    """Those of volumes (without a container) with the others, by the image's size."""
    metrics = AgentMetrics()

    async def work(registry: Registry, client: Any) -> None:
        images = Images(client, metrics=metrics)
        await images.ensure(Wanted(image="r.example/app:1", policy="IfNotPresent", container="c"), pod())
        await images.ensure(Wanted(image="r.example/data:1", policy="Always"), pod())

    with_registry(tmp_path / "s", work, waits=False)
    assert metrics.value(ENSURE_IMAGE_REQUESTS, "ifnotpresent", "false", "true") == 1
    assert metrics.value(ENSURE_IMAGE_REQUESTS, "always", "unknown", "true") == 1
    assert 'kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes="0-10MB",le="1"} 2' in metrics.text()


@pytest.mark.requirement("V31", "V114")
def test_images_of_containers_and_of_volumes_go_one_way(tmp_path: Path) -> None:
    """Pulls at a time, the look whether the image is there, secrets, back-off and counts are those of both together."""
    metrics, keyring = AgentMetrics(), Keyring([("r.example", Credentials(username="secret", password="s"))])

    async def work(registry: Registry, client: Any) -> None:
        images = Images(client, metrics=metrics, limits=PullLimits(parallel=1))
        wanted = [Wanted(image=f"r.example/data{number}:1", policy="Always") for number in range(3)]
        wanted.append(Wanted(image="r.example/app:1", policy="Always", container="main"))
        pulls = [asyncio.ensure_future(images.ensure(item, pod(keyring=keyring))) for item in wanted]
        await registry.began.acquire()
        registry.go.set()
        await asyncio.gather(*pulls)
        assert registry.most == 1
        assert registry.auths == ["secret"] * 4

        registry.accepted = "nobody"
        for first, second in (("main", ""), ("", "main")):
            image, asked = f"r.example/missing{first}:1", len(registry.auths)
            with pytest.raises(PullFailed) as refused:
                await images.ensure(Wanted(image=image, policy="IfNotPresent", container=first), pod())
            assert refused.value.waiting == "ErrImagePull"
            with pytest.raises(PullFailed) as waits:
                await images.ensure(Wanted(image=image, policy="IfNotPresent", container=second), pod())
            assert waits.value.waiting == "ImagePullBackOff"
            assert len(registry.auths) == asked + 1

        here = len(registry.auths)
        for container in ("main", ""):
            await images.ensure(Wanted(image="sha256:here", policy="IfNotPresent", container=container), pod())
        assert len(registry.auths) == here

    with_registry(tmp_path / "s", work)
    assert metrics.value(ENSURE_IMAGE_REQUESTS, "always", "unknown", "true") == 4
    assert 'kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes="0-10MB",le="+Inf"} 4' in metrics.text()
