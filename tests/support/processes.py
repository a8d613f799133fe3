"""Processes found by a piece of their command line, whoever runs them, and whose they are: for tests, which know what
they started.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import NotFound
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId


def find_by_argument(text: str) -> list[ProcessId]:
    """Return the processes, except this one, with ``text`` in their command line (arguments separated by NUL)."""
    wanted = os.fsencode(text)
    found = []
    # Every test of a daemon looks before and after it: an object for each process of the machine would cost more.
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid() and wanted in _command_line(name):
            with suppress(NotFound):  # it ended meanwhile
                found.append(procfs.identify(int(name)))
    return found


def has_argument(process: ProcessId, text: str) -> bool:
    """Return whether a process that was found runs, with ``text`` in its command line."""
    return os.fsencode(text) in _command_line(str(process.pid)) and procfs.alive(process)


def _command_line(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:  # it ended meanwhile
        return b""


def owner(pid: int) -> int:
    """Return the user that a process is on the machine."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:"))
    (uid,) = set(line.split()[1:])
    return int(uid)
