"""Where a container's output is written, and having it written to a new file.

Owns: ReopenContainerLog's part with conmon, which writes the log. Does not own: the format of logs, which is conmon's,
or whether the container runs (``containers.py``).
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import FailedPrecondition
from podkeep.kernel.procfs import ProcessId
from podkeep.runtime.records import ContainerConfig, Sandbox

PATIENCE_S = 5.0
_PAUSE_S = 0.01


def log_file(sandbox: Sandbox, config: ContainerConfig) -> Path | None:
    """Return where a container's output goes, or None if nobody asked for a log."""
    if not sandbox.config.log_directory or not config.log_path:
        return None
    return Path(sandbox.config.log_directory, config.log_path)


async def reopen(path: Path, monitor: ProcessId | None, control: Path) -> None:
    """Have conmon open the log anew, after somebody moved it away, and wait until it is there.

    :param monitor: conmon.
    :param control: the pipe that it reads.
    :raises FailedPrecondition: if conmon does not answer.
    """
    before = _inode(path)
    if before is not None and await asyncio.to_thread(_writes_to, monitor, path):
        # Nobody moved it away. conmon would put an empty file in its place.
        return
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
