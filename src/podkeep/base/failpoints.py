"""Named points at which a test makes a real process fail.

``PODKEEP_FAILPOINTS`` holds ``name=action`` pairs separated by commas; actions: ``kill`` (SIGKILL to this process),
``error`` (raise Internal), ``stop`` (SIGSTOP to this process, so that a test can look around), ``time`` (write the time
to standard error, so that a benchmark can tell steps apart), ``open:PATH`` (open a named pipe for reading, which holds
this thread until the test opens it for writing). It is read where a failpoint is reached, because daemons can be copies
of a process that has imported this (``forks.py``). Unset, that costs one dictionary look-up.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time

from podkeep.base.errors import Internal

_VARIABLE = "PODKEEP_FAILPOINTS"


@functools.cache
def _parse(text: str) -> dict[str, str]:
    pairs = (item.partition("=") for item in text.split(",") if item)
    return {name.strip(): action.strip() for name, _, action in pairs}


def reach(name: str) -> None:
    """Mark that execution reached the failpoint ``name`` and do what the environment asks for there."""
    text = os.environ.get(_VARIABLE)
    action = None if text is None else _parse(text).get(name)
    if action is None:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "time":
        print(f"failpoint {name} {time.monotonic_ns()}", file=sys.stderr, flush=True)
    elif action.startswith("open:"):
        os.close(os.open(action.removeprefix("open:"), os.O_RDONLY | os.O_CLOEXEC))
    elif action == "error":
        raise Internal(f"failpoint {name} reached")
