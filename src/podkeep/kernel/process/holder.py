"""A program that stops what a process starts with a terminal, before its first instruction, until it is killed itself.

It is run by its path, and so imports nothing of podkeep. Its standard input is a socket: the process's ID comes from
there, and a byte goes back once it traces that and all that it will start; none where it may not trace, and it ends.
Whoever is stopped goes on when this program ends (ptrace(2)), at the latest after :data:`LONGEST_S`. Run by
``runtime/oci/exec.py``.
"""

from __future__ import annotations

import ctypes
import os

LONGEST_S = 2
"""How long a command is stopped at most: what it is stopped for takes a few milliseconds."""
UNUSED_S = 40
"""How long it waits for a command at most; longer than the caller does, which may have been killed."""
_SIGALRM = 14
_DEFAULT = 0
"""SIG_DFL. The module ``signal`` is not imported: it takes a third of the time until this is ready."""
_CONT = 7
_SEIZE = 0x4206
_OPTIONS = 0x1E
"""PTRACE_O_TRACEFORK, TRACEVFORK, TRACECLONE and TRACEEXEC."""
_EVENT_EXEC = 4
_WALL = 0x40000000
_CAP_SYS_PTRACE = 19


def main() -> None:
    """Trace a process; see the module."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = ctypes.c_int, ctypes.c_void_p
    libc.signal.restype = ctypes.c_void_p
    libc.signal(_SIGALRM, _DEFAULT)  # whoever started the caller may have had it ignored
    libc.alarm(UNUSED_S)
    ptrace = libc["ptrace"]
    ptrace.argtypes = (ctypes.c_long,) * 4
    pid = int(os.read(0, 32) or b"0")
    if pid == 0 or not _privileged() or _confined() or ptrace(_SEIZE, pid, 0, _OPTIONS) != 0:
        return
    os.write(0, b"s")
    while True:
        try:
            stopped, status = os.waitpid(-1, _WALL)
        except ChildProcessError:
            return
        if not os.WIFSTOPPED(status):
            continue
        event = status >> 16
        if event == _EVENT_EXEC and _has_terminal(stopped):
            libc.alarm(LONGEST_S)
        else:
            ptrace(_CONT, stopped, 0, 0 if event else os.WSTOPSIG(status))


def _privileged() -> bool:
    """Say whether it has CAP_SYS_PTRACE: a process's like may trace it without, but it gets no rights of a file then.

    The kernel would pass over the set-user-ID bit and the capabilities of the command's file (execve(2)).
    """
    try:
        with open("/proc/self/status", "rb") as status:  # noqa: PTH123 - pathlib takes longer to load
            return bool(int(status.read().partition(b"CapEff:")[2].split()[0], 16) >> _CAP_SYS_PTRACE & 1)
    except OSError:
        return False


def _confined() -> bool:
    """Say whether a security module may forbid a traced process to become what its policy wants: it would not run."""
    try:
        with open("/proc/self/attr/current", "rb") as label:  # noqa: PTH123 - as above
            return label.read().strip(b"\n\0") not in (b"", b"unconfined")
    except OSError:
        return False


def _has_terminal(pid: int) -> bool:
    """Say whether a process has a controlling terminal (proc_pid_stat(5), ``tty_nr``)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123 - as above
            return stat.read().rpartition(b") ")[2].split()[4] != b"0"
    except OSError:
        return False  # it was killed


if __name__ == "__main__":
    main()
