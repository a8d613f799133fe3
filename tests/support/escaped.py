"""A process that has escaped from a container: its user namespace and IDs, with a descriptor of the machine's ``/``.

Known escapes end like that (a descriptor that leaked into a container, a runtime's program that was taken over). What
such a process may do is decided by the kernel from its IDs on the machine alone, so that a test needs no hole.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.waiting import TIMEOUT_S

DONE = "done"
PROGRAMS = Path(__file__).parent / "programs"
"""Where programs are that run inside of containers."""


Deed = tuple[int, str, str]
"""A user and group inside the container, a method of ``programs/escaped.py``, and a path of the machine, a process or
the name of an abstract socket."""


def all_escaped(pid: int, deeds: Sequence[Deed]) -> list[str]:
    """Return how each deed ends, done by an escaped process of its own: ``done``, or the name of the error.

    :param pid: a process of the container, on the machine.
    """
    command = [sys.executable, PROGRAMS / "escaped.py", str(pid)]
    done = subprocess.run(
        command, input=json.dumps(deeds), capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    ended: list[str] = json.loads(done.stdout)
    return ended


def escaped(pid: int, action: str, target: Path | int | str = "", *, uid: int = 0) -> str:
    """Return how one deed ends."""
    return all_escaped(pid, [(uid, action, str(target))])[0]
