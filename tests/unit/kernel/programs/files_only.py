"""Lets itself work on files only, below a directory, and prints in JSON what each attempt at something came to.

files_only.py DIRECTORY
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from podkeep.base.errors import KernelCallError
from podkeep.kernel import libc
from podkeep.kernel.mount import mounts
from podkeep.kernel.process import confine, seccomp

tried: dict[str, object] = {}
libc_syscall = ctypes.CDLL(None, use_errno=True)["syscall"]


def attempt(name: str, action: Callable[[], object]) -> None:
    try:
        tried[name] = repr(action())
    except (OSError, RuntimeError, KernelCallError) as error:
        tried[name] = getattr(error, "errno", None) or f"{type(error).__name__}: {error}"


def system(number: int) -> Callable[[], None]:
    def call() -> None:
        if libc_syscall(number, 0, 0, 0, 0, 0) == -1:
            raise OSError(ctypes.get_errno(), "")

    return call


def files() -> list[str]:
    os.mkdir("d")
    Path("d/f").write_text("x")
    os.symlink("f", "d/s")
    os.link("d/f", "d/l")
    os.setxattr("d/f", "user.a", b"b")
    os.chown("d/f", 1, 1)
    os.utime("d/f", ns=(0, 0))
    os.truncate("d/f", 5)
    os.unlink("d/l")
    return sorted(os.listdir("d"))


def thread() -> list[int]:
    done: list[int] = []
    one = threading.Thread(target=lambda: done.append(1))
    one.start()
    one.join()
    return done


os.chdir(sys.argv[1])
confine.drop_privileges(confine.Capability)
tried["enforced"] = seccomp.allow_files_only()
attempt("socket", socket.socket)
attempt("fork", os.fork)
attempt("exec", lambda: os.execv("/bin/true", ["true"]))
attempt("pipe", os.pipe)
attempt("ioctl", lambda: fcntl.ioctl(0, 0x5401, bytes(64)))
attempt("mount", lambda: mounts.tmpfs("/"))
attempt("unshare", lambda: libc.unshare(libc.CloneFlag.NEWUSER))
attempt("setns", lambda: libc.setns(0, 0))
attempt("chroot", lambda: os.chroot("."))
attempt("setuid", lambda: os.setuid(1))
attempt("io_uring", system(425))
attempt("clone3", system(435))
attempt("pidfd_open", system(434))
attempt("files", files)
attempt("thread", thread)
print(json.dumps(tried))
