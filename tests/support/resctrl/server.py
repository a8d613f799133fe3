"""The program that serves a stand-in for resctrl: ``python -m support.resctrl.server DIRECTORY HARDWARE``.

DIRECTORY is the mount point, HARDWARE is JSON. It says "ready" when the file system is mounted, and ends when that is
unmounted. Nothing is cached, neither here nor in the kernel. With extended attributes a test says what the machine
would know, or makes it fail: ``user.count`` of a file in ``mon_data`` is what it reads from now on, ``user.fail`` of a
file or directory is ``OPERATION ERRNO TIMES``.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mfusepy
import msgspec

from podkeep.kernel.process import confine
from support.resctrl.groups import Groups
from support.resctrl.hardware import Hardware
from support.resctrl.tree import Directory, File, Tree

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class _Open:
    """An open file; what it reads is made when it is read from its beginning, as with the kernel's seq_file."""

    path: str
    file: File
    inode: int
    content: bytes = b""


@dataclass
class _Failures:
    """What a test asked to fail."""

    planned: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """By path and operation: the errors of the next ones."""

    def check(self, path: str, operation: str) -> None:
        """Fail if that is planned."""
        errors = self.planned.get((path, operation))
        if errors:
            raise mfusepy.FuseOSError(errors.pop())


class Server(mfusepy.Operations):  # type: ignore[misc]
    """The calls of libfuse."""

    use_ns = True
    flag_nopath = True
    flag_nullpath_ok = True

    def __init__(self, hardware: Hardware, ready: Callable[[], None]) -> None:
        self._tree = Tree(Groups(hardware))
        self._ready = ready
        self._open: dict[int, _Open] = {}
        self._listed: dict[int, str] = {}
        self._last = 0
        self._inodes: dict[tuple[int, str], int] = {}
        self._failures = _Failures()

    def init(self, path: str) -> None:
        """Say that the file system is there."""
        self._ready()

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, int]:
        """Return the attributes of a path, or of an open file."""
        if path is None:
            assert fh is not None
            opened = self._open[fh]
            return {"st_mode": opened.file.mode, "st_nlink": 1, "st_ino": opened.inode}
        found = self._tree.find(path)
        links = 2 if isinstance(found, Directory) else 1
        return {"st_mode": found.mode, "st_nlink": links, "st_ino": self._inode(path)}

    def opendir(self, path: str) -> int:
        """Open a directory."""
        self._last += 1
        self._listed[self._last] = path
        return self._last

    def readdir(self, path: str | None, fh: int) -> list[tuple[str, dict[str, int], int]]:
        """List a directory; who reads it leaves out what has no number."""
        above = self._listed[fh].rstrip("/")
        found = self._tree.find(above)
        assert isinstance(found, Directory)
        here = {"st_mode": found.mode, "st_ino": self._inode(above)}
        entries = [(".", here, 0), ("..", here, 0)]
        for name, entry in found.entries.items():
            entries.append((name, {"st_mode": entry.mode, "st_ino": self._inode(f"{above}/{name}")}, 0))
        return entries

    def releasedir(self, path: str | None, fh: int) -> None:
        """Close a directory."""
        del self._listed[fh]

    def mkdir(self, path: str, mode: int) -> None:
        """Make a group."""
        parent, _, name = path.rpartition("/")
        self._failures.check(parent or "/", "mkdir")
        self._tree.make(parent, name)

    def rmdir(self, path: str) -> None:
        """Remove a group."""
        self._failures.check(path, "rmdir")
        parent, _, name = path.rpartition("/")
        self._tree.remove(parent, name)
        for key in [key for key in self._failures.planned if key[0].startswith(f"{path}/")]:
            del self._failures.planned[key]

    def open(self, path: str, flags: int) -> int:
        """Open a file; who may is decided by the kernel, but for root, who cannot write everything either."""
        found = self._tree.find(path)
        assert isinstance(found, File)
        if found.write is None and flags & os.O_ACCMODE != os.O_RDONLY:
            raise mfusepy.FuseOSError(errno.EACCES)
        self._last += 1
        self._open[self._last] = _Open(path, found, self._inode(path))
        return self._last

    def release(self, path: str | None, fh: int) -> None:
        """Close a file."""
        del self._open[fh]

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        """Read from a file."""
        opened = self._live(fh)
        self._failures.check(opened.path, "read")
        if offset == 0:
            opened.content = opened.file.read().encode()
        return opened.content[offset : offset + size]

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        """Write a command; the kernel takes no more than a page."""
        opened = self._live(fh)
        if len(data) > _PAGE:
            raise mfusepy.FuseOSError(errno.E2BIG)
        assert opened.file.write is not None
        self._failures.check(opened.path, "write")
        text = data.split(b"\0")[0].decode(errors="surrogateescape")
        opened.file.write(text, mfusepy.fuse_get_context()[2])
        return len(data)

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> None:
        """Do nothing: files have no length."""

    def create(self, path: str, mode: int) -> int:
        """Refuse: only groups can be made."""
        raise mfusepy.FuseOSError(errno.EACCES)

    def unlink(self, path: str) -> None:
        """Refuse: files come and go with their group."""
        raise mfusepy.FuseOSError(errno.EPERM)

    def rename(self, old: str, new: str) -> None:
        """Move a monitoring group."""
        self._failures.check(old, "rename")
        self._tree.move(old, new)

    def setxattr(self, path: str, name: str, value: bytes, options: int, position: int = 0) -> None:
        """Take what a test says."""
        found = self._tree.find(path)
        if name == "user.fail":
            operation, number, times = value.decode().split()
            self._failures.planned[path, operation] = [int(number)] * int(times)
        elif name == "user.count" and isinstance(found, File) and found.counter is not None and found.group is not None:
            found.group.counters[found.counter] = value.decode()
        else:
            raise mfusepy.FuseOSError(errno.EOPNOTSUPP)

    def _inode(self, path: str) -> int:
        """Return a number that nothing else ever has: of a group, also after it was removed and made again."""
        return self._inodes.setdefault(self._tree.identity(path), len(self._inodes) + 1)

    def _live(self, fh: int) -> _Open:
        opened = self._open[fh]
        if opened.file.group is not None and opened.file.group.removed:
            raise mfusepy.FuseOSError(errno.ENODEV)
        return opened


def main(arguments: list[str]) -> None:
    """Serve until the file system is unmounted."""
    directory, hardware = arguments
    confine.die_with_parent()

    def ready() -> None:
        os.write(sys.stdout.fileno(), b"ready\n")

    options: dict[str, Any] = {"fsname": "resctrl", "allow_other": True, "default_permissions": True}
    options |= {"attr_timeout": 0, "entry_timeout": 0, "negative_timeout": 0}
    server = Server(msgspec.json.decode(hardware, type=Hardware), ready)
    mfusepy.FUSE(server, directory, foreground=True, nothreads=True, direct_io=True, use_ino=True, **options)


if __name__ == "__main__":
    main(sys.argv[1:])
