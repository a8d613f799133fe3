"""The command line that /proc shows of this process (``ps``, ``pgrep -f``)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from podkeep.kernel.tables import read_text

_ARG_START, _ARG_END = 48, 49
"""Fields of /proc/self/stat, counted from 1 (proc_pid_stat(5))."""


def show(argv: Sequence[str]) -> None:
    """Show ``argv`` instead of what this process was started with; of a longer one, as much as that takes.

    Where /proc does not tell where the command line is, nothing changes.
    """
    # The name in parentheses is the second field, and may contain anything.
    fields = read_text("/proc/self/stat").rpartition(") ")[2].split()
    start, end = int(fields[_ARG_START - 3]), int(fields[_ARG_END - 3])
    if not 0 < start < end:
        return
    text = b"".join(argument.encode(errors="surrogateescape") + b"\0" for argument in argv)
    room = end - start
    # A last byte that is not null would have the kernel read on in the environment behind it.
    ctypes.memmove(start, text[: room - 1].ljust(room, b"\0"), room)
