"""Background tasks with an owner: who started them, who ends them, and who says so when one fails.

The exception of a task without a waiter is lost: asyncio reports it when the object is collected, or never. An owner
keeps its tasks, cancels and awaits them when it ends, and logs the failure of any of them where it happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from contextlib import nullcontext
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from podkeep.base.concurrency.threads import working_for

AGAIN_S = 5.0
"""After which what failed unexpectedly is run again."""

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


async def finished(work: asyncio.Future[Any]) -> None:
    """Wait for what must not be left half done, also if the waiting task is cancelled: that is raised afterwards.

    What ``work`` raises stays with it.
    """
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            # wait() leaves the work alone if the waiting task is cancelled, where `await work` would cancel it.
            await asyncio.wait({work})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            del cancelled  # or it and this frame would refer to each other


async def on_thread(step: Callable[[], _Result], *, owner: Hashable = None) -> _Result:
    """Return what a short blocking step returns, done on a thread.

    A caller that is cancelled waits for its end: what it uses may be closed then.

    :param owner: whose threads it is done on; None: of whom the caller works for.
    """
    with nullcontext() if owner is None else working_for(owner):
        return await to_its_end(asyncio.to_thread(step))


async def to_its_end(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return what ``work`` does; a caller that is cancelled waits for its end."""
    running = _seen(asyncio.ensure_future(work))
    await finished(running)
    return running.result()


async def acquired(step: Callable[[], _Result], undo: Callable[[_Result], object]) -> _Result:
    """Return what a step on a thread acquires; if the caller is cancelled meanwhile, it is given back by ``undo``.

    Both are done on a thread, to their end.
    """
    work = _seen(asyncio.ensure_future(asyncio.to_thread(step)))
    try:
        await finished(work)
    except asyncio.CancelledError:
        if not work.cancelled() and work.exception() is None:
            await on_thread(partial(undo, work.result()))
        raise
    return work.result()


def _seen(work: asyncio.Future[_Result]) -> asyncio.Future[_Result]:
    # Of a caller that is cancelled nobody asks how it ended.
    work.add_done_callback(lambda done: done.cancelled() or done.exception())
    return work


async def ungrouped(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return what ``work`` does, which is a TaskGroup and nothing more; where it fails, raise its first error alone.

    An error refers to the frames that it came through, and these to what they were passing on, some 100 KB of a
    stream. It must refer to no frame that leads back to it: one that handles its group, or has a task of the group in a
    variable. Such a cycle stays until Python looks for cycles, which after a thousand streams that broke may be never.
    """
    failed = []
    try:
        return await work
    except BaseExceptionGroup as errors:
        # Until Python 3.13 the frame of a TaskGroup has the group in a variable.
        errors.__traceback__ = None
        failed.append(errors.exceptions[0])
    raise failed.pop()


class Tasks:
    """The background tasks of one owner; ``what`` names them in the log. As a context manager it ends with them."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in the background. What it raises is unexpected by definition, and logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(self, run: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Have in the background what is to go on: if it fails unexpectedly, that is logged, and it is run again."""
        return self.start(self._kept(run))

    async def _kept(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                return await run()
            except Exception:  # their supervisor: without one of its loops a daemon would look alive, and not be
                log.exception("%s failed unexpectedly; it is tried again", self._what)
            await asyncio.sleep(AGAIN_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed unexpectedly", self._what, exc_info=error)

    async def close(self) -> None:
        """Cancel all of them and wait until they have ended."""
        # Again, until there are none: a task may start another one while it ends.
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    async def __aenter__(self) -> Tasks:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
