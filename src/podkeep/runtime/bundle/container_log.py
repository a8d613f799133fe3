"""Where a container's output is written, and having it written to a new file.

Owns: the way to a log, and ReopenContainerLog's part with conmon, which writes it. Does not own: the format of logs,
which is conmon's, or whether the container runs (``containers.py``).

conmon opens its log by a path when the container is made, and ``<path>.tmp`` when it is opened anew. A pod with a
hostPath volume there may exchange either of them for a link at that moment. Therefore the path that conmon has leads
through a copy of the directory's mount, beside the bundle, on which the kernel follows no link and opens no device. A
descriptor of it would do, too, but conmon leaves its descriptors to the OCI runtime, and a working directory of
``/proc/self/fd/N`` would bring the container to the logs (as in CVE-2024-21626). The machine's own links are followed
as far as the directory above a pod's logs, and none from there on.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from podkeep.base.concurrency.tasks import acquired, on_thread
from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.files import openat
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.mounts import MountAttr
from podkeep.kernel.process.procfs import ProcessId
from podkeep.runtime.model.records import ContainerConfig, Sandbox

TIMEOUT_S = 5.0
_PAUSE_S = 0.01
_CONFINED = MountAttr.NOSYMFOLLOW | MountAttr.NODEV | MountAttr.NOSUID | MountAttr.NOEXEC


class LogFile(FrozenStruct, kw_only=True):
    """The log of a container: ``path`` below ``directory``, that of the pod's logs."""

    directory: Path
    path: Path

    def __str__(self) -> str:
        return str(self.directory / self.path)

    @property
    def name(self) -> str:
        return self.path.name

    def open_directory(self, *, make: bool = False) -> int:
        """Open (``O_PATH``) the directory that the log is in; the caller closes it.

        :param make: make what is missing of it.
        :raises FailedPrecondition: if there is a link, or something else than a directory, on the way.
        :raises OSError: if it is missing, or cannot be made or opened.
        """
        above = self.directory.parent
        if make:
            above.mkdir(mode=0o755, parents=True, exist_ok=True)
        return openat.open_below(above, filter(None, (self.directory.name, *self.path.parent.parts)), make=make)


def log_file(sandbox: Sandbox, config: ContainerConfig) -> LogFile | None:
    """Return where a container's output goes, or None if nobody asked for a log."""
    if not sandbox.config.log_directory or not config.log_path:
        return None
    return LogFile(directory=Path(os.path.normpath(sandbox.config.log_directory)), path=Path(config.log_path))


def prepare(log: LogFile) -> tuple[int, bool]:
    """Make the directory of a log. Return a detached mount of it, and whether the log itself is still to be made.

    The caller closes the descriptor. In the mount no link is followed, whoever puts it there, and no device is opened.

    :raises InvalidArgument: if something else than a file is there: conmon would end, or wait for a reader of a pipe.
    :raises FailedPrecondition: if there is a link on the way.
    :raises OSError: if the directory cannot be made.
    """
    with openat.closing(log.open_directory(make=True)) as directory:
        found = _stat(directory, log.name)
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise InvalidArgument(f"config.log_path: '{log}' is there, and is not a regular file")
        return mounts.clone_tree(directory, attrs=_CONFINED), found is None


def remove_empty(log: LogFile) -> None:
    """Remove a log that nothing was written to.

    The kubelet numbers attempts by the logs that it finds and tries again for ever, each time with a new name.
    """
    with suppress(FileNotFoundError, FailedPrecondition), openat.closing(log.open_directory()) as directory:
        found = _stat(directory, log.name)
        if found is not None and stat.S_ISREG(found.st_mode) and found.st_size == 0:
            os.unlink(log.name, dir_fd=directory)


async def reopen(log: LogFile, monitor: ProcessId | None, control: Path) -> None:
    """Have conmon open the log anew, after somebody moved it away, and wait until it is there.

    :param monitor: conmon.
    :param control: the pipe that it reads.
    :raises FailedPrecondition: if conmon does not answer, or something is in its way.
    """
    try:
        # On threads, to their ends: the directory may be of any file system, and one that does not answer keeps
        # nobody waiting but who asked.
        with openat.closing(await acquired(log.open_directory, os.close)) as directory:
            await _reopen(directory, log, monitor, control)
    except OSError as error:
        raise FailedPrecondition(f"the directory of {log} cannot be used: {error.strerror}") from error


async def _reopen(directory: int, log: LogFile, monitor: ProcessId | None, control: Path) -> None:
    before = await on_thread(partial(_stat, directory, log.name))
    if before is not None and await on_thread(partial(_writes_to, monitor, before)):
        # Nobody moved it away. conmon would put an empty file in its place.
        return
    # Before conmon is told: it opens that file, and ends if it cannot.
    await on_thread(partial(_make_way, directory, log))
    # conmon's message for "open the log anew"; the two numbers have no meaning with it.
    _tell_conmon(control, b"2 0 0\n")
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        now = await on_thread(partial(_stat, directory, log.name))
        if now is not None and (before is None or not os.path.samestat(now, before)):
            return
        if time.monotonic() > deadline:
            raise FailedPrecondition(f"conmon did not reopen {log}")
        await asyncio.sleep(_PAUSE_S)


def _make_way(directory: int, log: LogFile) -> None:
    """Make the file that conmon writes to before it renames it: it ends where it cannot make one, on a full disk."""
    name = f"{log.name}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
        os.close(os.open(name, flags, 0o600, dir_fd=directory))
    except OSError as error:
        raise FailedPrecondition(f"{log}.tmp is in the way of a new log: {error.strerror}") from error


def _tell_conmon(control: Path, message: bytes) -> None:
    """Write to conmon's control pipe without waiting for a reader.

    :raises FailedPrecondition: if conmon is gone.
    """
    try:
        # O_NONBLOCK: opening a FIFO that nobody reads would wait; so it fails, with ENXIO.
        fd = os.open(control, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise FailedPrecondition(f"conmon does not read {control}: {error.strerror}") from error
    try:
        os.write(fd, message)
    except OSError as error:
        # Full, for example: conmon waits for who is attached and does not read.
        raise FailedPrecondition(
            f"conmon takes no message in {control}: {error.strerror}", hint="does somebody attached not read?"
        ) from error
    finally:
        os.close(fd)


def _writes_to(monitor: ProcessId | None, wanted: os.stat_result) -> bool:
    """Return whether a process has a file open."""
    if monitor is None:
        return False
    try:
        descriptors = list(Path(f"/proc/{monitor.pid}/fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        with suppress(OSError):  # closed while we looked
            if os.path.samestat(descriptor.stat(), wanted):
                return True
    return False


def _stat(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name or ".", dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
