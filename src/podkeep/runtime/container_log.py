"""Where a container's output is written, and having it written to a new file.

Owns: ReopenContainerLog's part with conmon, which writes the log. Does not own: the format of logs, which is conmon's,
or whether the container runs (``containers.py``).
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.kernel.procfs import ProcessId
from podkeep.runtime.records import ContainerConfig, Sandbox

PATIENCE_S = 5.0
_PAUSE_S = 0.01


def log_file(sandbox: Sandbox, config: ContainerConfig) -> Path | None:
    """Return where a container's output goes, or None if nobody asked for a log."""
    if not sandbox.config.log_directory or not config.log_path:
        return None
    return Path(sandbox.config.log_directory, config.log_path)


def prepare(path: Path) -> bool:
    """Make the directory of a log, and return whether the log itself is still to be made.

    :raises InvalidArgument: if something else than a file is there: conmon would end, wait for a reader of a pipe, or
        write where a link leads.
    :raises OSError: if the directory cannot be made.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        found = path.lstat()
    except FileNotFoundError:
        return True
    if not stat.S_ISREG(found.st_mode):
        raise InvalidArgument(f"config.log_path: {str(path)!r} is there, and is not a regular file")
    return False


async def reopen(path: Path, monitor: ProcessId | None, control: Path) -> None:
    """Have conmon open the log anew, after somebody moved it away, and wait until it is there.

    :param monitor: conmon.
    :param control: the pipe that it reads.
    :raises FailedPrecondition: if conmon does not answer, or something is in its way.
    """
    before = _inode(path)
    if before is not None and await asyncio.to_thread(_writes_to, monitor, path):
        # Nobody moved it away. conmon would put an empty file in its place.
        return
    try:
        # conmon writes to a file of this name before it renames it, and would empty what a link there leads to.
        path.with_name(f"{path.name}.tmp").unlink(missing_ok=True)
    except OSError as error:
        raise FailedPrecondition(f"{path}.tmp is in the way of a new log: {error.strerror}") from error
    _tell_conmon(control, b"2 0 0\n")
    deadline = time.monotonic() + PATIENCE_S
    while _inode(path) is None and before is None:
        if time.monotonic() > deadline:
            raise FailedPrecondition(f"conmon did not reopen {path}")
        await asyncio.sleep(_PAUSE_S)


def _tell_conmon(control: Path, message: bytes) -> None:
    """Write to conmon's control pipe without waiting for a reader.

    :raises FailedPrecondition: if conmon is gone.
    """
    try:
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


def _writes_to(monitor: ProcessId | None, path: Path) -> bool:
    """Return whether a process has the file at ``path`` open."""
    if monitor is None:
        return False
    try:
        wanted = path.stat()
        descriptors = list(Path(f"/proc/{monitor.pid}/fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        with suppress(OSError):  # closed while we looked
            if os.path.samestat(descriptor.stat(), wanted):
                return True
    return False


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
