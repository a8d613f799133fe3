"""Space kept aside on a disk, for what has to be written there when it is full."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_SHARE = 4
"""A disk is worth a reserve if it has this many times as much free."""


class Reserve:
    """A file at ``path`` of so many bytes that is only ever allocated, and given up when it is needed."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def fill(self) -> None:
        """Put space aside if there is enough of it; a reserve that is there already stays.

        :raises OSError: if it cannot be told how much there is, or the file cannot be made.
        """
        if not self._path.exists() and self._free() < self._size * _SHARE:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            # Allocated and not written: a file with a hole in it would keep no space.
            os.posix_fallocate(fd, 0, self._size)
        except OSError:  # somebody else was faster, or this file system cannot
            with suppress(FileNotFoundError):
                self._path.unlink()
        finally:
            os.close(fd)

    def give_up(self) -> bool:
        """Free the space; say whether there was any.

        :raises OSError: if the file cannot be removed.
        """
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True

    def give_up_if_full(self) -> bool:
        """Free the space if the disk has less than that; say whether it did.

        :raises OSError: as :meth:`give_up`, or if it cannot be told how much there is.
        """
        return self._free() < self._size and self.give_up()

    def _free(self) -> int:
        space = os.statvfs(self._path.parent)
        return space.f_bavail * space.f_frsize
