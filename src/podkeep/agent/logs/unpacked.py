"""Reading a compressed file of a log, which a pod may have put there.

Owns: that each read takes a bounded part of the file, whatever is in it: ``gzip`` reads on until something comes out of
it, through a terabyte of zeros or millions of empty members. Does not own: what is read (``reader.py``), or compressing
it (``rotation.py``).
"""

from __future__ import annotations

import os
import zlib

_PACKED = 16 * 1024
_GZIP = 16 + zlib.MAX_WBITS


class UnpackedFile:
    """What a file in the gzip format unpacks to, from its start on.

    :param fd: the file, which is its own from now on.
    """

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "rb", buffering=0)
        self._member = zlib.decompressobj(_GZIP)
        self._packed = b""
        self._is_within = False
        """Whether a member has begun and not ended."""

    def fileno(self) -> int:
        return self._file.fileno()

    def tell(self) -> int:
        """Return how much of the file, packed, was unpacked."""
        return self._file.tell() - len(self._packed)

    def read(self, size: int) -> tuple[bytes, int]:
        """Return at most ``size`` bytes that come next, and how many of the file they took: both none at the end.

        :raises EOFError: where it is cut.
        :raises zlib.error: where it is not in the format, as what follows the last member; and so each time from then
            on.
        :raises OSError: if it cannot be read.
        """
        if not self._packed:
            self._packed = self._file.read(_PACKED)
        if not self._packed and not self._is_within:
            return b"", 0
        before = len(self._packed)
        unpacked = self._member.decompress(self._packed, size)
        self._packed, self._is_within = self._member.unconsumed_tail, True
        if self._member.eof:
            self._packed, self._is_within = self._member.unused_data, False
            self._member = zlib.decompressobj(_GZIP)
        if not before and not unpacked and self._is_within:
            raise EOFError("the compressed file ends within a member")
        return unpacked, before - len(self._packed)

    def close(self) -> None:
        self._file.close()
