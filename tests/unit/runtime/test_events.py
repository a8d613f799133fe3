"""The events of records' changes, and readers that are slow, late, or gone."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from runtime_values import container, sandbox

from podkeep.cri import transport
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.lifecycle.events import (
    QUEUE_BYTES,
    Event,
    EventHub,
    EventKind,
    EventReader,
    kinds_between,
)
from podkeep.runtime.model.records import Container, ContainerState, Mount, SandboxState, Security
from podkeep.runtime.model.state import State
from podkeep.runtime.rpc.events import event_message


def event(number: int, *, at: int | None = None) -> Event:
    when = time.time_ns() if at is None else at
    return Event(kind=EventKind.CREATED, subject=str(number), at=when, sandbox=None, containers=(), size=0)


async def taken(reader: EventReader) -> list[str]:
    """Return what is in the queue of a reader that gets nothing more."""
    reader.end()
    return [item.subject async for item in reader]


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        (0, 1, ["CREATED"]),
        (0, 2, ["CREATED", "STARTED"]),
        (1, 2, ["STARTED"]),
        (1, 3, ["STOPPED"]),
        (2, 3, ["STOPPED"]),
        (0, 3, ["CREATED", "STOPPED"]),
        (3, 3, []),
        (2, 2, []),
        (3, None, ["DELETED"]),
        (0, None, []),
    ],
)
def test_kinds_of_a_change(before: int, after: int | None, names: list[str]) -> None:
    assert [kind.name for kind in kinds_between(before, after)] == names


def test_changes_of_records_are_events_in_their_order(tmp_path: Path) -> None:
    state, hub = State(tmp_path / "state.db"), EventHub()
    hub.attach(state)
    pod, inside = sandbox(state=SandboxState.CREATING), container()
    creating = msgspec.structs.replace(inside.status, state=ContainerState.CREATING)
    state.add_sandbox(pod)
    state.set_sandbox(pod.id, msgspec.structs.replace(pod.status, state=SandboxState.READY))
    state.add_container(msgspec.structs.replace(inside, status=creating))
    for step in (ContainerState.CREATED, ContainerState.RUNNING, ContainerState.EXITED, ContainerState.REMOVING):
        state.set_container(inside.id, msgspec.structs.replace(inside.status, state=step))
    state.forget_container(inside.id)
    state.set_sandbox(pod.id, msgspec.structs.replace(pod.status, state=SandboxState.NOTREADY))
    state.forget_sandbox(pod.id)
    state.close()

    async def read() -> list[Event]:
        with hub.subscribe() as reader:
            reader.end()
            return [item async for item in reader]

    heard = asyncio.run(read())
    assert [(item.kind.name, item.subject[0], len(item.containers)) for item in heard] == [
        ("CREATED", "a", 0),
        ("STARTED", "a", 0),
        ("CREATED", "c", 1),
        ("STARTED", "c", 1),
        ("STOPPED", "c", 1),
        ("DELETED", "c", 0),
        ("STOPPED", "a", 0),
        ("DELETED", "a", 0),
    ]
    assert all(item.sandbox is not None and item.sandbox.config == pod.config for item in heard)


def written(item: Event) -> int:
    """Return the bytes of the records of an event, as the database has them."""
    return sum(len(msgspec.json.encode(record)) for record in (item.sandbox, *item.containers) if record is not None)


def test_an_event_counts_all_of_its_records(tmp_path: Path) -> None:
    """The groups of an image's user, say, or masked paths, which are no labels."""
    path = tmp_path / "state.db"
    user = (0, 0, tuple(range(65_536)))
    state, pod = State(path), sandbox(state=SandboxState.CREATING)
    inside = container(security=Security(masked_paths=("/" + "x" * 4000,) * 100))
    first, later = EventHub(), EventHub()
    first.attach(state)
    state.add_sandbox(pod)
    state.set_sandbox(pod.id, structs.replace(pod.status, state=SandboxState.READY))
    state.add_container(inside)
    state.set_container(inside.id, structs.replace(inside.status, state=ContainerState.RUNNING, user=user))
    state.close()
    state = State(path)
    later.attach(state)
    state.add_container(container("d" * 64, name="other"))
    state.forget_container(inside.id)
    state.forget_container(container("d" * 64).id)
    state.forget_sandbox(pod.id)
    state.close()

    async def read(hub: EventHub) -> list[Event]:
        with hub.subscribe() as reader:
            reader.end()
            return [item async for item in reader]

    heard = asyncio.run(read(first)) + asyncio.run(read(later))
    assert [item.size for item in heard] == [written(item) for item in heard]
    assert [item.size >> 19 for item in heard] == [0, 0, 0, 1, 1, 0, 0, 0]


def test_what_was_never_shown_has_no_events(tmp_path: Path) -> None:
    state, hub = State(tmp_path / "state.db"), EventHub()
    hub.attach(state)
    pod = sandbox(state=SandboxState.CREATING)
    state.add_sandbox(pod)
    state.forget_sandbox(pod.id)
    state.close()
    assert asyncio.run(taken(EventHub().subscribe())) == asyncio.run(taken(hub.subscribe())) == []


