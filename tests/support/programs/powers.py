"""Uses what capabilities allow, inside of a container that has the machine's Python; writes how each use ended as JSON.

``done``, or the name of the error.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from outcomes import check, libc, outcome


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


_ALL = (mount_fuse, make_tunnel, make_veth, mount_tmpfs)
USES: dict[str, Callable[[], None]] = {use.__name__: use for use in _ALL}


if __name__ == "__main__":
    print(json.dumps({name: outcome(USES[name]) for name in sys.argv[1:]}), flush=True)
