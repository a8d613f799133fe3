"""Is interrupted (SIGINT) where it hurts.

interrupted.py collected: and again while Python collects an object. interrupted.py threads: when it is done, but a
thread of it is not.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from podkeep.cli.core import interruptible
from podkeep.cli.core.output import EXIT_INTERRUPTED


class Held:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


async def collected() -> None:
    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
    try:
        await asyncio.Event().wait()
    finally:
        Held()
        await asyncio.Event().wait()


async def threads() -> None:
    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, os.read, os.pipe()[0], 1)
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(lambda _: signal.raise_signal(signal.SIGINT))


try:
    interruptible.run({"collected": collected, "threads": threads}[sys.argv[1]]())
except KeyboardInterrupt:
    sys.exit(EXIT_INTERRUPTED)
