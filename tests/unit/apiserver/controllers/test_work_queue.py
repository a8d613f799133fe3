"""The queue of a controller."""

from __future__ import annotations

import asyncio

from podkeep.apiserver.controllers.work_queue import CHANGED_DELAY, MAX_DELAY, WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_items_come_once_in_order_when_they_are_due() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    for item in "aba":
        queue.add(item)
    queue.add("later", 5)
    queue.add("c", 3)
    queue.add("c", 2)
    queue.add("c", 4)
    assert len(queue) == 4
    assert [queue.take(), queue.take(), queue.take()] == ["a", "b", None]
    clock.now += 2
    assert [queue.take(), queue.take()] == ["c", None]
    clock.now += 3
    assert [queue.take(), queue.take(), len(queue)] == ["later", None, 0]


def test_an_item_that_is_worked_on_comes_again_when_it_is_finished() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a", 5)
    queue.add("a")
    assert queue.take() is None
    queue.finish("a")
    assert queue.take() == "a"
    queue.finish("a")
    assert (queue.take(), len(queue)) == (None, 0)


def test_failures_wait_longer_and_longer() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    delays = [queue.failed("a") for _ in range(20)]
    queue.finish("a")
    assert delays[:4] == [0.01, 0.02, 0.04, 0.08]
    assert delays[-1] == MAX_DELAY
    clock.now += 0.01
    assert queue.take() == "a"
    assert queue.failed("a") == MAX_DELAY
    queue.finish("a")
    # A change lets it be tried sooner, but not at once.
    queue.add("a")
    assert queue.take() is None
    clock.now += CHANGED_DELAY
    assert queue.take() == "a"
    queue.succeeded("a")
    queue.finish("a")
    queue.add("a")
    assert queue.take() == "a"
    assert queue.failed("a") == 0.01


def test_who_waits_gets_the_next_item() -> None:
    async def within() -> list[object]:
        queue = WorkQueue()
        queue.add("slow", 3600)
        waiting = asyncio.ensure_future(queue.next())
        await asyncio.sleep(0)
        queue.add("fast")
        found: list[object] = [await waiting]
        queue.add("soon", 0.001)
        found.append(await queue.next())
        return found

    assert asyncio.run(within()) == ["fast", "soon"]
