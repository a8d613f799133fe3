"""Say whether the key of type ``user`` that is named is in the session keyring, and leave one there for others."""

from __future__ import annotations

import ctypes
import sys

ADD_KEY, KEYCTL = 248, 250  # system calls of x86_64
KEYCTL_SEARCH = 10
SESSION_KEYRING = ctypes.c_long(-3)

syscall = ctypes.CDLL(None).syscall
name = sys.argv[1].encode()
print("found" if syscall(KEYCTL, KEYCTL_SEARCH, SESSION_KEYRING, b"user", name, 0) >= 0 else "not found")
syscall(ADD_KEY, b"user", name, b"left", ctypes.c_long(4), SESSION_KEYRING)
