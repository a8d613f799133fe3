"""The store, with a real database."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podkeep.apiserver.server.compaction import compact_regularly
from podkeep.apiserver.storage import database
from podkeep.apiserver.storage import store as storage
from podkeep.apiserver.storage.records import Event, EventType, Key, Stored
from podkeep.apiserver.storage.store import Compacted, Conflict, FutureRevision, Slow, Store, Watcher
from podkeep.base.errors import DataLoss, Internal, Unavailable
from support.waiting import TIMEOUT_S

WRITER = Path(__file__).with_name("writer.py")


def key(name: str, namespace: str = "default", resource: str = "pods") -> Key:
    return Key(resource, namespace, name)


def value(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **more}


def decoded(stored: Stored) -> Any:
    return msgspec.json.decode(stored.value)


def names(page: storage.Page) -> list[str]:
    return [stored.key.name for stored in page.items]


def run(path: Path, steps: Callable[[Store], Awaitable[None]]) -> None:
    async def within() -> None:
        async with Store(path) as opened:
            await steps(opened)

    asyncio.run(within())


async def some(watcher: Watcher, count: int) -> list[tuple[str, str, int]]:
    return [shown(await anext(watcher)) for _ in range(count)]


def shown(event: Event) -> tuple[str, str, int]:
    return str(event.type), event.stored.key.name, event.previous.revision if event.previous else 0


def test_what_is_written_is_there_also_after_a_restart(tmp_path: Path) -> None:
    async def write(store: Store) -> None:
        first = await store.put(key("a"), value("a"), None)
        second = await store.put(key("b"), value("b"), None)
        third = await store.put(key("a"), value("a", spec=1), first)
        assert [first.revision, second.revision, third.revision] == [1, 2, 3]
        assert decoded(third) == {"metadata": {"name": "a", "resourceVersion": "3"}, "spec": 1}
        await store.delete(key("b"), value("b"), second)

    async def read(store: Store) -> None:
        assert store.revision == 4
        assert names(store.snapshot("pods")) == ["a"]
        found = store.get(key("a"))
        assert found is not None
        assert decoded(found)["spec"] == 1
        assert store.get(key("b")) is None

    path = tmp_path / "api.db"
    run(path, write)
    run(path, read)
    assert path.stat().st_mode & 0o777 == 0o600


def test_lists_are_by_namespace_and_name(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        for namespace, name in (("b", "x"), ("a", "z"), ("a.b", "y"), ("a", "y"), ("", "node")):
            await store.put(key(name, namespace), value(name), None)
        assert [stored.key[1:] for stored in store.snapshot("pods").items] == [
            ("", "node"),
            ("a", "y"),
            ("a", "z"),
            ("a.b", "y"),
            ("b", "x"),
        ]
        assert names(store.snapshot("pods", "a")) == ["y", "z"]
        assert names(store.snapshot("pods", "c")) == []
        assert names(store.snapshot("nodes")) == []
        assert store.count("pods") == 5

    run(tmp_path / "db", steps)


def test_a_list_has_the_newest_revision_of_each(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        made = [await store.put(key(name, "ns"), value(name), None) for name in "cab"]
        changed = await store.put(key("a", "ns"), value("a", spec=1), made[1])
        assert store.snapshot("pods", "ns").items == [changed, made[2], made[0]]
        before = store.snapshot("pods")
        await store.delete(key("b", "ns"), value("b"), made[2])
        assert store.snapshot("pods").items == [changed, made[0]]
        again = await store.put(key("b", "ns"), value("b", spec=2), None)
        assert store.snapshot("pods").items == [changed, again, made[0]]
        assert before.items == [changed, made[2], made[0]]

    run(tmp_path / "db", steps)


def test_a_write_from_an_old_revision_is_a_conflict(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        first = await store.put(key("a"), value("a"), None)
        with pytest.raises(Conflict):
            store.put(key("a"), value("a"), None)
        second = await store.put(key("a"), value("a"), first)
        with pytest.raises(Conflict) as caught:
            store.put(key("a"), value("a"), first)
        assert caught.value.newest == second
        with pytest.raises(Conflict):
            store.delete(key("a"), value("a"), first)
        await store.delete(key("a"), value("a"), second)
        with pytest.raises(Conflict) as caught:
            store.put(key("a"), value("a"), second)
        assert caught.value.newest is None

    run(tmp_path / "db", steps)


def test_writes_are_checked_against_those_that_wait_for_the_disk(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        writes = [store.put(key("a"), value("a"), None)]
        assert store.get(key("a")) is None
        for _ in range(50):
            writes.append(store.put(key("a"), value("a"), store.newest(key("a"))))
        newest = store.newest(key("a"))
        assert newest is not None
        writes.append(store.delete(key("a"), value("a"), newest))
        assert store.newest(key("a")) is None
        writes.append(store.put(key("a"), value("a"), None))
        assert [stored.revision for stored in await asyncio.gather(*writes)] == list(range(1, 54))
        found = store.get(key("a"))
        assert found is not None
        assert found.revision == 53

    run(tmp_path / "db", steps)


def test_watchers_get_every_write_once_in_order(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        watcher, elsewhere = store.watch("pods", 0), store.watch("pods", 0, "other")
        first = await store.put(key("a"), value("a"), None)
        await store.put(key("n", "", "nodes"), value("n"), None)
        second = await store.put(key("a"), value("a"), first)
        await store.delete(key("a"), value("a"), second)
        await store.put(key("b", "other"), value("b"), None)
        expected = [("ADDED", "a", 0), ("MODIFIED", "a", 1), ("DELETED", "a", 3), ("ADDED", "b", 0)]
        assert await some(watcher, 4) == expected
        assert await some(elsewhere, 1) == [("ADDED", "b", 0)]
        for after, rest in ((0, expected), (1, expected[1:]), (3, expected[2:]), (4, expected[3:])):
            assert await some(store.watch("pods", after), len(rest)) == rest
        watcher.end()
        with pytest.raises(StopAsyncIteration):
            await anext(watcher)

    run(tmp_path / "db", steps)


@pytest.mark.slow
def test_a_watch_from_before_a_restart_reads_the_disk(tmp_path: Path) -> None:
    async def write(store: Store) -> None:
        writes = [store.put(key("a"), value("a"), store.newest(key("a"))) for _ in range(1201)]
        await asyncio.gather(*writes)

    async def read(store: Store) -> None:
        watcher = store.watch("pods", 1)
        newest = store.get(key("a"))
        assert newest is not None
        await store.put(key("a"), value("a"), newest)
        assert await some(watcher, 1201) == [("MODIFIED", "a", revision) for revision in range(1, 1202)]

    run(tmp_path / "db", write)
    run(tmp_path / "db", read)


def test_the_past_of_large_objects_is_read_in_small_parts(tmp_path: Path) -> None:
    size = database.PAST_EVENT_BYTES // 4

    async def write(store: Store) -> None:
        writes = [store.put(key("a"), value("a", data="x" * size), store.newest(key("a"))) for _ in range(9)]
        await asyncio.gather(*writes)

    async def read(store: Store) -> None:
        assert await some(store.watch("pods", 0), 9) == [
            ("MODIFIED" if revision else "ADDED", "a", revision) for revision in range(9)
        ]

    path = tmp_path / "db"
    run(path, write)
    run(path, read)
    with closing(database.Database(path)) as opened:
        after, parts = 0, []
        while after is not None:
            events, after = opened.events("pods", after, 9, 500)
            parts.append(len(events))
    # A write is read with the state before it.
    assert parts == [3, 2, 2, 2, 0]


def test_a_revision_that_is_not_there_yet(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        writing = store.put(key("a"), value("a"), None)
        with pytest.raises(FutureRevision, match="Too large resource version: 1, current: 0"):
            store.watch("pods", 1)
        with pytest.raises(FutureRevision, match="Too large resource version: 1, current: 0"):
            await store.page("pods", "", 1, ("", ""), 9)
        await writing
        assert names(await store.page("pods", "", 1, ("", ""), 9)) == ["a"]
        store.watch("pods", 1)
        with pytest.raises(FutureRevision):
            store.watch("pods", 2)

    run(tmp_path / "db", steps)


def test_a_cancelled_read_of_a_watch_loses_nothing(tmp_path: Path) -> None:
    async def write(store: Store) -> None:
        for name in "abc":
            await store.put(key(name), value(name), None)

    async def read(store: Store) -> None:
        watcher = store.watch("pods", 0)
        reading = asyncio.ensure_future(anext(watcher))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        assert reading.cancelled()
        assert [name for _, name, _ in await some(watcher, 3)] == ["a", "b", "c"]

    run(tmp_path / "db", write)
    run(tmp_path / "db", read)


def test_events_are_delivered_at_once_or_else_batched_but_never_both(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        told: list[tuple[str, str]] = []
        batched = asyncio.Semaphore(0)
        refuses = False

        def deliver(events: Sequence[Event]) -> bool:
            if not refuses:
                told.extend(("delivered", event.stored.key.name) for event in events)
            return not refuses

        async def read() -> None:
            while (events := await watcher.batch(1 << 20)) != []:
                for event in events or ():
                    told.append(("batched", event.stored.key.name))
                    batched.release()

        watcher = store.watch("pods", 0)
        watcher.deliver = deliver
        await store.put(key("before"), value("before"), None)  # nobody waits for a batch
        reading = asyncio.ensure_future(read())
        await asyncio.wait_for(batched.acquire(), 30)
        await store.put(key("a"), value("a"), None)
        await store.put(key("n", "", "nodes"), value("n"), None)
        refuses = True
        await store.put(key("b"), value("b"), None)
        refuses = False
        await asyncio.wait_for(batched.acquire(), 30)
        await asyncio.gather(*(store.put(key(name), value(name), None) for name in ("c", "d")))
        watcher.wake()
        await asyncio.sleep(0)
        await store.put(key("e"), value("e"), None)
        watcher.end()
        await reading
        assert told[:3] == [("batched", "before"), ("delivered", "a"), ("batched", "b")]
        assert [name for _, name in told[3:]] == ["c", "d", "e"]
        assert {how for how, _ in told[3:]} == {"delivered"}

    run(tmp_path / "db", steps)


def test_much_is_not_delivered_at_once(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        delivered: list[list[str]] = []

        def deliver(events: Sequence[Event]) -> bool:
            delivered.append([event.stored.key.name for event in events])
            return True

        watcher = store.watch("pods", 0)
        watcher.deliver = deliver
        half = "x" * (storage.DELIVERED_BYTES // 2)
        for names in (["a"], ["b", "c"], ["d"]):
            waiting = asyncio.ensure_future(watcher.batch(1 << 20))
            await asyncio.sleep(0)
            # What is written in one turn is one group.
            await asyncio.gather(*(store.put(key(name), value(half), None) for name in names))
            if len(names) == 1:
                assert not waiting.done()
                watcher.wake()
                assert await waiting is None
            else:
                assert [event.stored.key.name for event in await waiting or ()] == names
        assert delivered == [["a"], ["d"]]

    run(tmp_path / "db", steps)


def test_watchers_are_told_of_their_namespace_alone_and_in_order(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        places = ("", "a", "b", "c")
        watchers = [store.watch("pods", 0, namespace) for namespace in places]
        nodes = store.watch("nodes", 0)
        writes = [("1", "a"), ("2", "b"), ("3", "a"), ("4", "b")]
        await asyncio.gather(*(store.put(key(name, place), value(name), None) for name, place in writes))
        await store.put(key("5", "", "nodes"), value("5"), None)
        for watcher, place in zip(watchers, places, strict=True):
            wanted = [name for name, namespace in writes if place in ("", namespace)]
            found = [] if place == "c" else await some(watcher, len(wanted))
            assert [name for _, name, _ in found] == wanted
            assert watcher.is_drained or place == "c"
        assert [name for _, name, _ in await some(nodes, 1)] == ["5"]

    run(tmp_path / "db", steps)


def test_a_batch_that_is_woken_takes_nothing(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        watcher = store.watch("pods", 0)
        waiting = asyncio.ensure_future(watcher.batch(1))
        await asyncio.sleep(0)
        watcher.wake()
        assert await waiting is None
        await store.put(key("a"), value("a"), None)
        watcher.wake()
        assert await watcher.batch(1) is None
        assert [event.stored.key.name for event in await watcher.batch(1) or ()] == ["a"]

    run(tmp_path / "db", steps)


def test_a_watcher_that_does_not_read_is_ended(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        slow, quick = store.watch("pods", 0), store.watch("pods", 0)
        reading = asyncio.ensure_future(some(quick, storage.WATCHER_EVENTS + 1))
        for start in range(0, storage.WATCHER_EVENTS + 1, 91):
            names = [str(number) for number in range(start, start + 91)]
            await asyncio.gather(*(store.put(key(name), value(name), None) for name in names))
        await store.put(key("last"), value("last"), None)
        with pytest.raises(Slow):
            await anext(slow)
        assert len(await reading) == storage.WATCHER_EVENTS + 1

    run(tmp_path / "db", steps)


def test_a_watcher_of_large_objects_is_ended_sooner(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        slow = store.watch("pods", 0)
        large = "x" * (1 << 20)
        for number in range(10):
            await store.put(key(str(number)), value(str(number), data=large), None)
        with pytest.raises(Slow):
            await anext(slow)

    run(tmp_path / "db", steps)


@pytest.mark.slow
def test_a_large_group_does_not_end_a_watcher_that_reads(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        watcher = store.watch("pods", 0)
        large = "x" * (1 << 20)
        reading = asyncio.ensure_future(some(watcher, 24))
        for start in (0, 12):
            names = [str(number) for number in range(start, start + 12)]
            await asyncio.gather(*(store.put(key(name), value(name, data=large), None) for name in names))
        assert len(await reading) == 24

    run(tmp_path / "db", steps)


@pytest.mark.slow
def test_a_watcher_that_reads_too_little_is_ended_too(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        watcher = store.watch("pods", 0)
        large = "x" * 300_000
        taken: list[Event] = []

        async def write_and_take_one_each() -> None:
            for start in range(0, 2 * storage.WATCHER_MOST * storage.WATCHER_BYTES // 300_000, 12):
                names = [str(number) for number in range(start, start + 12)]
                await asyncio.gather(*(store.put(key(name), value(name, data=large), None) for name in names))
                taken.append(await anext(watcher))

        with pytest.raises(Slow):
            await write_and_take_one_each()
        assert len(taken) * 12 > storage.WATCHER_BYTES // 300_000 + 12

    run(tmp_path / "db", steps)


def test_pages_are_of_one_revision(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        for name in "abcde":
            await store.put(key(name), value(name), None)
        at = store.revision
        for name in ("b", "d"):
            newest = store.newest(key(name))
            assert newest is not None
            await store.delete(key(name), value(name), newest)
        await store.put(key("bb"), value("bb"), None)
        page = await store.page("pods", "default", at, ("", ""), 2)
        assert (names(page), page.more, page.revision) == (["a", "b"], True, at)
        page = await store.page("pods", "", at, ("default", "b"), 3)
        assert (names(page), page.more) == (["c", "d", "e"], False)
        assert names(await store.page("pods", "", store.revision, ("", ""), 9)) == ["a", "bb", "c", "e"]
        assert names(await store.page("pods", "other", at, ("", ""), 9)) == []

    run(tmp_path / "db", steps)


def test_a_write_does_not_wait_for_all_who_read_the_past(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        first = await store.put(key("a"), value("a"), None)
        second = await store.put(key("b"), value("b"), None)
        ended: list[str] = []

        async def ends(name: str, work: Awaitable[object]) -> None:
            await work
            ended.append(name)

        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(ends("page", store.page("pods", "", first.revision, ("", ""), 10)))
                group.create_task(ends("values", store.values("pods", first.revision, [first.revision])))
            group.create_task(ends("write", store.put(key("b"), value("b"), second)))
        assert len(ended) == 41
        assert ended.index("write") < 5

    run(tmp_path / "db", steps)


def test_compaction_keeps_what_can_still_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "db"

    async def steps(store: Store) -> None:
        await store.put(key("a"), value("a"), None)
        await store.put(key("b"), value("b"), None)
        writes = [store.put(key("a"), value("a"), store.newest(key("a"))) for _ in range(700)]
        latest = (await asyncio.gather(*writes))[-1]
        gone = await store.put(key("c"), value("c"), None)
        await store.delete(key("c"), value("c"), gone)
        at = store.revision
        await store.compact(at)
        assert store.compacted("pods") == at
        latest = await store.put(key("a"), value("a"), latest)
        assert names(await store.page("pods", "", at, ("", ""), 9)) == ["a", "b"]
        with pytest.raises(Compacted, match="too old resource version: 3"):
            store.watch("pods", 3)
        with pytest.raises(Compacted):
            await store.page("pods", "", at - 1, ("", ""), 9)
        assert await some(store.watch("pods", at), 1) == [("MODIFIED", "a", 702)]

    async def again(store: Store) -> None:
        assert (names(store.snapshot("pods")), store.compacted("pods")) == (["a", "b"], 704)

    run(path, steps)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM log").fetchone() == (3,)
    run(path, again)


async def write_large(store: Store, count: int, name: str = "large", resource: str = "pods") -> None:
    """Write an object of 1 MiB, again and again."""
    place = key(name, resource=resource)
    for number in range(count):
        await store.put(place, value(name, data="x" * (1 << 20), number=number), store.newest(place))


@pytest.mark.slow
def test_a_write_does_not_wait_for_the_compaction_of_large_objects(tmp_path: Path) -> None:
    """What is removed in one step has few bytes, of objects that live for short, too."""

    async def steps(store: Store) -> None:
        for resource_name, compact in (("pods", store.compact), ("events", store.compact_short_lived)):
            await write_large(store, 32, resource=resource_name)
            ended: list[str] = []

            async def ends(name: str, work: Awaitable[object], to: list[str] = ended) -> None:
                await work
                to.append(name)

            async with asyncio.TaskGroup() as group:
                group.create_task(ends("compaction", compact(store.revision)))
                await asyncio.sleep(0)  # it has begun
                group.create_task(ends("write", store.put(key(resource_name), value(resource_name), None)))
            assert ended == ["write", "compaction"]

    run(tmp_path / "db", steps)
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        assert connection.execute("SELECT count(*) FROM log").fetchone() == (4,)


@pytest.mark.slow
def test_the_first_of_many_large_writes_does_not_wait_for_the_last(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        writes = [store.put(key(f"{number}"), value(f"{number}", data="x" * (1 << 20)), None) for number in range(16)]
        await writes[0]
        assert store.revision < 16
        await asyncio.gather(*writes)
        assert store.revision == 16

    run(tmp_path / "db", steps)


@pytest.mark.slow
def test_what_objects_were_takes_no_more_of_the_disk_than_it_may(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However large they are, and however often they are written; counted anew by each start. The log says once why
    clients may not go back as far as usual."""
    most = 16 << 20

    async def written_again(store: Store) -> None:
        await write_large(store, 12)

    async def steps(store: Store) -> None:
        assert store.past_bytes > 11 << 20
        async with asyncio.TaskGroup() as group:
            compacting = group.create_task(compact_regularly(store, 3600, most))
            await write_large(store, 100)
            async with asyncio.timeout(TIMEOUT_S):
                # Between two reads of the disk a step of the compaction has its turn.
                while (store.revision - store.compacted("pods")) << 20 > most:
                    await store.page("pods", "", store.revision, ("", ""), 1)
            compacting.cancel()
        # What was written last can still be asked for.
        assert names(await store.page("pods", "", store.revision - 1, ("", ""), 9)) == ["large"]

    run(tmp_path / "db", written_again)
    run(tmp_path / "db", steps)
    assert (tmp_path / "db").stat().st_size < 2 * most
    why = "objects had more than 16 MiB meanwhile (api.history_size_limit)"
    assert caplog.messages == [f"watches and lists go back less than 3600 s (api.history): {why}"]


