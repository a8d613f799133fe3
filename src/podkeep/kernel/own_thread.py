"""A thread for one call that changes what belongs to its thread, such as a namespace or a session keyring."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def run(name: str, function: Callable[[], Result]) -> Result:
    """Return the result of ``function``, called on a thread that ends with it; its errors are raised here."""
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # noqa: BLE001 - carried to the calling thread and raised there
            failure.append(error)

    # A new thread each time: one of a pool would be left with what is not the daemon's.
    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    thread.join()
    # join() returns a moment before the kernel has forgotten the thread, and a process that has one can do less.
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        os.sched_yield()
    if failure:
        raise failure[0]
    return outcome[0]
