"""GetContainerEvents: what a listener hears, in which order, and what is left of one that went."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from podkeep.base.errors import Internal
from podkeep.base.ids import ContainerID, HandlerName
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api
from support.cri import Pods, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.waiting import TIMEOUT_S, wait_for

CREATED, STARTED = api.CONTAINER_CREATED_EVENT, api.CONTAINER_STARTED_EVENT
STOPPED, DELETED = api.CONTAINER_STOPPED_EVENT, api.CONTAINER_DELETED_EVENT


class Listener:
    """Reads events on a connection of its own while a test works."""

    def __init__(self, pods: Pods, socket: str) -> None:
        self._pods = pods
        self._socket = socket

    def hear(self, until: Callable[[list[Any]], bool], work: Callable[[CriClient], Awaitable[object]]) -> list[Any]:
        """Listen, do ``work``, and return the events once ``until`` is true of them."""

        async def hearing() -> list[Any]:
            heard: list[Any] = []
            async with CriClient(self._socket) as client:
                async with asyncio.timeout(TIMEOUT_S):
                    async with aclosing(client.runtime.GetContainerEvents(api.GetEventsRequest())) as events:
                        reading = asyncio.ensure_future(_collect(events, heard, until))
                        await work(client)
                        await reading
            return heard

        return self._pods.wait(hearing())


async def _collect(events: Any, heard: list[Any], until: Callable[[list[Any]], bool]) -> None:
    async for event in events:
        heard.append(event)
        if until(heard):
            return


def steps(events: Sequence[Any], *subjects: str) -> list[tuple[int, int]]:
    """Return (number of the subject, event type) of the events of some containers or sandboxes."""
    return [
        (subjects.index(event.container_id), event.container_event_type)
        for event in events
        if event.container_id in subjects
    ]


def test_a_pod_that_no_message_holds_ends_no_stream(pods: Pods, daemon: Daemon) -> None:
    large = pods.run(pod("large", annotations={"note": "x" * 1_000_000}))
    texts = {"note": "x" * 1_000_000, "io.kubernetes.container.hash": "1"}
    made = [pods.create(large, name=f"c{number}", annotations=texts) for number in range(17)]

    async def work(client: CriClient) -> None:
        await client.runtime.StartContainer(api.StartContainerRequest(container_id=made[0]))

    event = Listener(pods, daemon.socket).hear(lambda heard: (0, STARTED) in steps(heard, made[0]), work)[-1]
    assert event.pod_sandbox_status.id == large
    assert {item.id for item in event.containers_statuses} == set(made)
    assert all(dict(item.annotations) == {"io.kubernetes.container.hash": "1"} for item in event.containers_statuses)
    answer = pods.call("PodSandboxStatus", api.PodSandboxStatusRequest(pod_sandbox_id=large))
    assert [item.id for item in answer.containers_statuses] == made[::-1]


def test_the_life_of_a_pod(pods: Pods, daemon: Daemon) -> None:
    config = pod("heard")
    made: dict[str, str] = {}

    async def live(client: CriClient) -> None:
        runtime = client.runtime
        sandbox = (await runtime.RunPodSandbox(api.RunPodSandboxRequest(config=config))).pod_sandbox_id
        made["sandbox"] = pods.adopt(sandbox, config)
        request = pods.create_request(sandbox, "sh", "-c", "exit 3")
        made["container"] = (await runtime.CreateContainer(request)).container_id
        await runtime.StartContainer(api.StartContainerRequest(container_id=made["container"]))
        await runtime.StopContainer(api.StopContainerRequest(container_id=made["container"], timeout=10))
        await runtime.RemoveContainer(api.RemoveContainerRequest(container_id=made["container"]))
        await runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox))
        await runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))

    def gone(heard: list[Any]) -> bool:
        return "sandbox" in made and (0, DELETED) in steps(heard, made["sandbox"])

    heard = Listener(pods, daemon.socket).hear(gone, live)
    expected = [(0, CREATED), (0, STARTED), (1, CREATED), (1, STARTED), (1, STOPPED), (1, DELETED), (0, STOPPED)]
    assert steps(heard, made["sandbox"], made["container"]) == [*expected, (0, DELETED)]

    mine = [event for event in heard if event.container_id in made.values()]
    assert [event.created_at for event in mine] == sorted(event.created_at for event in mine)
    assert {event.pod_sandbox_status.metadata.uid for event in mine} == {config.metadata.uid}
    assert [event.pod_sandbox_status.state for event in mine] == [api.SANDBOX_READY] * 6 + [api.SANDBOX_NOTREADY] * 2
    states = [[status.state for status in event.containers_statuses] for event in mine]
    assert states[2:6] == [[api.CONTAINER_CREATED], [api.CONTAINER_RUNNING], [api.CONTAINER_EXITED], []]
    assert mine[4].containers_statuses[0].exit_code == 3


def test_an_end_without_a_request_is_heard(pods: Pods, daemon: Daemon) -> None:
    container = pods.launch(pods.run())
    pid = pods.host_pid(container)

    async def kill(_client: CriClient) -> None:
        os.kill(pid, signal.SIGKILL)

    heard = Listener(pods, daemon.socket).hear(lambda events: (0, STOPPED) in steps(events, container), kill)
    last = heard[-1]
    assert (last.containers_statuses[0].exit_code, last.containers_statuses[0].reason) == (137, "Error")


def test_every_listener_hears_everything(pods: Pods, daemon: Daemon) -> None:
    sandbox = pods.run()
    created: list[str] = []

    async def create(client: CriClient, name: str = "") -> None:
        request = pods.create_request(sandbox, name=name or f"c{len(created)}")
        created.append((await client.runtime.CreateContainer(request)).container_id)

    def done(events: list[Any]) -> bool:
        return any(status.metadata.name == "last" for event in events for status in event.containers_statuses)

    async def listening() -> list[list[Any]]:
        heard: list[list[Any]] = [[] for _ in range(5)]
        async with CriClient(daemon.socket) as client, asyncio.timeout(TIMEOUT_S):
            streams = [client.runtime.GetContainerEvents(api.GetEventsRequest()) for _ in heard]
            reading = [asyncio.ensure_future(_collect(*pair, done)) for pair in zip(streams, heard, strict=True)]
            # Who was last to connect has not heard the first ones.
            while not all(heard):
                await create(client)
            for name in ("", "", "last"):
                await create(client, name)
            await asyncio.gather(*reading)
        return heard

    for events in pods.wait(listening()):
        ids = [event.container_id for event in events if event.container_id in created]
        assert len(ids) >= 4
        assert ids == created[-len(ids) :]


def test_a_listener_that_goes_leaves_nothing(pods: Pods, daemon: Daemon) -> None:
    def descriptors() -> int:
        assert daemon.process is not None
        return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))

    async def come_and_go() -> None:
        for _ in range(5):
            async with CriClient(daemon.socket) as client:
                stream = client.runtime.GetContainerEvents(api.GetEventsRequest())
                await client.runtime.Version(api.VersionRequest())
                await stream.aclose()

    before = descriptors()
    pods.wait(come_and_go())
    wait_for(lambda: descriptors() <= before, "the daemon to close the connections")


def test_ends_that_are_found_at_a_start_are_heard(mortal: Mortal) -> None:
    pods = mortal.start()
    sandbox = pods.run()
    container = pods.launch(sandbox)
    pid = pods.host_pid(container)
    mortal.daemon.kill()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: mortal.daemon.layout.exit_file(ContainerID(container)).exists(), "conmon's note")
    pods = mortal.start()

    async def nothing(_client: CriClient) -> None:
        return

    heard = Listener(pods, mortal.daemon.socket).hear(lambda events: bool(events), nothing)
    assert steps(heard, container) == [(0, STOPPED)]


def test_the_daemon_ends_at_once_while_somebody_listens(mortal: Mortal) -> None:
    pods = mortal.start()

    async def listen_while_it_ends() -> int:
        async with CriClient(mortal.daemon.socket) as client:
            heard: list[Any] = []
            stream = client.runtime.GetContainerEvents(api.GetEventsRequest())
            reading = asyncio.ensure_future(_collect(stream, heard, lambda _: False))
            # On one connection the runtime takes up requests in order.
            await client.runtime.Version(api.VersionRequest())
            # A stream that is still open when the runtime's timeout ends is cancelled: reading would raise.
            async with asyncio.timeout(TIMEOUT_S):
                status = await asyncio.to_thread(mortal.daemon.stop)
                await reading
            assert heard == []
            return status

    assert pods.wait(listen_while_it_ends()) == 0


def test_a_start_that_fails_is_heard_with_its_reason(pods: Pods, daemon: Daemon) -> None:
    container = pods.create(pods.run())
    # Without its state the OCI runtime knows nothing of the container.
    shutil.rmtree(daemon.layout.handler_root(HandlerName("crun")) / container)

    async def start(client: CriClient) -> None:
        with pytest.raises(Internal):
            await client.runtime.StartContainer(api.StartContainerRequest(container_id=container))

    heard = Listener(pods, daemon.socket).hear(lambda events: (0, STOPPED) in steps(events, container), start)
    (status,) = heard[-1].containers_statuses
    assert (status.exit_code, status.reason) == (128, "StartError")
    assert status == pods.status(container)