@pytest.mark.slow
@pytest.mark.parametrize("resource_name", sorted(storage.SHORT_LIVED))
def test_of_what_is_short_lived_less_is_kept(tmp_path: Path, resource_name: str) -> None:
    path = tmp_path / "db"
    lease = key("lease", resource=resource_name)

    async def write(store: Store) -> None:
        await store.put(key("a"), value("a"), None)
        await store.put(lease, value("lease"), None)
        await asyncio.gather(*(store.put(lease, value("lease"), store.newest(lease)) for _ in range(700)))
        await store.put(key("a"), value("a", spec=1), store.newest(key("a")))
        at = store.revision
        assert (await store.page(resource_name, "", 3, ("", ""), 9)).revision == 3
        await store.compact_short_lived(at)
        assert (store.compacted(resource_name), store.compacted("pods")) == (at, 0)
        assert names(await store.page(resource_name, "", at, ("", ""), 9)) == ["lease"]
        assert await some(store.watch("pods", 1), 1) == [("MODIFIED", "a", 1)]
        with pytest.raises(Compacted, match=f"too old resource version: 3 .{at}."):
            store.watch(resource_name, 3)
        with pytest.raises(Compacted):
            await store.page(resource_name, "", at - 1, ("", ""), 9)
        newest = store.newest(lease)
        assert newest is not None
        await store.delete(lease, value("lease"), newest)
        await store.compact_short_lived(store.revision)

    async def again(store: Store) -> None:
        assert store.compacted("pods") == 0
        with pytest.raises(Compacted):
            store.watch(resource_name, 703)
        page = await store.page("pods", "", 3, ("", ""), 9)
        assert [decoded(stored)["metadata"]["resourceVersion"] for stored in page.items] == ["1"]
        assert (await store.put(key("b"), value("b"), None)).revision == 705  # 704 was the deletion
        await store.compact_short_lived(store.revision)

    run(path, write)
    run(path, again)
    with closing(sqlite3.connect(path)) as connection:
        kept = connection.execute("SELECT revision FROM log ORDER BY revision").fetchall()
    assert kept == [(1,), (703,), (705,)]


