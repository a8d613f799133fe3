"""Taking protection off the mounts of a container, as a process in it with every capability of its user namespace can.

A container's own programs are too few for it: the process is one of ours that enters the container's namespaces.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).resolve().parents[2] / "src"
_ATTACK = r"""
import sys, json, os, errno
sys.path.insert(0, sys.argv[1])
from podkeep.kernel import libc, mounts
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mounts import MountAttr as A, MountFlag as F, Propagation
from podkeep.base.errors import KernelCallError

pid, paths = sys.argv[2], json.loads(sys.argv[3])
FLAGS = {"ro": (os.ST_RDONLY, A.RDONLY, F.RDONLY), "nosuid": (os.ST_NOSUID, A.NOSUID, F.NOSUID),
         "nodev": (os.ST_NODEV, A.NODEV, F.NODEV), "noexec": (os.ST_NOEXEC, A.NOEXEC, F.NOEXEC)}
user, mnt = (os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt"))
libc.setns(user, CloneFlag.NEWUSER)
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)
libc.setns(mnt, CloneFlag.NEWNS)
# The machine's program, of which nothing is left but what is loaded, needs a place for copies.
os.mkdir("/dev/shm-copies") if not os.path.exists("/dev/shm-copies") else None
open("/dev/shm-copy", "a").close()


def flags(path):
    found = os.statvfs(path).f_flag
    return sorted(name for name, (bit, _, _) in FLAGS.items() if found & bit)


def remount(path, name, extra):
    kept = F.NONE
    for other, (bit, _, flag) in FLAGS.items():
        if other != name and os.statvfs(path).f_flag & bit:
            kept |= flag
    mounts.mount(None, path, flags=F.REMOUNT | extra | kept)


def on_copy(path, name, act):
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


def detached(path, name):
    tree = mounts.open_tree(path, clone=True, recursive=True)
    try:
        mounts.mount_setattr(tree, clear=FLAGS[name][1])
    finally:
        os.close(tree)


def in_another_namespace(path, name):
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


def setattr_(path, name):
    mounts.mount_setattr(path, clear=FLAGS[name][1])


ATTACKS = {
    "mount_setattr": setattr_,
    "mount_setattr, recursive": lambda path, name: mounts.mount_setattr(path, clear=FLAGS[name][1], recursive=True),
    "remount,bind": lambda path, name: remount(path, name, F.BIND),
    "remount": lambda path, name: remount(path, name, F.NONE),
    "a detached copy": detached,
    "mount_setattr of a copy": lambda path, name: on_copy(path, name, setattr_),
    "remount,bind of a copy": lambda path, name: on_copy(path, name, lambda p, n: remount(p, n, F.BIND)),
    "private, then mount_setattr": lambda path, name: (
        mounts.set_propagation(path, Propagation.PRIVATE), setattr_(path, name)),
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
"""


def attack(pid: int, paths: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Try to take each protective flag off each of ``paths`` in the container of process ``pid``, one by one.

    :returns: by path the ``flags`` that are left, what came of each of the ``attempts`` (``done``, ``no effect``, or an
        error's name), and whether something can be written then (``write``).
    """
    argv = [sys.executable, "-I", "-c", _ATTACK, str(_SOURCE), str(pid), json.dumps(list(paths))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return result
