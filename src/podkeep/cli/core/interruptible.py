"""Runs what a verb does until it is done or interrupted. It needs an event loop, 4 MiB: import it when it is used."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from podkeep.cli.core.output import EXIT_INTERRUPTED

Result = TypeVar("Result")
STUCK_S = 0.5
"""For so long the event loop does not look at a signal only if something keeps it, as a write to a full pipe does."""


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Return what ``work`` returns. SIGINT cancels it, another one what it does in its end; then it ends the process.

    asyncio's own handler raises KeyboardInterrupt for the second wherever the interpreter is at that moment: Python
    prints it with a traceback if that is in a destructor. Here that is only for what keeps the event loop.

    :raises KeyboardInterrupt: if it was interrupted, or cancelled itself.
    """
    since: float | None = None  # when the first came that the loop has not looked at

    def came(*_: object) -> None:
        nonlocal since
        now = time.monotonic()
        if since is None:
            since = now
        elif now - since >= STUCK_S:
            raise KeyboardInterrupt

    def interrupt(task: asyncio.Task[object]) -> None:
        nonlocal since
        since = None
        if not task.cancel():  # it is done, and a terminal is as it was: what is waited for is threads
            os._exit(EXIT_INTERRUPTED)

    async def interruptible() -> Result:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt, task)
        # Beside that: a handler of Python's is called also while the loop is kept from calling its own.
        signal.signal(signal.SIGINT, came)
        return await work

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