def test_a_revision_is_never_used_again(tmp_path: Path) -> None:
    async def remove(store: Store) -> None:
        await store.delete(key("a"), value("a"), await store.put(key("a"), value("a"), None))
        await store.compact(store.revision)

    async def again(store: Store) -> None:
        assert (await store.put(key("a"), value("a"), None)).revision == 3

    run(tmp_path / "db", remove)
    run(tmp_path / "db", again)


def test_a_group_that_cannot_be_written_fails_with_what_came_after_it(tmp_path: Path) -> None:
    """A file that grows past its limit is one of the ways in which a disk refuses."""

    async def steps(store: Store) -> None:
        kept = await store.put(key("a"), value("a"), None)
        watcher = store.watch("pods", store.revision)
        limits = resource_limit(200_000)
        try:
            writes = [store.put(key("a"), value("a", data="x" * 1_000_000), kept)]
            writes.append(store.put(key("a"), value("a", small=True), store.newest(key("a"))))
            failures = await asyncio.gather(*writes, return_exceptions=True)
        finally:
            resource_limit(limits)
        assert all(isinstance(failure, Unavailable) for failure in failures), failures
        assert store.get(key("a")) == store.newest(key("a")) == kept
        after = await store.put(key("a"), value("a"), kept)
        assert shown(await anext(watcher)) == ("MODIFIED", "a", kept.revision)
        assert store.get(key("a")) == after

    run(tmp_path / "db", steps)


