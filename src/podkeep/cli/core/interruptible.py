"""Runs what a verb does until it is done or interrupted. It needs an event loop, 4 MiB: import it when it is used."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from podkeep.cli.core.output import EXIT_INTERRUPTED

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Return what ``work`` returns. SIGINT cancels it, another one what it does in its end; then it ends the process.

    asyncio's own handler raises KeyboardInterrupt for the second wherever the interpreter is at that moment: Python
    prints it with a traceback if that is in a destructor.

    :raises KeyboardInterrupt: if it was interrupted, or cancelled itself.
    """

    def interrupt(task: asyncio.Task[object]) -> None:
        if not task.cancel():  # it is done, and a terminal is as it was: what is waited for is threads
            os._exit(EXIT_INTERRUPTED)

    async def interruptible() -> Result:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt, task)
        return await work

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
