"""Logs of containers within bounds, as a kubelet keeps them: rotated by size, compressed, the oldest removed.

Owns: which file is rotated, compressed (``0.log.20260131-080000.gz``) and removed when. Does not own: when a log is
looked at (``node_logs.py``), the way to it (``files.py``), the names of rotated files (``base.log_names``), what writes
a log (the runtime, told by CRI's ReopenContainerLog), or reading one (``cli``).
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import stat
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from podkeep.agent.logs import files as log_files
from podkeep.base.concurrency.tasks import Tasks, acquired, finished, on_thread
from podkeep.base.errors import PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.log_names import is_rotated, numbered, rotated_name
from podkeep.kernel.files import openat

log = logging.getLogger(__name__)

_BLOCK = 256 * 1024
_COMPRESSED, _UNFINISHED = ".gz", ".tmp"
_MOST = 10_000
"""Rotated files of a log that are looked at: whoever writes to the directory may have made millions of them."""


class RotatedLog(FrozenStruct, kw_only=True):
    """A file that was a container's log. ``stem`` is its name without ``.gz``."""

    stem: str
    compressed: bool
    device: int
    inode: int
    mtime_ns: int

    @property
    def name(self) -> str:
        return self.stem + (_COMPRESSED if self.compressed else "")

    def is_of(self, info: os.stat_result) -> bool:
        """Say whether it is, or was made of, the file of ``info``: compression keeps the time of the last write."""
        same = (self.device, self.inode) == (info.st_dev, info.st_ino)
        return same or (self.compressed and self.mtime_ns == info.st_mtime_ns)


def rotated(path: Path) -> list[RotatedLog]:
    """Return the rotated files of the log ``path``, oldest first: not links or directories that have such a name.

    Of very many, only some: they are there again when these have been removed.

    :raises FailedPrecondition: if there is a link on the way to the directory.
    :raises OSError: if the directory cannot be read; one that is gone has none.
    """
    with suppress(FileNotFoundError), log_files.directory_of(path) as directory:
        return _rotated(directory, path.name)
    return []


def _rotated(directory: int, name: str) -> list[RotatedLog]:
    found: dict[str, RotatedLog] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            stem = entry.name.removesuffix(_COMPRESSED)
            if not is_rotated(stem, name):
                continue
            compressed = stem != entry.name
            if compressed and stem in found:
                continue  # compressed, and not removed yet
            with suppress(FileNotFoundError):
                info = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(info.st_mode):
                    continue
                found[stem] = RotatedLog(
                    stem=stem,
                    compressed=compressed,
                    device=info.st_dev,
                    inode=info.st_ino,
                    mtime_ns=info.st_mtime_ns,
                )
            if len(found) == _MOST:
                break
    return [found[stem] for stem in sorted(found)]


async def remove(path: Path) -> None:
    """Remove the log ``path`` of a container that is removed next, and its rotated files; what stays is logged."""

    def all_files() -> None:
        with suppress(FileNotFoundError), log_files.directory_of(path) as directory:
            _remove_all(directory, _rotated(directory, path.name))
            _unlink(directory, path.name)

    # Before the container: its name is the only thing that leads to the files.
    try:
        await asyncio.to_thread(all_files)
    except (OSError, PodkeepError) as error:
        log.warning("the log %s of a container that is removed stays: %s", path, error)


def _remove_all(directory: int, files: Iterable[RotatedLog]) -> None:
    for file in files:
        for name in (file.stem, f"{file.stem}{_COMPRESSED}"):
            _unlink(directory, name)