def resource_limit(size: int) -> int:
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    return before


def test_a_group_that_fails_unexpectedly_does_not_end_the_writer(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        writes = [store.put(key("a"), value("a"), None), store.put(key("\ud800"), value("b"), None)]
        failures = await asyncio.gather(*writes, return_exceptions=True)
        assert all(isinstance(failure, Internal) for failure in failures), failures
        assert store.newest(key("a")) is None
        after = await store.put(key("a"), value("a"), None)
        assert store.get(key("a")) == after

    run(tmp_path / "db", steps)


def test_a_backup_is_a_database(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        for name in "abc":
            await store.put(key(name), value(name), None)
        await store.backup(tmp_path / "copy")
        await store.put(key("d"), value("d"), None)
        with pytest.raises(FileExistsError):
            await store.backup(tmp_path / "copy")

    async def restored(store: Store) -> None:
        assert names(store.snapshot("pods")) == ["a", "b", "c"]
        assert store.revision == 3

    run(tmp_path / "db", steps)
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600
    run(tmp_path / "copy", restored)


def test_a_damaged_database_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "db"

    async def steps(store: Store) -> None:
        await asyncio.gather(*(store.put(key(str(number)), value("x" * 200), None) for number in range(500)))

    run(path, steps)
    content = bytearray(path.read_bytes())
    content[8192:40000] = random.Random(1).randbytes(40000 - 8192)
    path.write_bytes(content)
    with pytest.raises(DataLoss, match=r"is damaged: .*restore a backup"):
        Store(path)
    assert path.read_bytes() == content


def test_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    path = tmp_path / "db"
    path.write_bytes(b"hello " * 1000)
    with pytest.raises(DataLoss, match="file is not a database"):
        Store(path)


def test_another_programs_database(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(DataLoss, match="another program's database"):
        Store(tmp_path / "db")


def test_a_newer_database(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(DataLoss, match="has version 99"):
        Store(tmp_path / "db")


def test_a_database_has_one_process(tmp_path: Path) -> None:
    async def steps(store: Store) -> None:
        await store.put(key("a"), value("a"), None)
        with pytest.raises(Unavailable, match="locked"):
            Store(tmp_path / "db")

    run(tmp_path / "db", steps)


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "db"
    acknowledged: dict[str, int] = {}
    chance = random.Random(14)
    for _ in range(20):
        writer = subprocess.Popen([sys.executable, WRITER, path], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(chance.randrange(1, 200)):
            name, revision = writer.stdout.readline().split()
            acknowledged[name] = int(revision)
        os.kill(writer.pid, signal.SIGKILL)
        for line in writer.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                name, revision = line.split()
                acknowledged[name] = int(revision)
        writer.stdout.close()
        writer.wait()

        async def check(store: Store) -> None:
            for name, revision in acknowledged.items():
                found = store.get(key(name))
                assert found is not None, name
                assert found.revision >= revision
            watcher = store.watch("pods", 0)
            seen = [event.stored.revision for event in [await anext(watcher) for _ in range(store.revision)]]
            assert seen == list(range(1, store.revision + 1))

        run(path, check)


def test_types_of_events_are_those_of_the_api() -> None:
    assert [str(item) for item in EventType] == ["ADDED", "MODIFIED", "DELETED"]


def test_what_was_written_after_a_revision_is_told_while_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "HISTORY_EVENTS", 3)

    async def steps(store: Store) -> None:
        for name in "abcd":
            await store.put(key(name), value(name), None)
        assert store.changes(store.revision) == []
        assert store.changes(2) == [key("d"), key("c")]
        assert store.changes(1) == [key("d"), key("c"), key("b")]
        assert store.changes(0) is None

    run(tmp_path / "db", steps)
