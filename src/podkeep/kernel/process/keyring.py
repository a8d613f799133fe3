"""Session keyrings (session-keyring(7)): what a process starts has its keyring, and finds and reads the keys in it.

So what is started for somebody else gets an anonymous one of its own, which is empty: this process's has the keys of a
login, or of the service manager. Called by ``runtime/oci/entering.py``.
"""

from __future__ import annotations

import ctypes
import errno
import platform
from collections.abc import Callable
from typing import TypeVar

from podkeep.base.errors import KernelCallError
from podkeep.kernel import own_thread

Result = TypeVar("Result")

_NUMBERS = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280, "armv7l": 311, "i686": 288}
"""Of keyctl(2), by machine: libkeyutils, which has it as a function, need not be installed."""
_JOIN_SESSION_KEYRING = 1
_NO_KEYS = frozenset({errno.ENOSYS, errno.EPERM})
"""A kernel without keys, or a filter that refuses the call to this process, and so to all that it starts."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_syscall = _LIBC["syscall"]
_syscall.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_char_p)
_syscall.restype = ctypes.c_long


def in_new_session(function: Callable[[], Result]) -> Result:
    """Return the result of ``function``, called on a thread with a new anonymous session keyring.

    What it starts there has that keyring. The calling thread keeps the one of this process.

    :raises KernelCallError: if there is no room for a keyring (EDQUOT).
    """

    def body() -> Result:
        _join_new_session()
        return function()

    return own_thread.run("keyring", body)


def _join_new_session() -> None:
    """Join a new anonymous session keyring on the calling thread (keyctl_join_session_keyring(3))."""
    number = _NUMBERS.get(platform.machine())
    if number is None or _syscall(number, _JOIN_SESSION_KEYRING, None) >= 0:
        return
    code = ctypes.get_errno()
    if code in _NO_KEYS:
        return
    hint = "root's keys are used up (keyrings(7)): look into /proc/key-users, and at kernel.keys.root_maxkeys"
    raise KernelCallError("keyctl(KEYCTL_JOIN_SESSION_KEYRING)", code, hint=hint if code == errno.EDQUOT else "")
