"""What a runtime says of itself is asked for once for all pods, and again where a pod would be refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from podkeep.agent.runtime_status import RuntimeStatus
from podkeep.base.errors import PodkeepError
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from unit.cri.cri_endpoint import run, serving


class Runtime:
    """A runtime whose default handler has the features that it was told, and that counts how often it was asked."""

    def __init__(self, **features: bool) -> None:
        self.features = features
        self.asked = 0
        self.followed = asyncio.Event()

    @asynccontextmanager
    async def at(self, directory: Path) -> AsyncIterator[RuntimeStatus]:
        socket = directory / "s"
        async with self.on(socket), CriClient(str(socket)) as client:
            yield RuntimeStatus(client)

    def on(self, socket: Path) -> AbstractAsyncContextManager[None]:
        return serving(socket, runtime={"Status": self._answer, "GetContainerEvents": self._events})

    async def _events(self, _request: Any) -> AsyncIterator[api_pb2.ContainerEventResponse]:
        self.followed.set()
        await asyncio.Event().wait()
        yield api_pb2.ContainerEventResponse()

    async def _answer(self, _request: Any) -> api_pb2.StatusResponse:
        self.asked += 1
        await asyncio.sleep(0)
        return self.status()

    def status(self) -> api_pb2.StatusResponse:
        handler = api_pb2.RuntimeHandler(name="", features=api_pb2.RuntimeHandlerFeatures(**self.features))
        return api_pb2.StatusResponse(runtime_handlers=[handler])


async def follow(client: CriClient) -> None:
    async for _ in client.runtime.GetContainerEvents(api_pb2.GetEventsRequest()):
        raise AssertionError("the runtime has no event")


def test_pods_that_come_at_once_share_an_answer(tmp_path: Path) -> None:
    runtime = Runtime(user_namespaces=True)

    async def work() -> list[bool]:
        async with runtime.at(tmp_path) as status:
            return await asyncio.gather(*(status.supports("", "user_namespaces") for _ in range(50)))

    assert run(work()) == [True] * 50
    assert runtime.asked == 1


def test_what_a_handler_lacks_is_asked_for_again(tmp_path: Path) -> None:
    """Neither is a pod refused for what the runtime was, nor is one started because another handler has a feature."""
    runtime = Runtime()

    async def work() -> list[bool]:
        async with runtime.at(tmp_path) as status:
            before = await status.supports("", "user_namespaces")
            runtime.features = {"user_namespaces": True}
            return [
                before,
                await status.supports("", "user_namespaces"),
                await status.supports("", "recursive_read_only_mounts"),
                await status.supports("other", "user_namespaces"),
            ]

    assert run(work()) == [False, True, False, False]


def test_a_runtime_that_came_back_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    runtime = Runtime(user_namespaces=True)

    async def work() -> list[bool]:
        async with runtime.at(tmp_path) as status:
            before = await status.supports("", "user_namespaces")
            runtime.features = {}
            status.keep(runtime.status(), lost=0)
            return [before, await status.supports("", "user_namespaces")]

    assert run(work()) == [True, False]


def test_what_answers_after_a_connection_was_lost_is_asked_anew(tmp_path: Path) -> None:
    """It may be another runtime, which ignores what it does not know: a pod would be root of the host."""
    before, after = Runtime(user_namespaces=True), Runtime()
    socket = tmp_path / "s"

    async def work() -> list[bool]:
        async with CriClient(str(socket)) as client:
            status = RuntimeStatus(client)
            async with before.on(socket):
                followed = asyncio.ensure_future(follow(client))
                found = [await status.supports("", "user_namespaces")]
                await before.followed.wait()
            with suppress(PodkeepError):
                await followed
            async with after.on(socket):
                return [*found, await status.supports("", "user_namespaces")]

    assert run(work()) == [True, False]


def test_an_answer_that_was_asked_for_before_a_connection_was_lost_does_not_count(tmp_path: Path) -> None:
    """Somebody else may have asked, for another reason, and the runtime may have ended since."""
    before, after = Runtime(user_namespaces=True), Runtime()
    socket = tmp_path / "s"

    async def work() -> bool:
        async with CriClient(str(socket)) as client:
            status, lost = RuntimeStatus(client), client.lost
            async with before.on(socket):
                followed = asyncio.ensure_future(follow(client))
                answer = await client.runtime.Status(api_pb2.StatusRequest())
                await before.followed.wait()
            with suppress(PodkeepError):
                await followed
            status.keep(answer, lost=lost)
            async with after.on(socket):
                return await status.supports("", "user_namespaces")

    assert not run(work())


@pytest.mark.parametrize(
    ("rootfs", "copies"),
    [
        ('{"variant":"idmapped"}', False),
        ('{"variant":"metacopy"}', True),
        ('{"variant":"copy"}', True),
        ('{"variant":""}', False),
        ("{}", False),
        ('{"variant":7}', False),
        ("no JSON", False),
        (None, False),
    ],
)
def test_whether_images_are_copied_for_the_owners_of_a_pod(tmp_path: Path, rootfs: str | None, copies: bool) -> None:
    """Only then does a container's status tell how long it took, which is no time of the pod's start."""

    async def work() -> list[bool]:
        async with Runtime().at(tmp_path) as status:
            info = {"config": "{}"} if rootfs is None else {"rootfs": rootfs}
            status.keep(api_pb2.StatusResponse(info=info), lost=0)
            told = status.copies_owners
            await status.read(fresh=True)  # not verbose: says nothing about it
            return [told, status.copies_owners]

    assert run(work()) == [copies, copies]
