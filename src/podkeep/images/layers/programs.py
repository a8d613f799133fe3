"""How podkeep's own helper processes for images ended."""

from __future__ import annotations

import signal

_WHY = {
    signal.SIGSYS: "it made a system call that its filter does not know what to do with (seccomp)",
    signal.SIGKILL: "the machine may have run out of memory, or its pull was given up",
}


def ended(status: int) -> str:
    """Return how a process ended that said nothing.

    :param status: as ``subprocess`` gives it: negative for a signal.
    """
    if status >= 0:
        return f"ended with status {status} and no result"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"was killed by signal {-status}"
    why = f": {_WHY[number]}" if number in _WHY else ""
    return f"was killed by {number.name}{why}"
