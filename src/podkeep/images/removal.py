"""Removing trees of any depth that somebody hostile may have made.

Neither Python's recursion limit nor the number of open files bounds the depth here, as they do for ``shutil.rmtree``:
a directory's subdirectories are lifted to the top before it is removed. Symbolic links are removed, never followed.
"""

from __future__ import annotations

import os
import stat
from itertools import count


def remove_entry(parent: int, name: bytes | str) -> None:
    """Remove ``name`` in the directory behind descriptor ``parent``, whatever it is; a missing one is no error.

    :raises OSError: if the file system refuses.
    """
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return
        top = _open(parent, name)
    except FileNotFoundError:
        return
    try:
        _empty(top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def remove_path(path: str | os.PathLike[str]) -> None:
    """Remove the tree at ``path``; a missing one is no error.

    :raises OSError: if the file system refuses.
    """
    directory, name = os.path.split(os.fspath(path))
    try:
        parent = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        remove_entry(parent, name)
    finally:
        os.close(parent)


def _empty(top: int) -> None:
    fresh = count()
    while True:
        directories = _unlink_files(top)
        if not directories:
            return
        for name in directories:
            inner = _open(top, name)
            try:
                for nested in _unlink_files(inner):
                    os.rename(nested, _unused(top, fresh), src_dir_fd=inner, dst_dir_fd=top)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)


def _unlink_files(directory: int) -> list[str]:
    """Remove what is not a directory; return the names of those that are."""
    directories = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=directory)
    return directories


def _unused(top: int, fresh: count[int]) -> str:
    while True:
        name = f".lifted-{next(fresh)}"
        try:
            os.stat(name, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return name


def _open(parent: int, name: bytes | str) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
