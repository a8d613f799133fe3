"""One owner per directory: an advisory lock on a file, which the kernel gives back when its owner ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from podkeep.base.errors import FailedPrecondition

_PAUSE_S = 0.005

IN_USE = "is in use by another process"
"""What the error of :func:`acquire` says of the directory; a background process can be told from it to have lost."""


def acquire(path: Path, *, timeout_s: float = 0.0, hint: str = "") -> int:
    """Lock ``path``, made if missing, and return the descriptor that holds the lock until it is closed.

    :param timeout_s: how long to wait for another holder, for example the last processes of a killed one.
    :param hint: what to do if somebody else holds it; default: how to find out who.
    :raises FailedPrecondition: if somebody else still holds it then.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not take(fd, timeout_s):
        os.close(fd)
        raise FailedPrecondition(f"{path.parent} {IN_USE}", hint=hint or f"`fuser {path}` names it")
    return fd


def take(fd: int, timeout_s: float) -> bool:
    """Lock the file behind a descriptor until that is closed; return False if somebody else still holds it then.

    Whoever can read a file can hold its lock for ever: only a file that users cannot open, as :func:`acquire` makes it,
    can be waited for without an end, or be a reason to give up.

    :param timeout_s: how long to wait.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            # Not a blocking call, which nothing but a signal ends.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE_S)
        else:
            return True


def is_at(fd: int, path: Path) -> bool:
    """Return whether ``path`` is what ``fd`` was opened as: not if a holder removed it, or there is another one."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_held(path: Path) -> bool:
    """Return whether somebody holds the lock ``path``; a missing file is held by nobody."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two that only look do not take each other for the holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
