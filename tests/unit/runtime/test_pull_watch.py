"""Progress of pulls: every watcher gets what it asked for, and a slow one holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from podkeep.images.image import PullProgress
from podkeep.runtime.pull_watch import PullWatch


def step(image: str, done: int = 0) -> PullProgress:
    return PullProgress(image=image, digest="sha256:0", phase="downloading", done=done, total=100)


async def begin(watch: PullWatch, image: str) -> tuple[AsyncIterator[PullProgress], asyncio.Task[PullProgress]]:
    """Start to follow; when this returns, the watcher waits for its first step."""
    steps = watch.follow(image)
    first = asyncio.ensure_future(anext(steps))
    await asyncio.sleep(0)
    return steps, first


def test_every_watcher_gets_the_image_it_asked_for() -> None:
    async def main() -> None:
        watch = PullWatch()
        watch.publish(step("nobody:watches"))
        (one, first_of_one), (everything, first_of_all) = await begin(watch, "a"), await begin(watch, "")
        for item in (step("b", 1), step("a", 2), step("a", 3)):
            watch.publish(item)
        assert [await first_of_one, await anext(one)] == [step("a", 2), step("a", 3)]
        seen = [await first_of_all, await anext(everything), await anext(everything)]
        assert seen == [step("b", 1), step("a", 2), step("a", 3)]

    asyncio.run(main())


def test_a_slow_watcher_misses_steps_and_holds_up_nobody() -> None:
    async def main() -> None:
        watch = PullWatch()
        slow, first = await begin(watch, "")
        for number in range(1000):
            watch.publish(step("a", number))
        assert await first == step("a", 0)
        seen = [await anext(slow) for _ in range(255)]
        assert [item.done for item in seen] == list(range(1, 256))
        watch.publish(step("a", 5000))
        assert (await anext(slow)).done == 5000

    asyncio.run(main())


def test_a_watcher_that_stops_is_forgotten() -> None:
    async def main() -> None:
        watch = PullWatch()
        steps, first = await begin(watch, "")
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(StopAsyncIteration):
            await anext(steps)
        assert watch._watchers == set()
        watch.publish(step("a"))

    asyncio.run(main())
