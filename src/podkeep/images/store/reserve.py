"""Space kept aside on the disk, so that something can be removed when it is full: that takes a record, too.

Used by the database of images. A reserve is a file that is only ever allocated, and given up when it is needed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

BYTES = 512 << 10
"""Some hundred pages of the records: what the removal of an image changes."""
_SHARE = 4
"""A disk is worth a reserve if it has this many times as much free."""


class Reserve:
    """The file ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fill(self) -> None:
        """Put space aside if there is enough of it; a reserve that is there already stays."""
        space = os.statvfs(self._path.parent)
        if not self._path.exists() and space.f_bavail * space.f_frsize < BYTES * _SHARE:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, BYTES)
        except OSError:  # somebody else was faster, or this file system cannot
            with suppress(FileNotFoundError):
                self._path.unlink()
        finally:
            os.close(fd)

    def give_up(self) -> bool:
        """Free the space; say whether there was any."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True
