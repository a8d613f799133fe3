"""Confines itself to a directory and prints in JSON what each attempt at leaving it came to.

try_to_leave.py DIRECTORY PID-OUTSIDE PORT-OUTSIDE
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable

from podkeep.base.errors import KernelCallError
from podkeep.kernel import libc
from podkeep.kernel.mount import mounts
from podkeep.kernel.process import confine

tried: dict[str, object] = {}


def attempt(name: str, action: Callable[[], object]) -> None:
    try:
        tried[name] = repr(action())
    except (OSError, KernelCallError) as error:
        tried[name] = error.errno


confine.enter_root(sys.argv[1])
confine.drop_privileges([confine.Capability.DAC_OVERRIDE, confine.Capability.MKNOD])
attempt("list", lambda: sorted(os.listdir("/")))
attempt("up", lambda: sorted(os.listdir("/../../..")))
attempt("chroot", lambda: os.chroot("."))
attempt("mount", lambda: mounts.tmpfs("/"))
attempt("unshare", lambda: libc.unshare(libc.CloneFlag.NEWNS))
os.mknod("null", 0o20666, os.makedev(1, 3))
attempt("open device", lambda: os.open("null", os.O_RDWR))
attempt("signal", lambda: os.kill(int(sys.argv[2]), 0))
attempt("connect", lambda: socket.socket().connect(("127.0.0.1", int(sys.argv[3]))))
print(json.dumps(tried))
