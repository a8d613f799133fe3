"""A file system that forgets what was not synced: ``with mounted(directory) as disk: … disk.lose_power()``.

In memory, through FUSE. Data of a file survives when the file was synced, and with it the name that the file has then;
names that were changed otherwise survive when their directory was synced. Directories survive as they are made.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mfusepy

from podkeep.kernel.mount import mounts
from support.waiting import TIMEOUT_S

_TESTS = Path(__file__).parents[1]


_LOSE = "@lose-power"
"""Making a directory of this name loses the power, and fails."""


@dataclass(frozen=True)
class Disk:
    """A mounted one. ``pid``: of the process that serves it."""

    directory: Path
    pid: int

    def lose_power(self) -> None:
        """Forget what was not synced. Nobody may have a file of it open."""
        with suppress(FileExistsError):
            (self.directory / _LOSE).mkdir()


@contextmanager
def mounted(directory: Path) -> Iterator[Disk]:
    """Mount one at a directory, in the caller's mount namespace."""
    command = [sys.executable, "-m", "support.powerloss", str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(_TESTS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/", env=environment) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == b"ready\n", f"it ended with {server.wait(TIMEOUT_S)}"
            yield Disk(directory, server.pid)
        finally:
            mounts.unmount(directory, lazy=True)
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:  # another mount namespace still has it
                server.terminate()


class _Inode:
    def __init__(self, mode: int) -> None:
        self.mode, self.data, self.synced = mode, bytearray(), b""


class _Server(mfusepy.Operations):  # type: ignore[misc]
    use_ns = True

    def __init__(self) -> None:
        self._names = {"/": _Inode(stat.S_IFDIR | 0o755)}
        self._synced = dict(self._names)
        self._open: dict[int, _Inode] = {}
        self._last = 0

    def init(self, path: str) -> None:
        os.write(sys.stdout.fileno(), b"ready\n")

    def _lose(self) -> None:
        self._names = dict(self._synced)
        for inode in self._names.values():
            inode.data = bytearray(inode.synced)

    def _find(self, path: str) -> _Inode:
        if path not in self._names:
            raise mfusepy.FuseOSError(errno.ENOENT)
        return self._names[path]

    def _opened(self, inode: _Inode) -> int:
        self._last += 1
        self._open[self._last] = inode
        return self._last

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, int]:
        inode = self._open[fh] if fh in self._open else self._find(path or "")
        return {"st_mode": inode.mode, "st_nlink": 1, "st_size": len(inode.data)}

    def readdir(self, path: str, fh: int) -> list[str]:
        above = path.rstrip("/")
        found = (name for name in self._names if name.rpartition("/")[0] == above and name != "/")
        return [".", "..", *(name[len(above) + 1 :] for name in found)]

    def mkdir(self, path: str, mode: int) -> None:
        if path == f"/{_LOSE}":
            self._lose()
            raise mfusepy.FuseOSError(errno.EEXIST)
        self._names[path] = self._synced[path] = _Inode(stat.S_IFDIR | mode)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._names[path] = _Inode(stat.S_IFREG | stat.S_IMODE(mode))
        return self._opened(self._names[path])

    def open(self, path: str, flags: int) -> int:
        return self._opened(self._find(path))

    def release(self, path: str | None, fh: int) -> None:
        del self._open[fh]

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        return bytes(self._open[fh].data[offset : offset + size])

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        inode = self._open[fh]
        if offset > len(inode.data):
            inode.data.extend(bytes(offset - len(inode.data)))
        inode.data[offset : offset + len(data)] = data
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        inode = self._open[fh] if fh in self._open else self._find(path)
        inode.data = inode.data[:length] + bytes(max(0, length - len(inode.data)))

    def fsync(self, path: str | None, datasync: int, fh: int) -> None:
        inode = self._open[fh]
        inode.synced = bytes(inode.data)
        self._synced |= {name: found for name, found in self._names.items() if found is inode}

    def fsyncdir(self, path: str, datasync: int, fh: int) -> None:
        above = path.rstrip("/")
        kept = {name: inode for name, inode in self._synced.items() if name.rpartition("/")[0] != above or name == "/"}
        now = {name: inode for name, inode in self._names.items() if name.rpartition("/")[0] == above}
        self._synced = kept | now

    def rename(self, old: str, new: str) -> None:
        self._names[new] = self._names.pop(old)

    def unlink(self, path: str) -> None:
        self._find(path)
        del self._names[path]

    rmdir = unlink

    def chmod(self, path: str, mode: int) -> None:
        inode = self._find(path)
        inode.mode = stat.S_IFMT(inode.mode) | stat.S_IMODE(mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        """Everything is root's."""

    def utimens(self, path: str, times: Any = None) -> None:
        """There are no times."""

    def statfs(self, path: str) -> dict[str, int]:
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": 1 << 20, "f_bfree": 1 << 19, "f_bavail": 1 << 19}


_OPTIONS = {"hard_remove": True, "attr_timeout": 0, "entry_timeout": 0, "negative_timeout": 0}

if __name__ == "__main__":
    mfusepy.FUSE(_Server(), sys.argv[1], foreground=True, nothreads=True, fsname="powerloss", **_OPTIONS)
