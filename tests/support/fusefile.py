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
_SOURCE = Path(__file__).resolve().parents[2] / "src"
_SERVER = r"""
import ctypes, errno, fcntl, mmap, os, struct, sys
sys.path.insert(0, sys.argv[1])
from podkeep.kernel import libc
from podkeep.kernel.mount import mounts
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount.mounts import MountFlag

user, mnt = (os.open(f"/proc/{sys.argv[2]}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt"))
how = sys.argv[3]
libc.setns(user, CloneFlag.NEWUSER)
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)
libc.setns(mnt, CloneFlag.NEWNS)
number, place = b"", "/dev/pts/ptmx"
if how == "instead":
    terminal = os.open(place, os.O_RDWR | os.O_NOCTTY)
    TIOCGPTN, TIOCSPTLCK = 0x80045430, 0x40045431
    number = fcntl.ioctl(terminal, TIOCGPTN, bytes(4))
    fcntl.ioctl(terminal, TIOCSPTLCK, bytes(4))
else:
    place = "/dev/shm/memory"
    os.close(os.open(place, os.O_CREAT | os.O_RDWR, 0o666))
channel = os.open("/dev/fuse", os.O_RDWR)
data = f"fd={channel},rootmode=0100666,user_id=0,group_id=0,allow_other"
mounts.mount("t", place, fstype="fuse", flags=MountFlag.NOSUID | MountFlag.NODEV, data=data)
print("mounted", flush=True)

if how != "instead" and os.fork() == 0:
    os.close(channel)
    memory = mmap.mmap(os.open(place, os.O_RDWR), 1 << 16)
    memory.madvise(mmap.MADV_RANDOM)  # a page that is read ahead can be waited for by who was killed
    page = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    terminal = os.open("/dev/pts/0", os.O_RDWR | os.O_NOCTTY)
    if how == "write":
        ctypes.CDLL(None).write(terminal, page, 1)
    else:
        ctypes.CDLL(None).ioctl(terminal, 0x5413, page)  # TIOCGWINSZ
    os._exit(0)

# linux/fuse.h
GETATTR, SETATTR, OPEN, READ, WRITE, RELEASE, FLUSH, INIT = 3, 4, 14, 15, 16, 18, 25, 26
FORGET, INTERRUPT, IOCTL, POLL, BATCH_FORGET = 2, 36, 39, 40, 42
FOPEN_DIRECT_IO = 1
SIZES = struct.pack("=QQQ", 1, 1 << 20, 2048)
ATTRIBUTES = struct.pack("=QII", 1000, 0, 0) + SIZES + bytes(36) + struct.pack("=II", 0o100666, 1) + bytes(20)
ANSWERS = {
    INIT: struct.pack("=IIIIHHII", 7, 31, 0, 0, 16, 0, 65536, 0) + bytes(36),
    GETATTR: ATTRIBUTES,
    SETATTR: ATTRIBUTES,
    OPEN: struct.pack("=QII", 1, FOPEN_DIRECT_IO if how == "instead" else 0, 0),
    RELEASE: b"",
    FLUSH: b"",
}
told = False
while True:
    try:
        request = os.read(channel, 1 << 20)
    except OSError as error:
        if error.errno in (errno.EINTR, errno.ENOENT):
            continue
        raise
    _, kind, unique, _, uid, _, _, _ = struct.unpack_from("=IIQQIIIi", request)
    if kind in (FORGET, BATCH_FORGET, INTERRUPT):
        continue
    if kind == (FLUSH if how == "instead" else READ) and (uid == 65534 or how != "instead"):
        if not told:
            print("held", flush=True)
            told = True
        continue
    if kind in (READ, WRITE, POLL):
        continue
    error, answer = 0, ANSWERS.get(kind)
    if kind == IOCTL:
        command, = struct.unpack_from("=I", request, 40 + 12)
        answer = struct.pack("=iIII", 0, 0, 0, 0) + (number if command == TIOCGPTN else b"")
    elif answer is None:
        error, answer = -errno.ENOSYS, b""
    os.write(channel, struct.pack("=IiQ", 16 + len(answer), error, unique) + answer)
"""


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
    command = [sys.executable, "-ISc", _SERVER, str(_SOURCE), str(pid), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "mounted\n"
            yield process.stdout
        finally:
            process.kill()
