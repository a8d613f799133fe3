"""Writing the one large file of a layer front to back.

The beginning goes through the page cache, where a container that starts now finds it. The rest of a large file goes
past it (open(2), ``O_DIRECT``): filling the cache with gibibytes costs more processor time than hashing them, and
pushes out what the node's pods work with. A disk that takes it slower than a network brings it, from the start or when
its volume's burst is used up, gets it through the cache after all: the pull does not wait for it then, as long as the
kernel lets dirty pages be, and who reads the file next finds it in memory.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import time

_CACHED = 32 << 20
"""Bytes at the beginning that stay in the page cache; most layers are smaller."""
_UNIT = 1 << 20
"""Bytes written at once past the cache: a multiple of any file system's block."""
_PIECE = 1 << 16
"""Bytes of one write(2) into the cache: more at once has the kernel look for larger folios, which takes it longer."""
_TRIAL = 32 << 20
"""Bytes after which it shows, each time, whether the disk is fast enough."""
_SLOW = 200e6
"""Bytes per second; a disk below that is slow."""


class DataFile:
    """Writes to ``fd``, an open and empty regular file, which stays the caller's."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer: memoryview | None = None
        self._filled = 0
        self._seconds = 0.0
        self._passed = 0
        self.size = 0

    def write(self, piece: bytes | memoryview) -> None:
        """Append ``piece``.

        :raises OSError: if the file system does not take it.
        """
        view = memoryview(piece)
        while view:
            taken = self._through_cache(view) if self._buffer is None else self._past_cache(view, self._buffer)
            self.size += taken
            view = view[taken:]

    def finish(self) -> None:
        """Write what is still kept back.

        :raises OSError: if the file system does not take it.
        """
        if self._buffer is not None:
            self._give_up_direct(self._buffer[: self._filled])

    def _through_cache(self, view: memoryview) -> int:
        most = _PIECE if self.size >= _CACHED else min(_PIECE, _CACHED - self.size)
        taken = os.write(self._fd, view[:most])
        if self.size + taken == _CACHED:
            self._begin_direct()
        return taken

    def _past_cache(self, view: memoryview, buffer: memoryview) -> int:
        taken = min(len(view), _UNIT - self._filled)
        buffer[self._filled : self._filled + taken] = view[:taken]
        self._filled += taken
        if self._filled == _UNIT:
            self._write_unit(buffer)
        return taken

    def _write_unit(self, buffer: memoryview) -> None:
        begin = time.monotonic()
        try:
            written = os.write(self._fd, buffer)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            written = 0  # this file system wants another alignment
        self._seconds += time.monotonic() - begin
        self._passed += written
        self._filled = 0
        if written < _UNIT or too_slow(self._passed, self._seconds):
            self._give_up_direct(buffer[written:])
        elif self._passed >= _TRIAL:
            # Counted anew each time: an average over the whole file would hide for long that a volume's burst is used
            # up.
            self._seconds, self._passed = 0.0, 0

    def _begin_direct(self) -> None:
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) | os.O_DIRECT)
        except OSError:
            return  # not every file system can; through the cache it goes everywhere
        # O_DIRECT wants aligned memory; a mapping begins at a page.
        self._buffer = memoryview(mmap.mmap(-1, _UNIT))

    def _give_up_direct(self, rest: memoryview) -> None:
        """Go on through the cache, with ``rest`` first."""
        fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~os.O_DIRECT)
        self._buffer = None
        while rest:
            rest = rest[os.write(self._fd, rest[:_PIECE]) :]


def too_slow(written: int, seconds: float) -> bool:
    """Tell whether a disk that took ``written`` bytes in ``seconds`` is too slow to be waited for."""
    return written >= _TRIAL and written < _SLOW * seconds
