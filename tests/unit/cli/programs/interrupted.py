"""Is interrupted (SIGINT) where it hurts.

interrupted.py collected: and again while Python collects an object. interrupted.py threads: when it is done, but a
thread of it is not. interrupted.py blocked: while it writes what nobody reads.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

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


async def blocked() -> None:
    main, stop = threading.main_thread().ident, threading.Event()
    assert main is not None

    def twice() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        stop.wait(4 * interruptible.STUCK_S)
        signal.pthread_kill(main, signal.SIGINT)

    _, write = os.pipe()
    threading.Thread(target=twice, daemon=True).start()
    while True:
        os.write(write, bytes(1 << 16))


VERBS = {"collected": collected, "threads": threads, "blocked": blocked}
try:
    interruptible.run(VERBS[sys.argv[1]]())
except KeyboardInterrupt:
    sys.exit(EXIT_INTERRUPTED)
