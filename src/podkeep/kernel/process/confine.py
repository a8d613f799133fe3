"""Shutting the calling process in before it reads what it must not trust. One way: nothing here can be undone.

For processes of one thread that were started to do one dangerous thing (unpacking a layer). Never called in a server
process. Knows system calls, not what they are for.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from enum import IntEnum

from podkeep.base.errors import KernelCallError
from podkeep.kernel import libc
from podkeep.kernel.mount import mounts


class Capability(IntEnum):
    """Capabilities by number (capabilities(7)) as far as they are named here."""

    CHOWN = 0
    DAC_OVERRIDE = 1
    FOWNER = 3
    FSETID = 4
    MKNOD = 27
    SETFCAP = 31


_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_EINVAL = 22


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


_LIBC = ctypes.CDLL(None, use_errno=True)
_prctl = _LIBC["prctl"]
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_prctl.restype = ctypes.c_int
_capset = _LIBC["capset"]
_capset.argtypes = (ctypes.POINTER(_CapHeader), ctypes.POINTER(_CapData * 2))
_capset.restype = ctypes.c_int


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread that started it ends.

    :raises KernelCallError: if the kernel refuses.
    """
    _call_prctl(f"PR_SET_PDEATHSIG, {number.name}", _PR_SET_PDEATHSIG, number)


def enter_root(directory: str) -> None:
    """Make ``directory`` the root and the only mount of a new mount namespace: no devices, no programs, no way up.

    The process also gets new network, IPC and UTS namespaces, all empty.

    :raises KernelCallError: if the kernel refuses; the process is then in a half-made state and must end.
    """
    flag = libc.CloneFlag
    libc.unshare(flag.NEWNS | flag.NEWNET | flag.NEWIPC | flag.NEWUTS)
    # pivot_root(2) refuses shared mounts, and unmounting the old root must not reach the machine's namespace.
    mounts.set_propagation("/", mounts.Propagation.PRIVATE, recursive=True)
    attributes = mounts.MountAttr.NOSUID | mounts.MountAttr.NODEV | mounts.MountAttr.NOEXEC
    fd = mounts.clone_tree(directory, attrs=attributes)
    mounts.attach(fd, directory)
    # pivot_root(".", ".") goes by the working directory.
    os.fchdir(fd)
    os.close(fd)
    # pivot_root(".", "."), pivot_root(2): the old root lands on top of the new one and is then detached.
    libc.pivot_root(b".", b".")
    libc.umount2(b".", mounts.UnmountFlag.DETACH)
    os.chdir("/")


def drop_privileges(keep: Iterable[Capability]) -> None:
    """Keep only the capabilities named, without a way to gain others again (bounding set, no_new_privs).

    Another process that has no more than these may not trace it (ptrace(2)), as a container's root might.

    :raises KernelCallError: if the kernel refuses.
    """
    kept = frozenset(keep)
    # The bounding set first: dropping from it takes CAP_SETPCAP, which capset below takes away.
    for number in range(64):
        if number in kept:
            continue
        if _prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == -1:
            if ctypes.get_errno() == _EINVAL:
                break  # past the last capability this kernel knows
            raise KernelCallError(f"prctl(PR_CAPBSET_DROP, {number})", ctypes.get_errno())
    _call_prctl("PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    _call_prctl("PR_SET_DUMPABLE, 0", _PR_SET_DUMPABLE, 0)  # before there is anything less than its tracer may have
    mask = sum(1 << number for number in kept)
    low = _CapData(effective=mask & 0xFFFFFFFF, permitted=mask & 0xFFFFFFFF, inheritable=0)
    high = _CapData(effective=mask >> 32, permitted=mask >> 32, inheritable=0)
    header = _CapHeader(version=_CAPABILITY_VERSION_3, pid=0)
    if _capset(ctypes.byref(header), ctypes.byref((_CapData * 2)(low, high))) == -1:
        raise KernelCallError(f"capset({sorted(kept)})", ctypes.get_errno())
    _call_prctl("PR_SET_NO_NEW_PRIVS, 1", _PR_SET_NO_NEW_PRIVS, 1)


def _call_prctl(text: str, option: int, argument: int) -> None:
    if _prctl(option, argument, 0, 0, 0) == -1:
        raise KernelCallError(f"prctl({text})", ctypes.get_errno())
