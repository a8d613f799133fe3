"""OCI runtimes as sealed copies in memory, which nobody can write to and which are executed once.

crun and runc protect themselves from a container that writes to the program which runs it (CVE-2019-5736): one that is
not executed from such a copy makes one, or a read-only mount, and executes that. So every call of crun 1.8.1 loads its
libraries twice and waits for the end of a mount. Here the copy is made once, with the seals that both look for.

Called by ``driver.py``; any thread may. A copy is there until the process ends. What this process executes finds it by
this process's ID. What may execute it later (conmon) inherits the descriptor: when the daemon has been killed, its ID
may be that of a process of a pod, and what that has open would be executed as root.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import logging
import os
from pathlib import Path

from podkeep.kernel.process import lsm

log = logging.getLogger(__name__)

_NAMES = frozenset({"crun", "runc"})
"""Other OCI runtimes may look for something beside their own file."""
# MFD_EXEC of Linux 6.3: without it vm.memfd_noexec may make the copy a file that cannot be executed.
_MFD_EXEC = 0x10
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_ELF = b"\x7fELF"


def command(path: str) -> str:
    """Return by which path this process executes the OCI runtime at ``path``: of the sealed copy, if there is one."""
    fd = copy(path)
    return path if fd is None else f"/proc/{os.getpid()}/fd/{fd}"


def program(path: str) -> str:
    """Return which OCI runtime is at ``path``: the name of the file that it leads to."""
    return Path(path).resolve().name


def copy(path: str) -> int | None:
    """Return a descriptor of the sealed copy of the OCI runtime at ``path``, which stays open; None: it gets none.

    A program that was exchanged meanwhile gets a new one.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None  # who executes it says so
    return _copy(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))


@functools.cache
def _copy(path: str, _identity: tuple[int, ...]) -> int | None:
    # On a machine with SELinux the label of the file decides what the program may do.
    if program(path) not in _NAMES or lsm.selinux_enabled():
        return None
    try:
        return _sealed(path)
    except OSError as error:
        # Not refused: crun and runc protect themselves then (see above), and no container would run.
        hint = "vm.memfd_noexec has to be 0 or 1" if error.errno == errno.EACCES else "the next start tries again"
        log.warning(
            "%s is executed as it is, which takes each call longer: it makes a copy of itself, or a read-only mount, "
            "against containers that would write to it; no sealed copy could be made here: %s (%s)",
            path,
            error,
            hint,
        )
        return None


def _sealed(path: str) -> int | None:
    """Return a descriptor of a sealed copy; None if the file is a script, whose interpreter would not find it."""
    with open(path, "rb", buffering=0) as program:  # noqa: PTH123 - no buffer for what the kernel copies
        if program.read(len(_ELF)) != _ELF:
            return None
        size, done = os.fstat(program.fileno()).st_size, 0
        copy = _executable_memfd(Path(path).name)
        try:
            while done < size:
                if not (copied := os.sendfile(copy, program.fileno(), done, size - done)):
                    raise OSError(f"{path} was cut short meanwhile")
                done += copied
            fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(copy)
            raise
    return copy


def _executable_memfd(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # Before Linux 6.3, which knows no such flag, and where every such file can be executed.
        return os.memfd_create(name, flags)
