"""Processes found by a piece of their command line, whoever runs them: for tests, which know what they started."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import NotFound
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId


def find_by_argument(text: str) -> list[ProcessId]:
    """Return the processes, except this one, with ``text`` in their command line (arguments separated by NUL)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError, NotFound):  # it ended meanwhile
                if os.fsencode(text) in procfs.command_line(entry):
                    found.append(procfs.identify(int(entry.name)))
    return found
