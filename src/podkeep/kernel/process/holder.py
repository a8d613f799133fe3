"""A program that stops what a process starts, before its first instruction.

It is run by its path, and so imports nothing of podkeep. Its standard input is a socket. From there come the process's
ID and words for what is wanted, with spaces between them; ``s`` goes back once it traces that process and all that it
will start; nothing where it may not trace, and it ends.

``hold``: what has a terminal is stopped until this program is killed, at the latest after :data:`LONGEST_S`.

``check``: the first process that is about to execute a program in another mount namespace than this one's is killed if
its working directory is not in that (``x`` goes back), and goes on else (``o``, once its program has started). Until
then all that is traced ends with this program, whoever kills that.

That is before execve(2) and not after it: what executes a container's program is closed to the container's processes
(PR_SET_DUMPABLE), and the program is open to those of its user: until it is killed, they would get at its working
directory by /proc/PID/cwd.

Whoever is held goes on when this program ends (ptrace(2)). Run by ``runtime/oci/exec.py``.
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST_S = 2
"""How long a command is stopped at most: what it is stopped for takes a few milliseconds."""
UNUSED_S = 40
"""How long it waits for a command at most; longer than the caller does, which may have been killed."""
_SIGALRM = 14
_SIGKILL = 9
_DEFAULT = 0
"""SIG_DFL. The module ``signal`` is not imported: it takes a third of the time until this is ready."""
_CONT = 7
_TO_SYSCALL = 24
"""PTRACE_SYSCALL: as PTRACE_CONT, and it stops before and after its next system call."""
_SEIZE = 0x4206
_SETOPTIONS = 0x4200
_INTERRUPT = 0x4207
_GET_SYSCALL_INFO = 0x420E
_INFO_BYTES = 32
"""Of ``struct ptrace_syscall_info``: what it is about in the first byte, and the call's number from the 24th on."""
_ENTRY = 1
_AT_SYSCALL = 5 | 0x80
"""SIGTRAP, as PTRACE_O_TRACESYSGOOD marks a stop at a system call."""
_EXECUTING = {
    "aarch64": (221, 281),
    "ppc64le": (11, 362),
    "riscv64": (221, 281),
    "s390x": (11, 354),
    "x86_64": (59, 322),
}
"""Numbers of execve(2) and execveat(2)."""
_OPTIONS = 0x1F
"""PTRACE_O_TRACESYSGOOD, TRACEFORK, TRACEVFORK, TRACECLONE and TRACEEXEC."""
_EXITKILL = 0x100000
"""PTRACE_O_EXITKILL: what is traced is killed when this program ends."""
_EVENT_EXEC = 4
_WALL = 0x40000000
_CAP_SYS_PTRACE = 19


def main() -> None:
    """Trace a process; see the module."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = ctypes.c_int, ctypes.c_void_p
    libc.signal.restype = ctypes.c_void_p
    libc.signal(_SIGALRM, _DEFAULT)  # whoever started the caller may have had it ignored
    ptrace = libc["ptrace"]
    ptrace.argtypes = (ctypes.c_long,) * 4
    pid_text, _, wanted = os.read(0, 64).partition(b" ")
    pid, checks, holds = int(pid_text or b"0"), b"check" in wanted, b"hold" in wanted
    if not checks:  # what is to be checked is waited for as long as it may come
        libc.alarm(UNUSED_S)
    if pid == 0 or not (checks or holds) or not _privileged() or _confined():
        return
    if ptrace(_SEIZE, pid, 0, _OPTIONS | _EXITKILL * checks) != 0:
        return
    os.write(0, b"s")
    numbers = _EXECUTING.get(os.uname().machine)
    traced = {pid}
    while True:
        try:
            stopped, status = os.waitpid(-1, _WALL)
        except ChildProcessError:
            return
        if not os.WIFSTOPPED(status):
            traced.discard(stopped)
            continue
        traced.add(stopped)
        event, number = status >> 16, os.WSTOPSIG(status)
        started = event == _EVENT_EXEC
        at_call = not event and number == _AT_SYSCALL
        if checks and (started or (at_call and _executes(ptrace, stopped, numbers))) and _is_elsewhere(stopped):
            if not _is_inside(stopped):
                os.kill(stopped, _SIGKILL)
                os.write(0, b"x")
                return
            if started:
                _spare(ptrace, traced, stopped)
                os.write(0, b"o")
                if not holds:
                    return
                checks = False
        if started and not checks and _has_terminal(stopped):
            libc.alarm(LONGEST_S)
        else:
            # The first process is still where it was started: it is one that it forks that executes the program.
            going_on = _TO_SYSCALL if checks and stopped != pid else _CONT
            ptrace(going_on, stopped, 0, 0 if event or at_call else number)


def _spare(ptrace: ctypes._NamedFuncPointer, traced: Iterable[int], stopped: int) -> None:
    """Let what is traced outlive this program: the options of a process can be changed only while it is stopped."""
    ptrace(_SETOPTIONS, stopped, 0, _OPTIONS)
    # One that is gone cannot be stopped; -1: what one of them has started meanwhile, stopped at its beginning.
    others = [each for each in traced if each != stopped and ptrace(_INTERRUPT, each, 0, 0) == 0]
    for each in (*others, -1):
        try:
            pid, status = os.waitpid(each, _WALL | (os.WNOHANG if each == -1 else 0))
        except ChildProcessError:
            continue
        if pid and os.WIFSTOPPED(status):
            ptrace(_SETOPTIONS, pid, 0, _OPTIONS)
            ptrace(_CONT, pid, 0, 0 if status >> 16 else os.WSTOPSIG(status))


def _executes(ptrace: ctypes._NamedFuncPointer, pid: int, numbers: tuple[int, int] | None) -> bool:
    """Say whether a process that stopped at a system call is about to execute a program; if it is not known, it is."""
    info = ctypes.create_string_buffer(_INFO_BYTES)
    if numbers is None or ptrace(_GET_SYSCALL_INFO, pid, _INFO_BYTES, ctypes.addressof(info)) <= 0:
        return True
    return info.raw[0] == _ENTRY and int.from_bytes(info.raw[24:32], sys.byteorder) in numbers


def _is_elsewhere(pid: int) -> bool:
    return _namespace(pid) != _namespace("self")


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


def _namespace(process: object) -> str:
    try:
        return os.readlink(f"/proc/{process}/ns/mnt")
    except OSError:
        return ""  # it was killed


def _is_inside(pid: int) -> bool:
    """Say whether the working directory of a process is on a mount that it sees (proc_pid_mountinfo(5))."""
    try:
        directory = os.open(f"/proc/{pid}/cwd", os.O_PATH)
        with open(f"/proc/self/fdinfo/{directory}", "rb") as info:  # noqa: PTH123 - as above
            mount = info.read().partition(b"mnt_id:")[2].split()[0]
        with open(f"/proc/{pid}/mountinfo", "rb") as table:  # noqa: PTH123 - as above
            return any(line.split(b" ", 1)[0] == mount for line in table)
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