def test_a_slow_reader_loses_its_oldest_and_nobody_elses(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> tuple[list[str], list[str]]:
        hub = EventHub(queue_length=4)
        drops: list[int] = []
        hub.on_drop = lambda: drops.append(1)
        with hub.subscribe() as slow, hub.subscribe() as quick:
            heard = []
            for number in range(10):
                hub.publish(event(number))
                heard.append((await anext(quick)).subject)
            assert hub.dropped == slow.dropped == len(drops) == 6
            assert quick.dropped == 0
            return await taken(slow), heard

    with caplog.at_level(logging.WARNING):
        slow, quick = asyncio.run(run())
    assert slow == ["6", "7", "8", "9"]
    assert quick == [str(number) for number in range(10)]
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_each_burst_of_losses_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        hub = EventHub(queue_length=2)
        with hub.subscribe() as reader:
            for _ in range(2):
                for number in range(5):
                    hub.publish(event(number))
                waiting = asyncio.ensure_future(_until_empty(reader))
                await asyncio.sleep(0)
                waiting.cancel()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert len(caplog.records) == 2


async def _until_empty(reader: EventReader) -> None:
    async for _ in reader:
        pass


async def listen(hub: EventHub) -> None:
    with hub.subscribe() as reader:
        await anext(reader)


def test_readers_that_are_gone_cost_nothing() -> None:
    async def run() -> None:
        hub = EventHub()
        with hub.subscribe():
            assert hub.readers == 1
        assert hub.readers == 0
        waiting = asyncio.ensure_future(listen(hub))
        await asyncio.sleep(0)
        assert hub.readers == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert hub.readers == 0

    asyncio.run(run())


def test_what_nobody_heard_is_for_the_next_reader_alone_and_not_for_ever() -> None:
    async def run() -> None:
        hub = EventHub(queue_length=3, retention_s=60)
        hub.publish(event(0, at=time.time_ns() - 61_000_000_000))
        for number in (1, 2):
            hub.publish(event(number))
        with hub.subscribe() as first, hub.subscribe() as second:
            hub.publish(event(3))
            assert await taken(first) == ["1", "2", "3"]
            assert await taken(second) == ["3"]
        for number in range(10):
            hub.publish(event(number))
        with hub.subscribe() as third:
            assert await taken(third) == ["7", "8", "9"]
        assert hub.dropped == 0

    asyncio.run(run())


def test_large_records_of_pods_that_are_gone_do_not_fill_the_memory() -> None:
    def large(number: int) -> Event:
        return structs.replace(event(number), size=4 << 20)

    async def run() -> None:
        hub, most = EventHub(), QUEUE_BYTES // (4 << 20)
        for number in range(3 * most):
            hub.publish(large(number))
        with hub.subscribe() as reader:
            assert len(await taken(reader)) in range(most - 1, most + 1)
        with hub.subscribe() as slow:
            for number in range(3 * most):
                hub.publish(large(number))
            assert slow.dropped == hub.dropped >= 2 * most
            assert len(await taken(slow)) + slow.dropped == 3 * most

    asyncio.run(run())


def test_readers_end_when_the_hub_is_closed() -> None:
    async def run() -> list[str]:
        hub = EventHub()
        with hub.subscribe() as reader:
            hub.publish(event(1))
            hub.close()
            return [item.subject async for item in reader]

    assert asyncio.run(run()) == ["1"]


def test_a_reader_that_comes_after_the_hub_was_closed_ends_too() -> None:
    """Its request was taken up while the daemon began to stop; without an end the daemon would wait for it."""

    async def run() -> list[str]:
        hub = EventHub()
        hub.publish(event(1))
        hub.close()
        with hub.subscribe() as reader:
            return [item.subject async for item in reader]

    assert asyncio.run(asyncio.wait_for(run(), 5)) == ["1"]


class _Watched(Event, weakref=True):
    """One whose end can be seen."""


def test_what_nobody_hears_is_forgotten_in_time_also_if_nobody_ever_comes() -> None:
    async def run() -> int:
        hub = EventHub(retention_s=60)
        old = _Watched(**structs.asdict(event(1, at=time.time_ns() - 61 * 10**9)))
        kept = weakref.ref(old)
        hub.publish(old)
        del old
        hub.publish(event(2))
        assert kept() is None, "an event holds the records of its pod"
        with hub.subscribe() as reader:
            return len(await taken(reader))

    assert asyncio.run(run()) == 1


@pytest.mark.slow
def test_no_event_is_more_than_a_message_holds() -> None:
    long = Mount(container_path="/" + "x" * 4000, host_path="/" + "x" * 4000)
    pod = sandbox(annotations={"note": "x" * 1_000_000})

    def told(*containers: Container) -> api.ContainerEventResponse:
        message = event_message(
            Event(kind=EventKind.STARTED, subject="s", at=1, sandbox=pod, containers=containers, size=0)
        )
        assert message.ByteSize() < transport.MAX_MESSAGE_BYTES
        return message

    usual = container("usual", labels={"a": "b"}, mounts=(long,))
    for large in (
        [container(str(number), annotations={"note": "x" * 1_000_000}) for number in range(17)],
        [container(str(number), mounts=(long,) * 200) for number in range(17)],
    ):
        statuses = told(usual, *large).containers_statuses
        assert [item.id for item in statuses] == [item.id for item in (usual, *large)]
        assert (dict(statuses[0].labels), len(statuses[0].mounts)) == ({"a": "b"}, 1)
    message = told(*(container(str(number), image="x" * 4096, name="n" * 1000) for number in range(4000)))
    assert (message.container_id, message.HasField("pod_sandbox_status")) == ("s", False)
