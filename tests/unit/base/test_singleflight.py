"""One operation per key, whoever asks and whoever leaves."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from podkeep.base.concurrency.singleflight import SingleFlight
from podkeep.base.errors import NotFound


def test_callers_of_one_key_share_one_operation() -> None:
    async def scenario() -> tuple[list[int], int]:
        flights: SingleFlight[int] = SingleFlight()
        runs = 0

        async def operation() -> int:
            nonlocal runs
            runs += 1
            await asyncio.sleep(0)
            return runs

        return await asyncio.gather(*(flights.do("key", operation) for _ in range(3))), runs

    assert asyncio.run(scenario()) == ([1, 1, 1], 1)


def test_failure_that_nobody_waited_for_is_not_reported_as_lost() -> None:
    reported: list[dict[str, Any]] = []

    async def scenario() -> frozenset[object]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        flights: SingleFlight[int] = SingleFlight()
        go_on = asyncio.Event()

        async def operation() -> int:
            await go_on.wait()
            raise NotFound("nothing here")

        caller = asyncio.ensure_future(flights.do("key", operation))
        await asyncio.sleep(0)
        assert flights.keys() == {"key"}
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go_on.set()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(others)
        return flights.keys()

    assert asyncio.run(scenario()) == frozenset()
    gc.collect()
    assert reported == []


def test_what_runs_is_ended_when_it_is_closed() -> None:
    async def scenario() -> None:
        flights: SingleFlight[str] = SingleFlight()
        ended: list[str] = []

        async def operation(name: str) -> str:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(name)
            return name

        calls = [asyncio.ensure_future(flights.do(name, lambda name=name: operation(name))) for name in "ab"]
        for _ in range(3):
            await asyncio.sleep(0)
        await flights.close()
        await asyncio.sleep(0)
        assert sorted(ended) == ["a", "b"]
        assert not flights.keys()
        await asyncio.wait(calls)
        assert all(call.cancelled() for call in calls)

    asyncio.run(scenario())


def test_an_operation_that_nobody_wants_any_more_is_cancelled() -> None:
    async def scenario() -> int:
        flights: SingleFlight[int] = SingleFlight(unwanted_s=0.01)
        begun, given_up, cleaned = asyncio.Semaphore(0), asyncio.Semaphore(0), asyncio.Event()
        ended = 0

        async def operation() -> int:
            nonlocal ended
            begun.release()
            try:
                await asyncio.Event().wait()
            finally:
                given_up.release()
                await cleaned.wait()
                ended += 1
            return 1

        async def leave(caller: asyncio.Future[int]) -> None:
            caller.cancel()
            await asyncio.wait({caller})

        first, second = (asyncio.ensure_future(flights.do("key", operation)) for _ in range(2))
        await begun.acquire()
        await leave(first)
        assert not flights._timers, "it has a caller"
        await leave(second)
        back = asyncio.ensure_future(flights.do("key", operation))
        await asyncio.sleep(0)
        assert not flights._timers, "a caller came back"
        await leave(back)
        await given_up.acquire()
        # Who comes while it ends does not share that end.
        other = asyncio.ensure_future(flights.do("key", operation))
        await begun.acquire()
        cleaned.set()
        await flights.close()
        await asyncio.wait({other})
        assert not flights._given_up
        assert not flights._timers
        return ended

    assert asyncio.run(scenario()) == 2


def test_nothing_is_kept_of_what_was_given_up() -> None:
    class Key:
        """Stands for a name and its credentials."""

    async def scenario() -> list[weakref.ref[Key]]:
        flights: SingleFlight[None] = SingleFlight(unwanted_s=0.0)
        keys = [Key() for _ in range(50)]
        kept = [weakref.ref(key) for key in keys]
        began, ended = asyncio.Semaphore(0), asyncio.Semaphore(0)

        async def operation() -> None:
            began.release()
            try:
                await asyncio.Event().wait()
            finally:
                ended.release()

        callers = [asyncio.ensure_future(flights.do(key, operation)) for key in keys]
        for _ in keys:
            await began.acquire()
        for caller in callers:
            caller.cancel()
        await asyncio.wait(callers)
        callers.clear()
        for _ in keys:
            await ended.acquire()
        await flights.close()
        for _ in range(3):  # the callbacks of the last that ended
            await asyncio.sleep(0)
        keys.clear()
        del caller
        gc.collect()
        # `flights` is still here.
        assert flights.keys() == frozenset()
        return [left for left in kept if left() is not None]

    assert asyncio.run(scenario()) == []
