"""One owner per directory: an advisory lock on a file, which child processes keep as long as they run."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from podkeep.base.errors import FailedPrecondition

_PATIENCE = 10.0
"""Seconds to wait for the last processes of a killed owner."""


def acquire(path: Path) -> int:
    """Lock ``path``, made if missing, and return the descriptor that holds the lock.

    :raises FailedPrecondition: if somebody else still holds it after ten seconds.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            os.close(fd)
            raise FailedPrecondition(
                f"{path.parent} is in use by another process", hint=f"`fuser {path}` names it"
            ) from None
        return fd
