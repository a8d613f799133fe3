"""Watches: where they begin, what they say, and how they end."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from podkeep.apiserver.list_watch import watches as watching
from podkeep.apiserver.list_watch.facts import Facts
from podkeep.apiserver.storage import store as storage
from podkeep.http.messages import Chunk, framed
from support.api_calls import MERGE, Answer, Api, run
from support.loop_turns import calls_in_turns
from support.waiting import TIMEOUT_S

CMS = "/api/v1/namespaces/default/configmaps"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def _said(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]


async def _create(api: Api, name: str, **labels: str) -> int:
    answer = await api.call("POST", CMS, {"metadata": {"name": name, "labels": labels}})
    return int(answer.value["metadata"]["resourceVersion"])


async def _watch(api: Api, query: str, accept: str = "application/json") -> Answer:
    answer = await api.call("GET", f"{CMS}?watch=true&{query}", accept=accept)
    assert answer.status == 200
    return answer


def test_a_watch_goes_on_from_a_revision(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        first = await _create(api, "a")
        await _create(api, "b")
        watch = await _watch(api, f"resourceVersion={first}")
        await api.call("PATCH", f"{CMS}/a", {"data": {"x": "1"}}, content_type=MERGE)
        await api.call("DELETE", f"{CMS}/b")
        events = await watch.events(3)
        assert _said(events) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
        assert versions == sorted(versions) == [first + 1, first + 2, first + 3]
        await watch.leave()
        assert len(api.resources.watches) == 0

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("query", "accept", "at_once"),
    [
        ("", "application/json", True),
        ("&allowWatchBookmarks=true", "application/json", True),
        ("&labelSelector=!x", "application/json", False),
        ("&fieldSelector=metadata.name!=x", "application/json", False),
        ("", TABLE, False),
    ],
)
def test_a_watch_of_what_is_stored_is_written_to_at_once(
    query: str, accept: str, *, at_once: bool, tmp_path: Path
) -> None:
    async def test(api: Api) -> None:
        written: list[Chunk] = []

        def write_now(chunk: Chunk) -> bool:
            written.append(chunk)
            return True

        api.write_now = write_now
        query_of_both = f"resourceVersion={await _create(api, 'a')}{query}"
        watches = [await _watch(api, query_of_both, accept) for _ in range(2)]
        await _create(api, "b")
        for watch in watches:
            assert len(await watch.events(1)) == 1
        next_ones = [asyncio.ensure_future(anext(watch.lines)) for watch in watches if watch.lines is not None]
        await asyncio.sleep(0)
        answer = await api.call("POST", CMS, {"metadata": {"name": "c"}})
        if at_once:
            # One chunk for both, which are not woken.
            line = b'{"type":"ADDED","object":' + answer.body + b"}\n"
            assert written == [framed(line)] * 2
            assert written[0] is written[1]
            await _create(api, "d")
            assert b'"name":"d"' in written[3]
            await asyncio.sleep(0)
            assert not any(one.done() for one in next_ones)
            api.resources.watches.close()
        else:
            assert all(b'"name":"c"' in line for line in await asyncio.gather(*next_ones))
            assert written == []
        await asyncio.wait(next_ones)

    run(tmp_path, test)


def test_a_watch_without_a_revision_begins_with_what_there_is(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await _create(api, "a")
        await _create(api, "b")
        for query in ("", "resourceVersion=0"):
            watch = await _watch(api, query)
            assert _said(await watch.events(2)) == [("ADDED", "a"), ("ADDED", "b")]
            await watch.leave()

    run(tmp_path, test)


def test_initial_events_end_with_a_bookmark(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        revision = await _create(api, "a")
        query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        watch = await _watch(api, query)
        first, bookmark = await watch.events(2)
        assert first["type"] == "ADDED"
        assert bookmark == {
            "type": "BOOKMARK",
            "object": {
                "kind": "ConfigMap",
                "apiVersion": "v1",
                "metadata": {
                    "resourceVersion": str(revision),
                    "creationTimestamp": None,
                    "annotations": {"k8s.io/initial-events-end": "true"},
                },
            },
        }
        await _create(api, "b")
        assert _said(await watch.events(1)) == [("ADDED", "b")]
        await watch.leave()

    run(tmp_path, test)


def test_selectors_turn_changes_into_additions_and_deletions(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        watch = await _watch(api, "labelSelector=on%3Dyes")
        await _create(api, "a", on="no")
        await api.call("PATCH", f"{CMS}/a", {"metadata": {"labels": {"on": "yes"}}}, content_type=MERGE)
        await api.call("PATCH", f"{CMS}/a", {"data": {"x": "1"}}, content_type=MERGE)
        last = await api.call("PATCH", f"{CMS}/a", {"metadata": {"labels": {"on": "no"}}}, content_type=MERGE)
        await api.call("DELETE", f"{CMS}/a")
        await _create(api, "b", on="yes")
        events = await watch.events(4)
        assert _said(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")]
        gone = events[2]["object"]["metadata"]
        assert gone["labels"] == {"on": "yes"}
        assert gone["resourceVersion"] == last.value["metadata"]["resourceVersion"]
        await watch.leave()

    run(tmp_path, test)


def test_one_object_can_be_watched(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await _create(api, "a")
        for path in (f"{CMS}?watch=1&fieldSelector=metadata.name%3Db", "/api/v1/watch/namespaces/default/configmaps/b"):
            watch = await api.call("GET", path)
            await _create(api, "b")
            assert _said(await watch.events(1)) == [("ADDED", "b")]
            await watch.leave()
            await api.call("DELETE", f"{CMS}/b")

    run(tmp_path, test)


def test_a_watch_as_table_has_its_columns_once(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await _create(api, "a")
        watch = await _watch(api, "", TABLE)
        await _create(api, "b")
        one, two = await watch.events(2)
        assert [column["name"] for column in one["object"]["columnDefinitions"]] == ["Name", "Data", "Age"]
        assert two["object"]["columnDefinitions"] is None
        assert two["object"]["rows"][0]["cells"][0] == "b"
        await watch.leave()

    run(tmp_path, test)


def test_a_watch_from_a_revision_that_is_gone_says_so(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        first = await _create(api, "a")
        await _create(api, "b")
        await api.store.compact(api.store.revision)
        watch = await _watch(api, f"resourceVersion={first}")
        (event,) = await watch.events(1)
        assert event["type"] == "ERROR"
        assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
        assert event["object"]["message"] == f"too old resource version: {first} ({first + 1})"
        assert await watch.rest() == b""
        future = await api.call("GET", f"{CMS}?watch=1&resourceVersion=99")
        assert (future.status, future.value["details"]["causes"][0]["reason"]) == (504, "ResourceVersionTooLarge")

    run(tmp_path, test)


@pytest.mark.slow
def test_a_watch_ends_when_its_time_is_over_and_says_last_how_far_it_came(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await _create(api, "a")
        watch = await _watch(api, f"resourceVersion={api.store.revision}&timeoutSeconds=1&allowWatchBookmarks=true")
        assert await watch.rest() == b""
        await watch.leave()

    run(tmp_path, test)


def test_watches_end_with_the_server(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        watch = await _watch(api, "")
        api.resources.watches.close()
        assert await watch.rest() == b""

    run(tmp_path, test)


@pytest.mark.slow
def test_a_watcher_that_takes_nothing_is_cut_off(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        watch = await _watch(api, "")
        count = storage.WATCHER_EVENTS * 2
        names = [f"c{number}" for number in range(count)]
        for start in range(0, count, 500):
            await asyncio.gather(*(_create(api, name) for name in names[start : start + 500]))
        assert len(await watch.rest()) < 200 * count
        assert len(api.resources.watches) <= 1
        await watch.leave()

    run(tmp_path, test)


WATCHERS = 8
IN_FULL = "&includeObject=Object"
LARGE = "x" * 200_000


async def _turns(watches: list[Answer], write: Awaitable[object]) -> list[int]:
    """Return in which turns of the event loop watchers got the large event of a write."""
    turn, got = 0, list[int]()

    async def take(watch: Answer) -> None:
        assert watch.lines is not None
        while len(await anext(watch.lines)) < len(LARGE):
            pass
        got.append(turn)

    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
        for watch in watches:
            group.create_task(take(watch))
        group.create_task(_made(write))
        while len(got) < len(watches):
            await asyncio.sleep(0)
            turn += 1
    return got


async def _made(write: Awaitable[object]) -> None:
    await write


@pytest.mark.parametrize(
    ("query", "accept"), [("", "application/json"), ("&labelSelector=!x", "application/json"), (IN_FULL, TABLE)]
)
def test_a_large_event_goes_to_one_watcher_in_each_turn(query: str, accept: str, tmp_path: Path) -> None:
    """Each takes a piece of it into a buffer of its own: thousands of pieces at once kept all others waiting."""

    async def test(api: Api) -> None:
        past = f"resourceVersion={await _create(api, 'a')}{query}"
        watches = [await _watch(api, past, accept) for _ in range(WATCHERS)]
        turns = await _turns(watches, api.call("PUT", f"{CMS}/a", {"metadata": {"name": "a"}, "data": {"x": LARGE}}))
        assert len(set(turns)) == WATCHERS
        for watch in watches:
            await watch.leave()

    run(tmp_path, test)


def test_what_is_selected_no_more_is_read_once_for_all_watchers(tmp_path: Path) -> None:
    """They are told of the object before, with the revision at which it went: of a large one that takes long."""
    reads = itertools.count()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is watching.with_revision.__code__:
            next(reads)

    async def test(api: Api) -> None:
        labelled = {"metadata": {"name": "a", "labels": {"x": "1"}}, "data": {"x": LARGE}}
        revision = (await api.call("POST", CMS, labelled)).value["metadata"]["resourceVersion"]
        watches = [await _watch(api, f"resourceVersion={revision}&labelSelector=x") for _ in range(WATCHERS)]
        sys.setprofile(count)
        try:
            change = {"metadata": {"labels": {"x": None}}}
            await api.call("PATCH", f"{CMS}/a", change, content_type=MERGE)
            said = [_said(await watch.events(1)) for watch in watches]
        finally:
            sys.setprofile(None)
        assert said == [[("DELETED", "a")]] * WATCHERS
        assert next(reads) == 1
        for watch in watches:
            await watch.leave()

    run(tmp_path, test)


@pytest.mark.slow
def test_many_events_are_held_against_selectors_over_several_turns(tmp_path: Path) -> None:
    """Hundreds of watchers with long selectors see a burst of writes in the same turn of the event loop."""

    async def test(api: Api) -> None:
        revision = await _create(api, "first")
        watches = [await _watch(api, f"resourceVersion={revision}&labelSelector=x") for _ in range(WATCHERS)]
        async with calls_in_turns(Facts.selects) as in_a_turn, asyncio.TaskGroup() as group:
            told = [group.create_task(watch.events(100)) for watch in watches]
            for number in range(100):
                group.create_task(_create(api, f"a{number}", x="1"))
        names = [name for _, name in _said(told[0].result())]
        assert sorted(names) == sorted(f"a{number}" for number in range(100))
        assert all(_said(task.result()) == _said(told[0].result()) for task in told)
        assert sum(in_a_turn) == 100 * WATCHERS
        assert max(in_a_turn) <= watching.SELECTED_AT_ONCE * WATCHERS
        for watch in watches:
            await watch.leave()

    run(tmp_path, test)
