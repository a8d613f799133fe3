"""The files of a container's log, in directories that a pod may have exchanged.

Owns: the way to ``<pod logs>/<pod>/<container>/<attempt>.log`` and what is beside it. What is above the pod's directory
is the machine's, links included. From there on a pod with a hostPath volume may put a link in the place of anything, at
any time: both directories are opened without following one, each time anew, and what is in them is reached by that
descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from podkeep.base.errors import FailedPrecondition
from podkeep.kernel.files import openat

_UNDERSCORES = 2
"""In the name of a pod's directory: ``<namespace>_<name>_<uid>``, none of which has one (kubelet)."""


def open_directory(directory: Path) -> int:
    """Open the directory that the logs of a container are in, to list it and to work in it; the caller closes it.

    :raises FailedPrecondition: if it or that of the pod is a link, or something else than a directory.
    :raises OSError: if it is missing, or cannot be opened.
    """
    pod = directory.parent
    if pod.name.count("_") < _UNDERSCORES:
        return openat.open_directory(directory)  # of a container that no agent has made
    return openat.open_below(pod.parent, (pod.name, directory.name), flags=os.O_RDONLY)


@contextmanager
def directory_of(log: Path) -> Iterator[int]:
    """Have the directory of a log open.

    :raises FailedPrecondition: as :func:`open_directory`.
    :raises OSError: as :func:`open_directory`.
    """
    with openat.closing(open_directory(log.parent)) as directory:
        yield directory


def open_log(log: Path) -> int | None:
    """Open a log, or what was one, as :func:`openat.open_in` does.

    :raises FailedPrecondition: as :func:`open_directory`.
    :raises OSError: if it cannot be read.
    """
    with suppress(FileNotFoundError), directory_of(log) as directory:
        return openat.open_in(directory, log.name)
    return None


def status(log: Path) -> os.stat_result | None:
    """Return what is at the path of a log, a link itself; None if nothing is.

    :raises FailedPrecondition: as :func:`open_directory`.
    :raises OSError: if it cannot be asked.
    """
    with suppress(FileNotFoundError), directory_of(log) as directory:
        return openat.status(directory, log.name)
    return None


def exists(log: Path) -> bool:
    """Say whether there is a log, or something in its place or on the way, which opening it tells.

    :raises OSError: if it cannot be asked.
    """
    try:
        return status(log) is not None
    except FailedPrecondition:
        return True


def size(log: Path) -> int:
    """Return the size of a log in bytes, 0 if there is none.

    :raises FailedPrecondition: as :func:`open_directory`.
    :raises OSError: if it cannot be asked.
    """
    found = status(log)
    return 0 if found is None else found.st_size
