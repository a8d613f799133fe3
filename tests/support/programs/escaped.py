"""Be processes that have escaped from a container, one for each deed, and write how the deeds ended, as JSON.

    escaped.py PID    with a list of [UID, ACTION, TARGET] on standard input

Each has the user namespace and the mount namespace of process PID, is its user UID, and has a descriptor of the
machine's ``/``. Everything else is the machine's: process IDs, network, the paths below that descriptor. Nothing
changes on the machine, even if an action is allowed: what is written is what is there already, and a reboot has a
number that is not one.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable

from outcomes import call, check, libc, outcome

NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000
PTRACE_TRACEME, PTRACE_SEIZE = 0, 0x4206
URING_SETUP, URING_ENTER = 425, 426
URING_OP_OPENAT, URING_ASYNC, URING_GET_EVENTS = 18, 0x10, 1
OFF_SQ_RING, OFF_SQES = 0, 0x10000000


class Escaped:
    """The process, with what it took along from before it was confined."""

    def __init__(self, pid: int, uid: int, target: str) -> None:
        self.target = target
        self.root = os.open("/", os.O_PATH)
        self.mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY)
        self.program = os.open(target, os.O_RDONLY) if os.path.isfile(target) else -1
        user, mounts = (os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt"))
        if os.fstat(user).st_ino != os.stat("/proc/self/ns/user").st_ino:
            check(libc.setns(user, NEW_USER))
        check(libc.setns(mounts, NEW_MOUNTS))
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    def _open(self, path: str, flags: int) -> int:
        return os.open(path.lstrip("/"), flags, dir_fd=self.root)

    def read(self) -> None:
        """Read a file."""
        os.read(self._open(self.target, os.O_RDONLY), 1)

    def open(self) -> None:
        """Open a file to read it."""
        os.close(self._open(self.target, os.O_RDONLY))

    def list(self) -> None:
        """List a directory."""
        os.listdir(self._open(self.target, os.O_RDONLY | os.O_DIRECTORY))

    def overwrite(self) -> None:
        """Overwrite a file with what is there."""
        fd = self._open(self.target, os.O_RDWR)
        os.pwrite(fd, os.pread(fd, 4096, 0), 0)

    def take_over(self) -> None:
        """Overwrite a program that somebody runs in the container, by its /proc/PID/exe (CVE-2019-5736)."""
        child = os.fork()
        if child == 0:
            check(libc.ptrace(PTRACE_TRACEME, 0, 0, 0))  # it stops once it is the program
            os.execve(self.program, ["program"], {})
        os.waitpid(child, os.WUNTRACED)
        try:
            fd = self._open(f"proc/{child}/exe", os.O_RDONLY)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        again = self._open(f"proc/self/fd/{fd}", os.O_WRONLY)
        os.pwrite(again, os.pread(fd, 4096, 0), 0)

    def uring(self) -> None:
        """Open a file with io_uring, from a thread of the kernel."""
        entries, parameters = 1, ctypes.create_string_buffer(120)
        ring = call(URING_SETUP, entries, parameters)
        fields = struct.unpack_from("30I", parameters)
        (sq_entries, cq_entries), sq, cq = fields[:2], fields[10:20], fields[20:30]
        size = max(sq[6] + sq_entries * 4, cq[5] + cq_entries * 16)
        rings = mmap.mmap(ring, size, offset=OFF_SQ_RING)
        requests = mmap.mmap(ring, sq_entries * 64, offset=OFF_SQES)
        path = ctypes.create_string_buffer(self.target.lstrip("/").encode())
        request = (URING_OP_OPENAT, URING_ASYNC, 0, self.root, 0, ctypes.addressof(path), 0, os.O_RDONLY, 7)
        struct.pack_into("BBHiQQIIQ", requests, 0, *request)
        struct.pack_into("I", rings, sq[6], 0)
        struct.pack_into("I", rings, sq[1], 1)
        call(URING_ENTER, ring, 1, 1, URING_GET_EVENTS, None, 0)
        _, result = struct.unpack_from("Qi", rings, cq[5])
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    def signal(self) -> None:
        """Signal a process, with a signal that does nothing."""
        os.kill(int(self.target), 0)

    def trace(self) -> None:
        """Trace a process; it does not stop, and goes on when this process ends."""
        check(libc.ptrace(PTRACE_SEIZE, int(self.target), 0, 0))

    def connect(self) -> None:
        """Connect to an abstract socket whose server takes root's connections alone (CVE-2020-15257)."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"\0{self.target}")
            if client.recv(1) != b"y":
                raise PermissionError(13, os.strerror(13))

    def reach(self) -> None:
        """Connect to a socket that is a file."""
        os.fchdir(self.root)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(self.target.lstrip("/"))

    def join(self) -> None:
        """Join the machine's mount namespace."""
        check(libc.setns(self.mounts, NEW_MOUNTS))

    def reboot(self) -> None:
        """Reboot, with magic numbers that are none."""
        call(169, 0, 0, 0, None)


def act(pid: int, uid: int, action: str, target: str) -> str:
    """Be the process, and return how its deed ended."""
    escaped = Escaped(pid, uid, target)
    actions: tuple[Callable[[], None], ...] = (
        escaped.read,
        escaped.open,
        escaped.list,
        escaped.overwrite,
        escaped.take_over,
        escaped.uring,
        escaped.signal,
        escaped.trace,
        escaped.connect,
        escaped.reach,
        escaped.join,
        escaped.reboot,
    )
    return outcome(next(item for item in actions if item.__name__ == action))


def in_a_child(pid: int, deed: tuple[int, str, str]) -> str:
    """Return how a deed ended; nothing of what its process became is left."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, act(pid, *deed).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        ended = pipe.read()
    os.waitpid(child, 0)
    if not ended:
        sys.exit(f"{deed} did not end")
    return ended


if __name__ == "__main__":
    print(json.dumps([in_a_child(int(sys.argv[1]), deed) for deed in json.load(sys.stdin)]))
