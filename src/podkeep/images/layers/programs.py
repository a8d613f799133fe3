"""podkeep's own helper processes for images: their command lines, and how they ended."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import podkeep

_WHY = {
    signal.SIGSYS: "it made a system call that its filter does not know what to do with (seccomp)",
    signal.SIGKILL: "the machine may have run out of memory, or its pull was given up",
}


def command(module: str) -> list[str]:
    """Return the command line that runs ``module`` in a fresh interpreter with this one's import path.

    ``-I -S`` leaves out the site directories' start-up work, which costs more than most of what a worker imports.
    """
    root = str(Path(podkeep.__file__).resolve().parents[1])
    paths = [root, *(path for path in sys.path if path and path != root)]
    # Nothing that is imported becomes garbage: looking for it takes as long as a few imports.
    boot = (
        f"import gc, sys; gc.disable(); sys.path[:] = {paths!r}; from {module} import main; gc.freeze(); gc.enable();"
        " main()"
    )
    return [sys.executable, "-I", "-S", "-c", boot]


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
