"""Enters the container of process PID and tries to take each protective flag off each of PATHS (a list in JSON).

    remounting.py PID PATHS

Prints what :func:`support.remounting.attack` returns, in JSON.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable

from podkeep.base.errors import KernelCallError
from podkeep.kernel import libc
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.mounts import MountAttr, MountFlag, Propagation

FLAGS = {
    "ro": (os.ST_RDONLY, MountAttr.RDONLY, MountFlag.RDONLY),
    "nosuid": (os.ST_NOSUID, MountAttr.NOSUID, MountFlag.NOSUID),
    "nodev": (os.ST_NODEV, MountAttr.NODEV, MountFlag.NODEV),
    "noexec": (os.ST_NOEXEC, MountAttr.NOEXEC, MountFlag.NOEXEC),
}

pid, paths = sys.argv[1], json.loads(sys.argv[2])
user, mnt = (os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt"))
libc.setns(user, CloneFlag.NEWUSER)
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)
libc.setns(mnt, CloneFlag.NEWNS)
# The machine's program, of which nothing is left but what is loaded, needs a place for copies.
os.makedirs("/dev/shm-copies", exist_ok=True)
os.close(os.open("/dev/shm-copy", os.O_CREAT))


def flags(path: str) -> list[str]:
    found = os.statvfs(path).f_flag
    return sorted(name for name, (bit, _, _) in FLAGS.items() if found & bit)


def remount(path: str, name: str, extra: MountFlag) -> None:
    kept = MountFlag.NONE
    for other, (bit, _, flag) in FLAGS.items():
        if other != name and os.statvfs(path).f_flag & bit:
            kept |= flag
    mounts.mount(None, path, flags=MountFlag.REMOUNT | extra | kept)


def on_copy(path: str, name: str, act: Callable[[str, str], None]) -> None:
    tree = mounts.open_tree(path, clone=True, recursive=True)
    target = "/dev/shm-copies" if os.path.isdir(path) else "/dev/shm-copy"
    try:
        mounts.attach(tree, target)
    finally:
        os.close(tree)
    try:
        act(target, name)
    finally:
        mounts.unmount(target, lazy=True)


def detached(path: str, name: str) -> None:
    tree = mounts.open_tree(path, clone=True, recursive=True)
    try:
        mounts.mount_setattr(tree, clear=FLAGS[name][1])
    finally:
        os.close(tree)


def in_another_namespace(path: str, name: str) -> None:
    child = os.fork()
    if child == 0:
        status = 0
        try:
            libc.unshare(CloneFlag.NEWUSER | CloneFlag.NEWNS)
            mounts.mount_setattr(path, clear=FLAGS[name][1])
        except KernelCallError as error:
            status = error.errno
        finally:
            os._exit(status)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise KernelCallError("in another namespace", code)


def setattr_(path: str, name: str) -> None:
    mounts.mount_setattr(path, clear=FLAGS[name][1])


def private(path: str, name: str) -> None:
    mounts.set_propagation(path, Propagation.PRIVATE)
    setattr_(path, name)


ATTACKS = {
    "mount_setattr": setattr_,
    "mount_setattr, recursive": lambda path, name: mounts.mount_setattr(path, clear=FLAGS[name][1], recursive=True),
    "remount,bind": lambda path, name: remount(path, name, MountFlag.BIND),
    "remount": lambda path, name: remount(path, name, MountFlag.NONE),
    "a detached copy": detached,
    "mount_setattr of a copy": lambda path, name: on_copy(path, name, setattr_),
    "remount,bind of a copy": lambda path, name: on_copy(path, name, lambda p, n: remount(p, n, MountFlag.BIND)),
    "private, then mount_setattr": private,
    "another user namespace": in_another_namespace,
}
result = {}
for path in paths:
    attempts = {}
    for name in flags(path):
        for attack, act in ATTACKS.items():
            try:
                act(path, name)
                said = "done"
            except KernelCallError as error:
                said = errno.errorcode[error.errno]
            attempts[f"{name}: {attack}"] = said
            if said == "done" and name in flags(path):
                attempts[f"{name}: {attack}"] = "no effect"
    result[path] = {"flags": flags(path), "attempts": attempts}
    try:
        if os.path.isdir(path):
            os.mkdir(path + "/by-the-attacker")
            os.rmdir(path + "/by-the-attacker")
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
        result[path]["write"] = "done"
    except OSError as error:
        result[path]["write"] = errno.errorcode[error.errno]
print(json.dumps(result))
