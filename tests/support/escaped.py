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
_PROGRAM = r"""
import ctypes, errno, os, sys, time
pid, uid, action, target = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
libc = ctypes.CDLL(None, use_errno=True)

def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")

def attach(number):
    check(libc.ptrace(0x4206, number, 0, 0))  # PTRACE_SEIZE: it does not stop, and goes on when this process ends

def take_over():
    child = os.fork()
    if child == 0:
        os.execve(program, ["sleep", "1000"], {})
    while not open(os.open(f"proc/{child}/cmdline", os.O_RDONLY, dir_fd=leaked)).read().startswith("sleep"):
        time.sleep(0.01)
    try:
        fd = os.open(f"proc/{child}/exe", os.O_RDONLY, dir_fd=leaked)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    again = os.open(f"proc/self/fd/{fd}", os.O_WRONLY, dir_fd=leaked)
    os.pwrite(again, os.pread(fd, 4096, 0), 0)

def use(flags, use_it):
    fd = os.open(target.lstrip("/"), flags, dir_fd=leaked)
    use_it(fd)

actions = {
    "read": lambda: use(os.O_RDONLY, lambda fd: os.read(fd, 1)),
    "list": lambda: use(os.O_RDONLY | os.O_DIRECTORY, os.listdir),
    "overwrite": lambda: use(os.O_RDWR, lambda fd: os.pwrite(fd, os.pread(fd, 4096, 0), 0)),
    "take-over": take_over,
    "signal": lambda: os.kill(int(target), 0),
    "trace": lambda: attach(int(target)),
}
leaked = os.open("/", os.O_PATH)
program = os.open(target, os.O_RDONLY) if action == "take-over" else -1
user, mnt = (os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt"))
if os.fstat(user).st_ino != os.stat("/proc/self/ns/user").st_ino:
    check(libc.setns(user, 0x10000000))
check(libc.setns(mnt, 0x00020000))
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
try:
    actions[action]()
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print("done")
"""


def escaped(pid: int, action: str, target: Path | int, *, uid: int = 0) -> str:
    """Return how an action of the escaped process ends: ``done``, or the name of the error.

    :param pid: a process of the container, on the machine.
    :param action: ``read``, ``list`` or ``overwrite`` (with what is there) a path of the machine; ``take-over`` a
        program that somebody runs in the container, by /proc/PID/exe (CVE-2019-5736); ``signal`` or ``trace`` a
        process.
    :param uid: its user and group inside the container.
    """
    command = [sys.executable, "-c", _PROGRAM, str(pid), str(uid), action, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
