"""Process 1 of a PID namespace: has a child's parent end, and its ID given to the child's own child, while
:func:`podkeep.kernel.process.process_tree.find` looks. Prints what that finds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from podkeep.kernel.process import process_tree

libc = ctypes.CDLL(None, use_errno=True)
PARENT, CHILD = 900, 100


class Clone(ctypes.Structure):
    names = "flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid set_tid_size cgroup"
    _fields_ = [(name, ctypes.c_uint64) for name in names.split()]


def fork_as(pid: int) -> int:
    wanted = (ctypes.c_int * 1)(pid)
    asked = Clone(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(wanted), set_tid_size=1)
    done = libc.syscall(435, ctypes.byref(asked), ctypes.sizeof(asked))
    if done < 0:
        raise OSError(ctypes.get_errno(), "clone3")
    return int(done)


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what ends is gone at once
if fork_as(PARENT) == 0:
    if fork_as(CHILD) == 0:
        while os.getppid() == PARENT:
            os.sched_yield()
        while True:
            try:
                fork_as(PARENT)
            except FileExistsError:
                continue
            signal.pause()
    signal.pause()
while parent_of(CHILD) != PARENT:
    os.sched_yield()

waiting = True


def exchange(event: str, arguments: tuple[object, ...]) -> None:
    """When the child has been looked at, and its parent is about to be: make that the child's own child."""
    global waiting
    if waiting and event == "open" and str(arguments[0]) == f"/proc/{PARENT}/stat":
        waiting = False
        os.kill(PARENT, signal.SIGKILL)
        while parent_of(PARENT) != CHILD:
            os.sched_yield()


sys.addaudithook(exchange)
print(process_tree.find({CHILD + 1}, ()), waiting)
print(sorted(process.pid for process in process_tree.find({CHILD}, ())))
