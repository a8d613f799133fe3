"""GetContainerEvents: what happens to containers and sandboxes, in order, with the state after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api
from support.cri import pod
from support.endpoint import Node
from support.waiting import TIMEOUT_S

pytestmark = pytest.mark.reference(unsupported="no events")

CREATED, STARTED = api.CONTAINER_CREATED_EVENT, api.CONTAINER_STARTED_EVENT
STOPPED, DELETED = api.CONTAINER_STOPPED_EVENT, api.CONTAINER_DELETED_EVENT

Events = list[api.ContainerEventResponse]


def read_during(node: Node, action: Callable[[], object], enough: Callable[[Events], bool]) -> Events:
    """Return the events of the time since ``action`` began, read until they are ``enough``.

    Older events may come first: a runtime may keep what happened while nobody listened.
    """

    async def reading() -> Events:
        found: Events = []
        async with CriClient(node.endpoint.socket) as client, asyncio.timeout(TIMEOUT_S):
            async for event in client.runtime.GetContainerEvents(api.GetEventsRequest()):
                found.append(event)
                if enough(found):
                    break
        return found

    with ThreadPoolExecutor(1) as thread:
        events = thread.submit(asyncio.run, reading())
        action()
        return events.result()


def kinds(events: Events, subject: str) -> list[int]:
    """Return the events of one container or sandbox, which it calls by its ID."""
    return [item.container_event_type for item in events if item.container_id == subject]


def test_life_of_a_pod(node: Node) -> None:
    made: dict[str, str] = {}

    def live() -> None:
        made["sandbox"] = node.run(pod("lived"))
        made["container"] = node.launch(made["sandbox"])
        node.stop(made["container"])
        node.remove_container(made["container"])
        node.remove(made["sandbox"])

    def over(events: Events) -> bool:
        return len(made) == 2 and all(DELETED in kinds(events, subject) for subject in made.values())

    events = read_during(node, live, over)
    assert kinds(events, made["container"]) == [CREATED, STARTED, STOPPED, DELETED]
    assert kinds(events, made["sandbox"]) == [CREATED, STARTED, STOPPED, DELETED]
    times = [item.created_at for item in events]
    assert times == sorted(times)


def test_event_carries_the_state(node: Node) -> None:
    sandbox = node.run(pod("state"))
    container = node.create(sandbox)

    def end() -> None:
        node.start(container)
        node.stop(container)

    events = read_during(node, end, lambda found: STOPPED in kinds(found, container))
    stopped = [item for item in events if item.container_event_type == STOPPED][-1]
    assert stopped.pod_sandbox_status.id == sandbox
    assert stopped.pod_sandbox_status.state == api.SANDBOX_READY
    (status,) = [item for item in stopped.containers_statuses if item.id == container]
    assert (status.state, status.exit_code) == (api.CONTAINER_EXITED, 137)


def test_container_that_ends_by_itself_is_told(node: Node) -> None:
    sandbox = node.run(pod("end"))
    container = node.create(sandbox, "sh", "-c", "exit 3")
    events = read_during(node, lambda: node.start(container), lambda found: STOPPED in kinds(found, container))
    assert kinds(events, container)[-2:] == [STARTED, STOPPED]


def test_two_readers_see_the_same(node: Node) -> None:
    sandbox = node.run(pod("readers"))
    container = node.create(sandbox)
    seen: tuple[Events, Events] = ([], [])

    async def read(client: CriClient, found: Events) -> None:
        async for event in client.runtime.GetContainerEvents(api.GetEventsRequest()):
            found.append(event)
            if STOPPED in kinds(found, container):
                break

    async def both() -> None:
        async with (
            CriClient(node.endpoint.socket) as one,
            CriClient(node.endpoint.socket) as two,
            asyncio.timeout(TIMEOUT_S),
            asyncio.TaskGroup() as readers,
        ):
            for client, found in zip((one, two), seen, strict=True):
                readers.create_task(read(client, found))
            number = 0
            while not all(seen):  # until both are listening
                request = node.create_request(sandbox, name=f"marker{number}")
                await one.runtime.CreateContainer(request)
                number += 1
            await one.runtime.StartContainer(api.StartContainerRequest(container_id=container))
            await one.runtime.StopContainer(api.StopContainerRequest(container_id=container))

    asyncio.run(both())
    for found in seen:
        assert kinds(found, container)[-2:] == [STARTED, STOPPED]