def _unlink(directory: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def next_name(path: Path, others: Iterable[RotatedLog], now: datetime) -> str:
    """Return what ``path`` is renamed to; it comes after ``others``, whatever was done to the clock."""
    name = rotated_name(path.name, now)
    last = max((other.stem for other in others), default="")
    if name > last:
        return name
    base, _, count = last.removeprefix(f"{path.name}.").partition(".")
    return numbered(f"{path.name}.{base}", int(count or 0) + 1)


class LogRotation:
    """Rotates logs of containers.

    :param reopen: has the runtime write the log of a container, by its ID, to a new file.
    :param max_size: bytes after which a log is rotated.
    :param max_files: how many files a container's log has at most.
    """

    def __init__(self, reopen: Callable[[str], Awaitable[object]], *, max_size: int, max_files: int) -> None:
        self._reopen = reopen
        self._max_size = max_size
        self._max_files = max_files
        self._compressing: set[Path] = set()
        self._tasks = Tasks("compressing a log")
        self._ending = threading.Event()

    async def close(self) -> None:
        """Give up what is being compressed."""
        self._ending.set()
        await self._tasks.close()

    async def look(self, container: str, path: Path) -> None:
        """Rotate the log of one container if it is large. A failure is logged: the container goes on."""
        try:
            if await asyncio.to_thread(log_files.size, path) < self._max_size:
                return
            await self._rotate(container, path)
            await asyncio.to_thread(self._remove_excess, path)
        except (OSError, PodkeepError) as error:
            log.warning("the log of container %s cannot be rotated: %s", container, error)
            return
        if path not in self._compressing:
            self._compressing.add(path)
            self._tasks.start(self._compress_beside(path))

    async def _rotate(self, container: str, path: Path) -> None:
        move_back = partial(_move_back, path)
        renamed = await acquired(partial(_move_aside, path), move_back)
        # Whoever writes the log has it open and goes on in the renamed file, until the runtime opens the old name anew:
        # nothing is lost.
        try:
            await self._reopen(container)
        except PodkeepError as error:
            # A container that has just ended has nobody to open its log anew.
            log.info("container %s: %s", container, error.message)
        finally:
            await on_thread(partial(move_back, renamed))  # also when the pod ends meanwhile

    def _remove_excess(self, path: Path) -> None:
        """Remove the oldest files, as many as there are too many beside the one that is written."""
        with log_files.directory_of(path) as directory:
            _remove_all(directory, _rotated(directory, path.name)[: 1 - self._max_files])

    async def _compress_beside(self, path: Path) -> None:
        work = asyncio.ensure_future(asyncio.to_thread(self._compress, path))
        try:
            await finished(work)
        finally:
            self._compressing.discard(path)
        work.result()

    def _compress(self, path: Path) -> None:
        """Compress what was rotated, but for the newest file, which a reader may still be at (kubelet)."""
        try:
            with log_files.directory_of(path) as directory:
                for file in _rotated(directory, path.name)[:-1]:
                    if not file.compressed and not self._ending.is_set():
                        self._compress_one(directory, file.stem)
        except (OSError, PodkeepError) as error:
            log.warning("logs beside %s cannot be compressed: %s", path, error)

    def _compress_one(self, directory: int, name: str) -> None:
        unfinished = f"{name}{_UNFINISHED}"
        _unlink(directory, unfinished)
        opened = openat.open_in(directory, name)
        if opened is None:
            return
        with os.fdopen(opened, "rb") as source:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            info = os.fstat(source.fileno())
            try:
                made = os.open(unfinished, flags, info.st_mode & 0o777, dir_fd=directory)
                with os.fdopen(made, "wb") as plain:
                    with gzip.GzipFile(fileobj=plain, mode="wb", filename="", compresslevel=1) as target:
                        while block := source.read(_BLOCK):
                            # Without a name it was removed meanwhile (_remove_excess): what is compressed of it would
                            # come back under a new one.
                            if self._ending.is_set() or not os.fstat(source.fileno()).st_nlink:
                                return
                            target.write(block)
                    plain.flush()
                    # Not by its name, at which somebody may have put a link by now.
                    os.utime(plain.fileno(), ns=(info.st_atime_ns, info.st_mtime_ns))
                # First the compressed file, then the plain one goes: a reader that lists them finds one of the two at
                # any moment.
                if os.fstat(source.fileno()).st_nlink:
                    _rename(directory, unfinished, f"{name}{_COMPRESSED}")
                    _unlink(directory, name)
            finally:
                _unlink(directory, unfinished)


def _move_aside(path: Path) -> str:
    """Rename a log to the next name of a rotated one, and return that."""
    with log_files.directory_of(path) as directory:
        renamed = next_name(path, _rotated(directory, path.name), datetime.now(UTC))
        _rename(directory, path.name, renamed)
    return renamed


def _move_back(path: Path, renamed: str) -> None:
    with log_files.directory_of(path) as directory:
        try:
            openat.status(directory, path.name)
        except FileNotFoundError:
            _rename(directory, renamed, path.name)


def _rename(directory: int, name: str, to: str) -> None:
    os.rename(name, to, src_dir_fd=directory, dst_dir_fd=directory)
