"""Session keyrings (session-keyring(7)): what a process starts has its keyring, and finds and reads the keys in it.

So what is started for somebody else gets an empty one, in which there is nothing of this process's: of a login, of the
service manager. Called by ``runtime/oci/entering.py``.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import threading
from collections.abc import Callable
from typing import TypeVar

from podkeep.base.errors import KernelCallError

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


def with_an_empty_one(function: Callable[[], Result]) -> Result:
    """Call ``function`` on a thread that has a new session keyring, as what it starts there; return its result.

    Errors of ``function`` are raised here. The calling thread, which has this process's, is left as it is.

    :raises KernelCallError: if there is no room for a keyring (EDQUOT).
    """
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            _join_new()
            outcome.append(function())
        except BaseException as error:  # noqa: BLE001 - carried to the calling thread and raised there
            failure.append(error)

    # It must end: a thread of a pool would share the keyring with what was started for somebody.
    thread = threading.Thread(target=run, name="keyring", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _join_new() -> None:
    """Give the calling thread a new session keyring, without a name, so that nobody else can join it."""
    number = _NUMBERS.get(platform.machine())
    if number is None or _syscall(number, _JOIN_SESSION_KEYRING, None) >= 0:
        return
    code = ctypes.get_errno()
    if code in _NO_KEYS:
        return
    hint = "root's keys are used up (keyrings(7)): look into /proc/key-users, and at kernel.keys.root_maxkeys"
    raise KernelCallError("keyctl(KEYCTL_JOIN_SESSION_KEYRING)", code, hint=hint if code == errno.EDQUOT else "")
