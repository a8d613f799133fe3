"""Waiting for news of a runtime whose events end, in whichever way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from podkeep.agent.pod import news
from podkeep.agent.pod.news import OwnNews
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
