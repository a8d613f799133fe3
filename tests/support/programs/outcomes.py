"""What the programs beside share: calls of the C library that raise, and how what was tried has ended."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable

DONE = "done"
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def check(result: int) -> int:
    """Return what a function of the C library has returned, or raise what it has failed with."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def call(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make a system call by its number; integers are passed as long."""
    return check(libc.syscall(number, *(ctypes.c_long(item) if isinstance(item, int) else item for item in arguments)))


def outcome(use: Callable[[], object]) -> str:
    """Return how a use ended: ``done``, or the name of the error."""
    try:
        use()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return DONE
