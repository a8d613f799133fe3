"""Opening files below a directory that somebody else fills: openat2(2), and syncfs(2).

Every component is resolved by the kernel under the rules of ``Resolve``, so no symbolic link, however it is swapped in
meanwhile, leads out. Called by what writes or reads image trees.
"""

from __future__ import annotations

import ctypes
import os
from enum import IntFlag

from podkeep.base.errors import KernelCallError

_NR_OPENAT2 = 437  # the same on every architecture (include/uapi/asm-generic/unistd.h)


class Resolve(IntFlag):
    """``RESOLVE_*`` of openat2(2)."""

    NO_XDEV = 0x01
    NO_MAGICLINKS = 0x02
    NO_SYMLINKS = 0x04
    BENEATH = 0x08
    IN_ROOT = 0x10


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_LIBC = ctypes.CDLL(None, use_errno=True)
_openat2 = _LIBC["syscall"]
_openat2.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_OpenHow), ctypes.c_size_t)
_openat2.restype = ctypes.c_long
_syncfs = _LIBC["syncfs"]
_syncfs.argtypes = (ctypes.c_int,)
_syncfs.restype = ctypes.c_int
_SIZE = ctypes.sizeof(_OpenHow)


def openat2(dirfd: int, path: bytes, flags: int, resolve: Resolve, *, mode: int = 0) -> int:
    """Open ``path`` relative to ``dirfd`` and return the descriptor, close-on-exec always.

    :raises KernelCallError: if the kernel refuses; EXDEV means that the path would leave ``dirfd``.
    """
    if b"\0" in path:
        raise ValueError("embedded null byte")
    how = _OpenHow(flags=flags | os.O_CLOEXEC, mode=mode, resolve=int(resolve))
    fd: int = _openat2(_NR_OPENAT2, dirfd, path, ctypes.byref(how), _SIZE)
    if fd == -1:
        shown = os.fsdecode(path)
        raise KernelCallError(f"openat2(dirfd={dirfd}, {shown!r}, flags={flags:#x}, {resolve!r})", ctypes.get_errno())
    return fd


def syncfs(fd: int) -> None:
    """Write everything of the file system that ``fd`` is on to its disk.

    :raises KernelCallError: if writing failed.
    """
    if _syncfs(fd) == -1:
        raise KernelCallError(f"syncfs({fd})", ctypes.get_errno())
