"""Replacing a file so that a reader, or a machine that loses power, sees the old content or the new, never both."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, data: bytes, *, mode: int = 0o600, is_last: bool = True) -> None:
    """Replace ``path`` with ``data`` durably: write beside it, sync the file, rename, sync the directory.

    :param mode: permission bits of the new file.
    :param is_last: the caller writes nothing more into the directory for now. If it does, what comes last syncs the
        directory for all: each sync is a few milliseconds of a disk.
    :raises OSError: if the directory is missing, read-only or full; the old file is then untouched.
    """
    # Most verbs only read such files, and a tenth of what a verb imports would be for this.
    import tempfile

    # In the same directory: rename(2) replaces a file only within one file system.
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            file.flush()
            # Before the rename: some file systems write the new name to the disk before the content, and a crash leaves
            # it empty.
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    # The rename itself is on the disk only with its directory (fsync(2), NOTES).
    if is_last:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames and unlinks in ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
