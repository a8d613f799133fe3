"""Creations of containers that are given up: by their callers, with their sandbox, with the daemon."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from podkeep.base.ids import ContainerID, SandboxID, new_id
from podkeep.runtime.lifecycle.creations import Creations

ONE, OTHER = SandboxID(new_id()), SandboxID(new_id())
MADE = ContainerID(new_id())


class Making:
    """A creation whose thread goes on until it is given up or let go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.given_up = threading.Event()

    async def __call__(self, given_up: threading.Event) -> ContainerID:
        self.given_up = given_up
        self.begun.set()
        await self.go_on.wait()
        return MADE


async def leave(*calls: asyncio.Future[ContainerID]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def given_up(making: Making) -> None:
    await asyncio.to_thread(making.given_up.wait)


def run(scenario: Callable[[], Awaitable[None]], timeout: float = 60) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario(), timeout)

    asyncio.run(limited())


def test_a_creation_without_a_caller_is_given_up() -> None:
    async def scenario() -> None:
        creations, making = Creations(unwanted_s=0), Making()
        calls = [asyncio.ensure_future(creations.do("key", ONE, making)) for _ in range(2)]
        await making.begun.wait()
        await leave(calls[0])
        assert not making.given_up.is_set()
        await leave(calls[1])
        await given_up(making)
        making.go_on.set()

    run(scenario)


def test_the_time_counts_from_the_last_caller_that_left() -> None:
    async def scenario() -> None:
        creations, making = Creations(), Making()
        first = asyncio.ensure_future(creations.do("key", ONE, making))
        await making.begun.wait()
        await leave(first)
        (stale,) = creations._timers.values()
        second = asyncio.ensure_future(creations.do("key", ONE, making))
        await asyncio.sleep(0)
        assert stale.cancelled()
        await leave(second)
        (timer,) = creations._timers.values()
        third = asyncio.ensure_future(creations.do("key", ONE, making))
        making.go_on.set()
        assert await third == MADE
        assert timer.cancelled()
        assert not creations._timers

    run(scenario)


def test_a_caller_that_comes_back_in_time_joins_it() -> None:
    async def scenario() -> None:
        creations, making = Creations(unwanted_s=0.01), Making()
        first = asyncio.ensure_future(creations.do("key", ONE, making))
        await making.begun.wait()
        await leave(first)
        second = asyncio.ensure_future(creations.do("key", ONE, making))
        passed = asyncio.Event()
        # What was to happen 10 ms after the first caller left comes before this.
        asyncio.get_running_loop().call_later(0.02, passed.set)
        await passed.wait()
        assert not making.given_up.is_set()
        making.go_on.set()
        assert await second == MADE

    run(scenario)


@pytest.mark.parametrize("sandbox", [ONE, None], ids=["one", "all"])
def test_creations_are_given_up_with_their_sandbox(sandbox: SandboxID | None) -> None:
    async def scenario() -> None:
        creations, makings = Creations(), [Making(), Making()]
        calls = [
            asyncio.ensure_future(creations.do(key, where, making))
            for key, where, making in zip("ab", (ONE, OTHER), makings, strict=True)
        ]
        for making in makings:
            await making.begun.wait()
        creations.give_up(sandbox)
        assert [making.given_up.is_set() for making in makings] == [True, sandbox is None]
        for making in makings:
            making.go_on.set()
        assert await asyncio.gather(*calls) == [MADE, MADE]
        creations.give_up()

    run(scenario)


def test_a_new_creation_is_not_given_up_for_an_old_one() -> None:
    async def scenario() -> None:
        creations, first, second = Creations(unwanted_s=0), Making(), Making()
        creations.give_up(ONE)
        first.go_on.set()
        assert await creations.do("key", ONE, first) == MADE
        creations.give_up(ONE)
        second.go_on.set()
        assert await creations.do("key", ONE, second) == MADE
        assert not second.given_up.is_set()

    run(scenario)
