"""Starting a program that is somewhere before it does anything, so that everything it starts is there, too.

Owns: the wait between a process's start and its program, and what it has not of the daemon's. Some things are inherited
from the parent alone, such as the group of resctrl and the session keyring: a command that is run in a container would
begin in the daemon's. Called by ``driver.py`` and ``exec.py``. Does not own: where it is put
(``class_resources/registry.py``).
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from podkeep.base import spawn
from podkeep.kernel.process import keyring

Enter: TypeAlias = Callable[[int], None]
"""Puts the process of this ID where it belongs, or raises."""

_WAITING = ("/bin/sh", "-c", 'read go <"$0" || exit; exec "$@"')
"""A shell that becomes the program when it is told to go on, and ends if who could tell it has ended: a daemon that is
killed leaves nothing waiting. A process with threads may not fork and wait itself.
"""


def popen(argv: Sequence[str], enter: Enter | None, **options: Any) -> subprocess.Popen[bytes]:
    """Start ``argv`` as :class:`subprocess.Popen` does, after ``enter`` was called with its process ID.

    It has a session keyring of its own: crun gives one to a container, and none to a command in it, where runc gives
    that the container's. The program inherits the end of a pipe in which there is nothing any more; OCI runtimes pass
    on nothing but what they are told to.

    :raises FileNotFoundError: if there is no such program.
    :raises PodkeepError: what ``enter`` raised; the program has not run then.
    """
    if enter is None:
        return _popen(argv, **options)
    if spawn.find(argv[0], options.get("env", os.environ).get("PATH")) is None:
        # Later it would be the exit code of a command that never was.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    told, tell = os.pipe2(os.O_CLOEXEC)
    try:
        waiting = [*_WAITING, f"/proc/self/fd/{told}", *argv]
        process = _popen(waiting, pass_fds=(told,), **options)
        try:
            # The shell waits at the pipe meanwhile: nothing of the program has run.
            enter(process.pid)
            os.write(tell, b"go\n")
        except BaseException:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            raise
    finally:
        os.close(told)
        os.close(tell)
    return process


def _popen(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    return keyring.in_new_session(lambda: subprocess.Popen(argv, **options))
