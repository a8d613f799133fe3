"""Uses what capabilities allow, inside of a container that has the machine's Python; writes how each use ended as JSON.

``done``, or the name of the error. What is set is what is there already, so that the machine is as it was.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    """Raise what a function of the C library has failed with."""
    if result < 0:
        raise OSError(ctypes.get_errno(), "")


def adjust_clock() -> None:
    """Set the clock's frequency to what it is."""
    timex = ctypes.create_string_buffer(256)
    check(libc.adjtimex(timex))
    struct.pack_into("I", timex, 0, 2)  # ADJ_FREQUENCY
    check(libc.adjtimex(timex))


def set_clock() -> None:
    """Set the clock to what it is."""
    time.clock_settime_ns(time.CLOCK_REALTIME, time.clock_gettime_ns(time.CLOCK_REALTIME))


def make_device() -> None:
    """Make a node of /dev/null."""
    os.mknod("/tmp/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))


def load_module() -> None:
    """Load a module that is none."""
    check(libc.syscall(175, b"no module", ctypes.c_ulong(9), b""))  # init_module on x86_64


def swap_on() -> None:
    """Swap on what is not there."""
    check(libc.swapon(b"/no/such/file", 0))


def mount_fuse() -> None:
    """Mount a file system of FUSE, and look at its root as it serves it."""
    channel = os.open("/dev/fuse", os.O_RDWR)
    Path("/tmp/fuse").mkdir(exist_ok=True)
    options = f"fd={channel},rootmode=040000,user_id=0,group_id=0".encode()
    check(libc.mount(b"toy", b"/tmp/fuse", b"fuse.toy", 6, options))
    if os.fork() == 0:
        os.listdir("/tmp/fuse")
        os._exit(0)
    request = os.read(channel, 1 << 20)
    length, opcode = struct.unpack_from("II", request)
    assert (length, opcode) == (len(request), 26), "FUSE_INIT"
    assert " /tmp/fuse " in Path("/proc/self/mountinfo").read_text()


def make_tunnel() -> None:
    """Make a link of tun."""
    tunnel = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tunnel, 0x400454CA, struct.pack("16sH22x", b"tun7", 1))  # TUNSETIFF, IFF_TUN
    assert "tun7" in os.listdir("/sys/class/net")


def make_veth() -> None:
    """Make a pair of links."""
    subprocess.run("ip link add veth7 type veth peer name veth8".split(), check=True)
    assert {"veth7", "veth8"} <= set(os.listdir("/sys/class/net"))


def mount_tmpfs() -> None:
    """Mount a file system in memory, and write to it."""
    Path("/tmp/memory").mkdir(exist_ok=True)
    check(libc.mount(b"none", b"/tmp/memory", b"tmpfs", 0, b""))
    Path("/tmp/memory/file").write_text("x")


_ALL = (adjust_clock, set_clock, make_device, load_module, swap_on, mount_fuse, make_tunnel, make_veth, mount_tmpfs)
USES: dict[str, Callable[[], None]] = {use.__name__: use for use in _ALL}


def outcome(use: Callable[[], None]) -> str:
    """Return how a use ended."""
    try:
        use()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


if __name__ == "__main__":
    print(json.dumps({name: outcome(USES[name]) for name in sys.argv[1:]}), flush=True)
