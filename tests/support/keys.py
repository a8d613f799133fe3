"""Keys in the keyrings of the machine's root and of a session, for tests that look who can find them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_LIBC = ctypes.CDLL(None, use_errno=True)
_ADD_KEY, _KEYCTL = 248, 250  # system calls of x86_64
_SESSION_KEYRING, _USER_KEYRING = -3, -4
_JOIN_SESSION_KEYRING, _UNLINK, _SEARCH = 1, 9, 10


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


def join_session() -> None:
    """Take a new session keyring, as a login and the service manager do for what they start; it has no name."""
    _call(_KEYCTL, ctypes.c_long(_JOIN_SESSION_KEYRING), ctypes.c_long(0))


def session_key(description: bytes, content: bytes) -> None:
    """Have a key of type ``user`` in the session keyring, with which it ends."""
    _call(_ADD_KEY, b"user", description, content, ctypes.c_long(len(content)), ctypes.c_long(_SESSION_KEYRING))


def in_session(description: bytes) -> bool:
    """Say whether there is such a key in the session keyring."""
    try:
        _call(_KEYCTL, ctypes.c_long(_SEARCH), ctypes.c_long(_SESSION_KEYRING), b"user", description, ctypes.c_long(0))
    except OSError:
        return False
    return True
