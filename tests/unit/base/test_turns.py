"""Turns of what is large."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from podkeep.base.concurrency.turns import Turns

LARGE = 100


def run(steps: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(20):
            await steps()

    asyncio.run(within())


class Work:
    """Pieces of work, which note that they have begun, and end when they are told to."""

    def __init__(self, at_a_time: int = 1) -> None:
        self.turns = Turns(LARGE, at_a_time)
        self.begun: list[str] = []
        self.end = asyncio.Event()

    async def piece(self, user: str, size: int = LARGE) -> None:
        async with self.turns.taken(user, size):
            self.begun.append(user)
            await self.end.wait()


def test_users_take_turns() -> None:
    """However much one of them asks for, and what is small waits for nobody."""

    async def steps() -> None:
        work = Work(at_a_time=2)
        async with asyncio.TaskGroup() as group:
            for user in ("a", "a", "a", "a", "b", "c", "b"):
                group.create_task(work.piece(user))
            group.create_task(work.piece("small", LARGE - 1))
            while len(work.begun) < 3:  # noqa: ASYNC110 - in the next turns of the loop
                await asyncio.sleep(0)
            assert work.begun == ["a", "small", "a"]
            work.end.set()
        assert work.begun == ["a", "small", "a", "b", "c", "a", "b", "a"]

    run(steps)


def test_who_leaves_takes_no_turn_with_him() -> None:
    """While he waits, and in the moment in which his turn comes."""

    async def steps() -> None:
        work = Work()
        first = asyncio.create_task(work.piece("first"))
        waiting = [asyncio.create_task(work.piece(user)) for user in ("early", "late", "last")]
        await asyncio.sleep(0)
        waiting[0].cancel()
        work.end.set()
        await first
        waiting[1].cancel()  # his turn has come; he has not begun
        await asyncio.wait(waiting)
        assert work.begun == ["first", "last"]

    run(steps)


def test_work_is_begun_in_steps_of_the_loop_of_its_own() -> None:
    """Between two pieces that have no end to wait for, others go on."""

    async def steps() -> None:
        turns, done = Turns(LARGE, 1), list[str]()

        async def at_once() -> None:
            async with turns.taken("user", LARGE):
                pass
            done.append("large")

        async def other() -> None:
            # To the last one: on a busy machine a rest between two of them is longer than any number of steps.
            while done.count("large") < 3:
                done.append("other")
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(at_once())
            group.create_task(other())
        assert "large large" not in " ".join(done)

    run(steps)


@pytest.mark.slow
@pytest.mark.parametrize("at_a_time", [1, 2])
@pytest.mark.parametrize("waits", [True, False])
def test_between_pieces_that_take_long_others_have_many_steps(at_a_time: int, *, waits: bool) -> None:
    """A connection, or a small write, takes ten steps, and had to wait for a piece with each of them."""

    async def steps() -> None:
        turns, done = Turns(LARGE, at_a_time), list[str]()

        async def large() -> None:
            if waits:
                await turns.wait("user", LARGE)
                _work(done)
                return
            async with turns.taken("user", LARGE):
                _work(done)
                await asyncio.sleep(0)

        async def other() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            done.append("other")

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(large())
            group.create_task(other())
        assert done == ["large", "other", "large", "large"]

    run(steps)


def _work(done: list[str]) -> None:
    """Keep the loop busy: a quarter of this is long enough for many steps."""
    end = time.monotonic() + 0.4
    while time.monotonic() < end:
        pass
    done.append("large")
