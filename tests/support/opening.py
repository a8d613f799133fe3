"""Whether a file was opened, as the kernel tells (inotify(7)): opening a device does something."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_OPEN = 0x20


@contextmanager
def never_opened(path: Path) -> Iterator[None]:
    """Check that nobody opens a file meanwhile; a descriptor of ``O_PATH`` opens nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        assert libc.inotify_add_watch(fd, os.fsencode(path), _IN_OPEN) >= 0, os.strerror(ctypes.get_errno())
        yield
        try:
            told = os.read(fd, 4096)
        except BlockingIOError:
            told = b""
        assert told == b"", f"{path} was opened"
    finally:
        os.close(fd)
