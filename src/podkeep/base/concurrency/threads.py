"""The threads of blocking steps, with a share for each of those that steps are done for.

A step may hang: on a slow disk, a file of a pod's that is none, a program that does not answer. With one pool for all,
as many such steps as there are threads stop everything. Here what runs for one owner (a pod) takes no more threads than
its share; what is above that waits behind its owner's own steps, and nobody else's.

Used as an event loop's default executor: ``asyncio.to_thread`` hands a step over in the context of who asks, and the
context says for whom (:func:`working_for`).
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from podkeep.base.concurrency import structs

_owner: ContextVar[Hashable] = ContextVar("podkeep_owner", default=None)


@contextmanager
def working_for(owner: Hashable) -> Iterator[None]:
    """Count the steps of the calling task, and of what it starts meanwhile, as those of ``owner``."""
    token = _owner.set(owner)
    try:
        yield
    finally:
        _owner.reset(token)


class SharedThreads(ThreadPoolExecutor):
    """``threads`` at most, and ``share`` of them for one owner; what has none is one owner, too.

    Made before there are others: from then on threads may decode any class of messages that is there by now.
    """

    def __init__(self, threads: int, *, share: int, name: str) -> None:
        structs.complete()
        super().__init__(threads, thread_name_prefix=name)
        self._share = share
        self._changing = threading.Lock()
        self._busy: Counter[Hashable] = Counter()
        self._queues: defaultdict[Hashable, deque[Callable[[], None]]] = defaultdict(deque)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a step on a thread, now or after others of its owner."""
        owner = _owner.get()
        future: Future[Any] = Future()
        step = partial(_run, future, partial(fn, *args, **kwargs))
        with self._changing:
            if self._busy[owner] >= self._share:
                self._queues[owner].append(step)
                return future
            self._busy[owner] += 1
        try:
            super().submit(self._work, owner, step)
        except RuntimeError:
            if self._shutdown:
                with self._changing:
                    self._release(owner)
                raise
            # No thread could be started, as the machine has no more processes. The step is in the pool's queue by now:
            # a thread that is there takes it, or the next one, which must not run what was told as failed.
            if not self._threads:
                future.cancel()
                raise
        return future

    def _work(self, owner: Hashable, step: Callable[[], None] | None) -> None:
        # The thread goes on with its owner's next step, so that a share is never counted twice.
        while step is not None:
            step()
            step = self._next(owner)

    def _next(self, owner: Hashable) -> Callable[[], None] | None:
        """Return the next step of an owner; None if there is none, and then the thread is not its any more."""
        with self._changing:
            queue = self._queues.get(owner)
            if not queue:
                self._release(owner)
                return None
            step = queue.popleft()
            if not queue:
                # Owners are pods, which come and go: nothing of one may stay.
                del self._queues[owner]
            return step

    def _release(self, owner: Hashable) -> None:
        self._busy[owner] -= 1
        if not self._busy[owner]:
            del self._busy[owner]


def _run(future: Future[Any], step: Callable[[], Any]) -> None:
    # The waiting task was cancelled before its turn came.
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = step()
    except BaseException as error:  # noqa: BLE001 - it is the waiting task's
        future.set_exception(error)
    else:
        future.set_result(result)
