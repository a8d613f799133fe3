"""Processes of tests: scripts to start, and what runs, found by a piece of its command line or by its parent."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import NotFound
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId
from podkeep.kernel.tables import read_text


def write_script(path: Path, text: str) -> Path:
    """Write an executable script; text without ``#!`` is for the shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def find_by_argument(text: str) -> list[ProcessId]:
    """Return the processes, except this one, with ``text`` in their command line (arguments separated by NUL)."""
    wanted = os.fsencode(text)
    found = []
    # Every test of a daemon looks before and after it: an object for each process of the machine would cost more.
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid() and wanted in command_line(int(name)):
            with suppress(NotFound):  # it ended meanwhile
                found.append(procfs.identify(int(name)))
    return found


def has_argument(process: ProcessId, text: str) -> bool:
    """Return whether a process that was found runs, with ``text`` in its command line."""
    return os.fsencode(text) in command_line(process.pid) and procfs.alive(process)


def command_line(pid: int) -> bytes:
    """Return the arguments of a process, each followed by NUL; nothing if it has ended."""
    try:
        return os.fsencode(read_text(f"/proc/{pid}/cmdline"))
    except OSError:
        return b""


def children(pid: int) -> set[int]:
    """Return the process IDs of the children of all threads of a process; some may have ended by now."""
    found: set[int] = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            found.update(map(int, read_text(f"/proc/{pid}/task/{task}/children").split()))
    return found


def namespace_helper(daemon: int) -> ProcessId:
    """Return the process that makes namespaces for the daemon of a runtime."""
    (helper,) = [pid for pid in children(daemon) if b"nshelper" in command_line(pid)]
    return procfs.identify(helper)


def owner(pid: int) -> int:
    """Return the user that a process is on the machine."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:"))
    (uid,) = set(line.split()[1:])
    return int(uid)
