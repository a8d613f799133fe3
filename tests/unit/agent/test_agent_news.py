"""Waiting for news of a runtime whose events end, in whichever way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import pytest

from podkeep.agent.pod import news
from podkeep.agent.pod.news import News, OwnNews
from podkeep.base.errors import DeadlineExceeded, Internal, PodkeepError, ResourceExhausted, Unavailable, Unimplemented
from podkeep.cri.v1 import api_pb2
from unit.cri.cri_endpoint import run, talking


@pytest.mark.parametrize("kind", [ResourceExhausted, Internal, DeadlineExceeded, Unavailable])
def test_a_stream_of_events_that_fails_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[PodkeepError]
) -> None:
    """Another pod's event was larger than a message may be, and every ``podkeep run`` ended with a traceback."""
    monkeypatch.setattr(news, "_RECONNECT_S", 0)
    again = asyncio.Event()
    asked = 0

    async def events(_request: api_pb2.GetEventsRequest) -> AsyncIterator[api_pb2.ContainerEventResponse]:
        nonlocal asked
        asked += 1
        if asked == 3:
            again.set()
            await asyncio.Event().wait()
        yield api_pb2.ContainerEventResponse()
        raise kind("the stream ends")

    async def follow() -> None:
        async with talking(tmp_path / "s", runtime={"GetContainerEvents": events}) as client:
            told = OwnNews(client)
            watching = asyncio.create_task(told.watch())
            reached = asyncio.create_task(again.wait())
            await asyncio.wait({watching, reached}, return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
            assert not watching.done()
            await told.woken()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    run(follow())


def test_a_runtime_without_events_is_not_asked_again(tmp_path: Path) -> None:
    async def events(_request: api_pb2.GetEventsRequest) -> AsyncIterator[api_pb2.ContainerEventResponse]:
        raise Unimplemented("no events")
        yield

    async def follow() -> None:
        async with talking(tmp_path / "s", runtime={"GetContainerEvents": events}) as client:
            await OwnNews(client).watch()

    run(follow())


@pytest.mark.parametrize(
    ("events", "seen", "news"),
    [
        ([10], 20, False),  # it happened before what was seen
        ([10, 30], 20, True),
        ([20], 20, True),  # at the same moment: it may have come after
        ([None], 20, True),  # no event of the runtime: it has no time
        ([10], 0, True),  # the runtime does not say when it spoke
    ],
)
def test_an_event_from_before_the_last_look_is_no_news(events: list[int | None], seen: int, news: bool) -> None:
    """A pod was looked at three times for one container that started: for its step, its event and the API's echo."""
    told = News()
    for at in events:
        told.wake() if at is None else told.wake(at)
    told.seen(seen)
    assert has_news(told) is news


def test_an_event_that_comes_late_is_no_news() -> None:
    told = News()
    told.seen(20)
    told.wake(10)
    assert not has_news(told)
    told.wake(30)
    assert has_news(told)


def test_what_comes_before_a_look_is_no_news_after_it() -> None:
    told = News()
    told.wake()
    told.known()
    assert not has_news(told)


def test_a_clock_that_was_set_back_hides_one_look_at_most() -> None:
    told = News()
    told.seen(1000)
    told.seen(10)
    told.wake(11)
    assert has_news(told)


def test_after_the_clock_was_set_back_an_event_is_news() -> None:
    """A container that ended after that was not started again until the clock had caught up, or for ten minutes."""
    time = SetTime()
    told = News(time)
    told.known()
    told.seen(time.nanoseconds())
    time.ahead -= 3600
    told.wake(time.nanoseconds())
    assert has_news(told)
    # The look that follows is by the clock as it is now.
    told.known()
    told.seen(time.nanoseconds())
    told.wake(time.nanoseconds() - 10**9)
    assert not has_news(told)


def test_an_event_of_a_clock_that_is_set_during_a_look_is_news_after_it() -> None:
    time = SetTime()
    told = News(time)
    told.known()
    at = time.nanoseconds()
    time.ahead -= 3600
    told.wake(time.nanoseconds())
    told.seen(at)
    assert has_news(told)


class SetTime:
    """A time of day that is set."""

    def __init__(self) -> None:
        self.ahead = 1e9

    def __call__(self) -> float:
        return monotonic() + self.ahead

    def nanoseconds(self) -> int:
        return int(self() * 1e9)


def has_news(told: News) -> bool:
    async def wait() -> bool:
        try:
            await asyncio.wait_for(told.woken(), 0.01)
        except TimeoutError:
            return False
        return True

    return run(wait())
