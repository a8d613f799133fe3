"""Files of FUSE in a container, in the place of its /dev/ptmx or as memory, served by a process that answers when it
wants to.

The process is one of ours that enters the container's user and mount namespaces, as one in the container with every
capability could be. In the place of /dev/ptmx it says that it is a terminal which the container has, so that an OCI
runtime takes it for one.
Ending the process ends the file system, and whoever waits for its answer goes on.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

HELD = "held"
"""What is printed when somebody is left waiting: who closes the file from outside of the container's user namespace, or
who uses the memory."""
_PROGRAM = Path(__file__).with_name("programs") / "fuse_server.py"


@contextmanager
def instead_of_terminals(pid: int) -> Iterator[IO[str]]:
    """Mount it in a container, of which ``pid`` is a process; yield what the server prints. Ends it afterwards."""
    with _served(pid, "instead") as said:
        yield said


@contextmanager
def holding_a_terminal(pid: int, how: str) -> Iterator[None]:
    """Have a process of a container, of which ``pid`` is another, hold a lock of the container's first terminal.

    :param how: ``write``: it writes, from memory of a file of FUSE; ``size``: it asks for the size, into such memory.
    """
    with _served(pid, how) as said:
        assert said.readline() == f"{HELD}\n", "nobody waits"
        yield


@contextmanager
def _served(pid: int, how: str) -> Iterator[IO[str]]:
    command = [sys.executable, "-I", str(_PROGRAM), str(pid), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "mounted\n"
            yield process.stdout
        finally:
            process.kill()
