"""A key in the keyring of the machine's root, for tests that look who can find it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_LIBC = ctypes.CDLL(None, use_errno=True)
_ADD_KEY, _KEYCTL = 248, 250  # system calls of x86_64
_USER_KEYRING = -4
_UNLINK = 9


def _call(number: int, *arguments: bytes | ctypes.c_long) -> int:
    result: int = _LIBC.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


@contextmanager
def root_key(description: bytes, content: bytes) -> Iterator[None]:
    """Have a key of type ``user`` in the keyring of user 0, and remove it at the end."""
    keyring = ctypes.c_long(_USER_KEYRING)
    key = _call(_ADD_KEY, b"user", description, content, ctypes.c_long(len(content)), keyring)
    try:
        yield
    finally:
        _call(_KEYCTL, ctypes.c_long(_UNLINK), ctypes.c_long(key), keyring)
