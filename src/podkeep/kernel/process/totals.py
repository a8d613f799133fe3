"""What /proc says of the machine as a whole: memory, processes, the most there may be (proc(5)). Blocking."""

from __future__ import annotations

from pathlib import Path

from podkeep.base.errors import Internal
from podkeep.kernel.tables import lines, read_text

PROC = Path("/proc")


def memory(proc: Path = PROC) -> dict[str, int]:
    """Return /proc/meminfo in bytes (numbers without a unit as they are), by the kernel's names.

    :raises Internal: if it cannot be read.
    """
    return table(text(proc / "meminfo"))


def table(content: str) -> dict[str, int]:
    """Return names and numbers of lines like ``MemFree:  300 kB``, those in kB as bytes."""
    found = {}
    for line in lines(content):
        name, number, *unit = line.split()
        found[name.rstrip(":")] = int(number) * (1024 if unit == ["kB"] else 1)
    return found


def tasks(proc: Path = PROC) -> int:
    """Return how many processes and threads there are.

    :raises Internal: if that cannot be read.
    """
    return int(text(proc / "loadavg").split()[3].partition("/")[2])


def max_tasks(proc: Path = PROC) -> int:
    """Return how many processes and threads there may be.

    :raises Internal: if that cannot be read.
    """
    return min(int(text(proc / "sys/kernel" / name)) for name in ("pid_max", "threads-max"))


def text(path: Path) -> str:
    """Return what a file of the kernel says.

    :raises Internal: if it cannot be read.
    """
    try:
        return read_text(path)
    except OSError as error:
        raise Internal(f"{path} cannot be read: {error.strerror}") from error
