"""A file that the caller of a request has open, opened again by its process and descriptor.

So an archive need not lie where the runtime sees it, may come from a pipe, and passes through no message. Used by the
command line, which describes what it has, and by the worker, which opens it. What ``/proc/<pid>/fd`` leads to is
compared with the description: another PID namespace, or a process that has ended, must not give another file.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

from podkeep.base.errors import FailedPrecondition, PodkeepError, ResourceExhausted


class OpenFile(msgspec.Struct, frozen=True, kw_only=True):
    """Descriptor ``descriptor`` of process ``pid``; ``name`` is what messages call it."""

    pid: int
    descriptor: int
    device: int
    inode: int
    name: str


def describe(descriptor: int, name: str) -> OpenFile:
    """Describe a descriptor of this process, which must stay open until the request is answered."""
    found = os.fstat(descriptor)
    return OpenFile(pid=os.getpid(), descriptor=descriptor, device=found.st_dev, inode=found.st_ino, name=name)


def open_again(file: OpenFile, flags: int) -> int:
    """Open a described file with ``flags`` and return a blocking descriptor at offset 0.

    :raises FailedPrecondition: if it is not there or cannot be opened so.
    """
    name = file.name
    try:
        # A pipe whose other end is closed already would never open; what is in it is to be read nevertheless.
        fd = os.open(f"/proc/{file.pid}/fd/{file.descriptor}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise FailedPrecondition(
            f"{name}: cannot be opened through process {file.pid}: {error.strerror}",
            hint="the command must run in the PID namespace of the runtime",
        ) from error
    found = os.fstat(fd)
    # In another PID namespace the same numbers are another process's.
    if (found.st_dev, found.st_ino) != (file.device, file.inode):
        os.close(fd)
        raise FailedPrecondition(
            f"{name}: descriptor {file.descriptor} of process {file.pid} is open on something else",
            hint="the command must run in the PID namespace of the runtime",
        )
    if not flags & os.O_PATH:
        os.set_blocking(fd, True)
    return fd


def open_directory(file: OpenFile) -> int | None:
    """Open a described file if it is a directory; None if it is something else.

    :raises FailedPrecondition: if it is not there.
    """
    fd = open_again(file, os.O_PATH)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            return None
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    finally:
        os.close(fd)


def remove_directory(fd: int) -> None:
    """Remove the directory that ``fd`` is open on, wherever it is by now, with all that is in it.

    :raises OSError: if the file system refuses.
    """
    from podkeep.kernel.files.removal import remove_entry  # nothing that a worker needs: its start-up time counts

    # By descriptor: the directory may have been moved since, and another one may have its name.
    parent = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    try:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        with suppress(FileNotFoundError):  # its owner removed it first
            if os.path.samestat(os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(fd)):
                remove_entry(parent, name)
    finally:
        os.close(parent)


def failure(error: OSError, name: str, doing: str) -> PodkeepError:
    """Return the error that says why reading or writing ``name`` failed."""
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ResourceExhausted(f"{name}: {doing}: {why}", hint="free space there, or choose another place")
    return FailedPrecondition(f"{name}: {doing}: {why}")
