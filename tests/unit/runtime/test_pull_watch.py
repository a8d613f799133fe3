"""Progress of pulls: every watcher gets what it asked for, and a slow one holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from podkeep.images.formats.image import PullProgress
from podkeep.runtime.rpc.pull_watch import PullWatch


def step(image: str, done: int = 0, *, blob: int = 0, phase: str = "downloading") -> PullProgress:
    return PullProgress(image=image, digest=f"sha256:{blob}", phase=phase, done=done, total=100)


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
        for item in (step("b", 1), step("a", 2), step("a", 3, blob=1)):
            watch.publish(item)
        assert [await first_of_one, await anext(one)] == [step("a", 2), step("a", 3, blob=1)]
        seen = [await first_of_all, await anext(everything), await anext(everything)]
        assert seen == [step("b", 1), step("a", 2), step("a", 3, blob=1)]

    asyncio.run(main())


def test_a_slow_watcher_gets_the_last_step_of_each_phase_of_a_blob_and_holds_up_nobody() -> None:
    async def main() -> None:
        watch = PullWatch()
        slow, first = await begin(watch, "")
        for number in range(100_000):
            watch.publish(step("a", number, blob=number % 2))
        watch.publish(step("a", 100, phase="done"))
        assert await first == step("a", 99_998)
        assert [await anext(slow), await anext(slow)] == [step("a", 99_999, blob=1), step("a", 100, phase="done")]
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
