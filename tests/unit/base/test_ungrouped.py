"""What failed or was cancelled refers to nothing that refers to it: errors of a TaskGroup, and of steps on threads."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterator

import pytest

from podkeep.base.concurrency.tasks import on_thread, ungrouped
from podkeep.base.errors import Cancelled
from support.cycles import uncollected


@pytest.fixture
def no_cycles() -> Iterator[None]:
    """Nothing is freed that refers to itself."""
    with uncollected():
        yield


class Passed:
    """Something large that a stream was passing on."""


def test_what_a_group_does_is_returned() -> None:
    async def work() -> int:
        async with asyncio.TaskGroup() as group:
            done = group.create_task(asyncio.sleep(0, 5))
        return done.result()

    assert asyncio.run(ungrouped(work())) == 5


@pytest.mark.usefixtures("no_cycles")
def test_what_a_failed_group_was_passing_on_goes_with_its_error() -> None:
    held: list[weakref.ref[Passed]] = []

    async def fail() -> None:
        passed = Passed()
        held.append(weakref.ref(passed))
        await asyncio.sleep(0)
        raise Cancelled("the client left")

    async def wait() -> None:
        passed = Passed()
        held.append(weakref.ref(passed))
        await asyncio.Event().wait()

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wait()), group.create_task(fail())]
            passed = Passed()
            held.append(weakref.ref(passed))
            await asyncio.wait(tasks)

    async def session() -> None:
        passed = Passed()
        held.append(weakref.ref(passed))
        await ungrouped(work())

    async def main() -> None:
        with pytest.raises(Cancelled, match="the client left") as failed:
            await session()
        del failed
        await asyncio.sleep(0)
        assert len(held) == 4
        assert [item() for item in held] == [None] * 4

    asyncio.run(main())


def test_an_error_outside_of_the_group_is_itself() -> None:
    async def main() -> None:
        work = asyncio.ensure_future(ungrouped(asyncio.sleep(1000)))
        await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(main())


@pytest.mark.usefixtures("no_cycles")
def test_what_a_cancelled_caller_had_goes_with_it() -> None:
    """Who is cancelled while a step on a thread is waited for, which is not left half done."""
    held: list[weakref.ref[Passed]] = []
    go_on = threading.Event()

    async def session() -> None:
        passed = Passed()
        held.append(weakref.ref(passed))
        await on_thread(go_on.wait)

    async def main() -> None:
        work = asyncio.ensure_future(session())
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait({work})
        assert work.cancelled()
        del work
        await asyncio.sleep(0)
        assert [item() for item in held] == [None]

    asyncio.run(main())
