"""Turning this process into another program: no shell, no process in between. Used by ``podkeep mountns``.

Owns: that the program finds signals and environment as if podkeep had not been there, and the exit statuses of env(1)
when it cannot be started.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Never

from podkeep.cli.output import echo_line

CANNOT_RUN = 126
"""Exit status of env(1) when a program was found and cannot be run."""
NOT_FOUND = 127
"""Exit status of env(1) when there is no such program."""

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def become(argv: Sequence[str]) -> Never:
    """Run ``argv`` in this process's place, looked for in ``PATH``; end with 127 or 126 if that cannot be.

    Process ID, standard streams, working directory and limits are the program's as they are.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it was closed before this process began
            stream.flush()
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], list(argv), _environment())
    except FileNotFoundError:
        echo_line(f"podkeep: {argv[0]}: no such program, or what runs it is missing", err=True)
        sys.exit(NOT_FOUND)
    except OSError as error:
        echo_line(f"podkeep: {argv[0]}: cannot be run: {error.strerror}", err=True)
        sys.exit(CANNOT_RUN)


def _environment() -> dict[bytes, bytes]:
    """Return the environment that this process was given: Python may have added LC_CTYPE to it (PEP 538)."""
    given = {
        name for name, _, _ in (item.partition(b"=") for item in Path("/proc/self/environ").read_bytes().split(b"\0"))
    }
    return {name: value for name, value in os.environb.items() if name != b"LC_CTYPE" or name in given}
