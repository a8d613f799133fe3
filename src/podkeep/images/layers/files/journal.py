"""What is to be done to directories when a layer is complete, written down in a nameless file: no limit, no memory.

Used by ``tree`` only.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import msgspec

from podkeep.kernel.files.openat import write_all

_RECORD = struct.Struct("<q?HI")
_NAME = ".wh..wh..journal"
"""No entry can have it: names like this are passed over."""
_BUFFER = 1 << 18


class Note(msgspec.Struct, frozen=True):
    """A directory's own path, its time in nanoseconds, whether it was made just then, and its default ACL if any."""

    path: bytes
    mtime: int
    fresh: bool
    default_acl: bytes


class Journal:
    """Notes in the order they were taken. ``any_acl`` tells whether one has an ACL."""

    def __init__(self, root: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(_NAME, flags, 0o600, dir_fd=root)
        # Nameless from here on: no entry can open it, and a kill leaves nothing in the tree.
        os.unlink(_NAME, dir_fd=root)
        self._pending = bytearray()
        self.any_acl = False

    def note(self, path: bytes, mtime: int, *, fresh: bool, default_acl: bytes = b"") -> None:
        """Take a note.

        :raises OSError: if the disk is full.
        """
        self.any_acl = self.any_acl or bool(default_acl)
        self._pending += _RECORD.pack(mtime, fresh, len(path), len(default_acl)) + path + default_acl
        if len(self._pending) >= _BUFFER:
            self._flush()

    def notes(self) -> Iterator[Note]:
        """Yield every note.

        :raises OSError: if the disk fails.
        """
        self._flush()
        os.lseek(self._fd, 0, os.SEEK_SET)
        data = bytearray()
        while piece := os.read(self._fd, _BUFFER):
            data += piece
            position = 0
            while position + _RECORD.size <= len(data):
                mtime, fresh, length, acl = _RECORD.unpack_from(data, position)
                end = position + _RECORD.size + length + acl
                if end > len(data):
                    break
                path = bytes(data[position + _RECORD.size : end - acl])
                yield Note(path, mtime, fresh, bytes(data[end - acl : end]))
                position = end
            del data[:position]

    def close(self) -> None:
        os.close(self._fd)

    def _flush(self) -> None:
        write_all(self._fd, self._pending)
        self._pending = bytearray()
