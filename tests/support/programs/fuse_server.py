"""Serves a file of FUSE that it mounts in the container of process PID, and answers when it wants to.

fuse_server.py PID instead|write|size

With ``instead`` the file is in the place of /dev/ptmx. Otherwise it is memory, with which a copy of this process writes
to the container's first terminal or asks for its size. Prints ``mounted``, and ``held`` when somebody is left waiting.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import sys

from podkeep.kernel import libc
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.mounts import MountFlag

TIOCGPTN, TIOCSPTLCK, TIOCGWINSZ = 0x80045430, 0x40045431, 0x5413

pid, how = sys.argv[1:]
user, mnt = (os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt"))
libc.setns(user, CloneFlag.NEWUSER)
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)
libc.setns(mnt, CloneFlag.NEWNS)
number, place = b"", "/dev/pts/ptmx"
if how == "instead":
    terminal = os.open(place, os.O_RDWR | os.O_NOCTTY)
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
        ctypes.CDLL(None).ioctl(terminal, TIOCGWINSZ, page)
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
        (command,) = struct.unpack_from("=I", request, 40 + 12)
        answer = struct.pack("=iIII", 0, 0, 0, 0) + (number if command == TIOCGPTN else b"")
    elif answer is None:
        error, answer = -errno.ENOSYS, b""
    os.write(channel, struct.pack("=IiQ", 16 + len(answer), error, unique) + answer)
