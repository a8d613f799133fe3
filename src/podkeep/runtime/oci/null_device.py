"""Standard streams that lead nowhere, without the machine's /dev/null.

An OCI runtime gives a process's standard streams to its user (crun 1.8.1: fchown), and the user of a pod may change the
mode of what is his. Were it /dev/null, he could take it away from the whole machine. Each stream from here is a device
node of its own, in a file system of the runtime's own that is mounted nowhere. Where crun would exchange it for
the null device of a container (``create``), the stream is a pipe instead (``driver.py``).

Called by what starts OCI runtimes (``driver.py``, ``exec.py``); any thread may.
"""

from __future__ import annotations

import os
import threading

from podkeep.kernel.mount import mounts

_lock = threading.Lock()
_mount: list[int] = []
"""The descriptor of the file system, once it is there."""
_DEVICE = os.makedev(1, 3)


def open_null() -> int:
    """Return a descriptor of a null device that nobody else has; the caller closes it.

    :raises KernelCallError: if the kernel makes no file system for it.
    """
    with _lock:
        if not _mount:
            _mount.append(_make_filesystem())
        directory = _mount[0]
    # A node of its own for each stream: the mode and owner of one that a container has changed are nobody else's.
    name = os.urandom(8).hex()
    os.mknod(name, 0o600 | 0o020000, _DEVICE, dir_fd=directory)
    try:
        return os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY, dir_fd=directory)
    finally:
        os.unlink(name, dir_fd=directory)


def _make_filesystem() -> int:
    context = mounts.fsopen("tmpfs")
    try:
        mounts.fsconfig_create(context)
        return mounts.fsmount(context)
    finally:
        os.close(context)
