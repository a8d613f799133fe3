"""Threads are shared: steps of one owner that hang keep out nobody else's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from podkeep.base.concurrency.threads import SharedThreads, working_for

TIMEOUT_S = 30.0


def test_steps_that_hang_for_one_leave_threads_for_others() -> None:
    release, hanging = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        hanging.release()
        release.wait(TIMEOUT_S)

    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(SharedThreads(8, share=3, name="test"))
        with working_for("hostile"):
            hung = [asyncio.create_task(asyncio.to_thread(hang)) for _ in range(100)]
        async with asyncio.timeout(TIMEOUT_S):
            # Its share runs, and not more: the others wait behind it.
            await asyncio.gather(*(asyncio.to_thread(hanging.acquire) for _ in range(3)))
            for owner in ("one", "other", None):
                with working_for(owner):
                    assert await asyncio.to_thread(lambda owner=owner: owner) == owner
            assert not hanging.acquire(blocking=False)
            release.set()
            await asyncio.gather(*hung)

    try:
        asyncio.run(scenario())
    finally:
        release.set()


def test_every_step_runs_once_whoever_comes_when() -> None:
    done: list[tuple[int, int]] = []

    def ask(pool: SharedThreads, owner: int) -> None:
        with working_for(owner):
            futures = [pool.submit(done.append, (owner, number)) for number in range(500)]
        for future in futures:
            future.result(TIMEOUT_S)

    with SharedThreads(4, share=2, name="test") as pool, ThreadPoolExecutor(8) as callers:
        list(callers.map(lambda owner: ask(pool, owner % 4), range(8)))
    # Once its threads have ended: a step is done before the thread that ran it looks for the next one.
    assert not pool._busy
    assert not pool._queues
    assert len(done) == 8 * 500
    assert len(set(done)) == 4 * 500


def test_a_step_that_fails_fails_for_who_waits() -> None:
    with SharedThreads(1, share=1, name="test") as pool:
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result(TIMEOUT_S)
        assert pool.submit(lambda: 1).result(TIMEOUT_S) == 1


def test_a_step_that_is_cancelled_while_it_waits_does_not_run() -> None:
    release, ran = threading.Event(), []
    with SharedThreads(4, share=1, name="test") as pool:
        first = pool.submit(release.wait, TIMEOUT_S)
        second, third = pool.submit(ran.append, 2), pool.submit(ran.append, 3)
        assert second.cancel()
        release.set()
        third.result(TIMEOUT_S)
    assert first.done()
    assert ran == [3]


@contextmanager
def no_more_threads() -> Iterator[None]:
    """Have no thread start, as where no process ID is left: its stack would be more than there are addresses."""
    before = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(before)


def test_a_step_for_which_no_thread_can_start_runs_on_one_that_is_there() -> None:
    release, done = threading.Event(), []
    with SharedThreads(4, share=2, name="test") as pool:
        busy = pool.submit(release.wait, TIMEOUT_S)
        with no_more_threads():
            later = [pool.submit(done.append, number) for number in range(3)]
        release.set()
        for future in (busy, *later):
            future.result(TIMEOUT_S)
        assert sorted(done) == [0, 1, 2]
    # What it counts of its owner's share was given back once.
    assert not pool._busy


def test_a_step_that_failed_because_there_is_no_thread_does_not_run_later() -> None:
    done: list[str] = []
    with SharedThreads(4, share=2, name="test") as pool:
        with no_more_threads(), pytest.raises(RuntimeError, match="can't start new thread"):
            pool.submit(done.append, "told as failed")
        pool.submit(done.append, "next").result(TIMEOUT_S)
        assert done == ["next"]
    assert not pool._busy
