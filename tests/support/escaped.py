"""A process that has escaped from a container: its user namespace and IDs, with a descriptor of the machine's ``/``.

Known escapes end like that (a descriptor that leaked into a container, a runtime's program that was taken over). What
such a process may do is decided by the kernel from its IDs on the machine alone, so that a test needs no hole.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.timeout import TIMEOUT_S

DONE = "done"
PROGRAMS = Path(__file__).parent / "programs"
"""Where programs are that run inside of containers."""


def escaped(pid: int, action: str, target: Path | int | str = "", *, uid: int = 0) -> str:
    """Return how an action of the escaped process ends: ``done``, or the name of the error.

    :param pid: a process of the container, on the machine.
    :param action: a method of ``programs/escaped.py``.
    :param target: a path of the machine, a process or the name of an abstract socket.
    :param uid: its user and group inside the container.
    """
    command = [sys.executable, PROGRAMS / "escaped.py", str(pid), str(uid), action, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
