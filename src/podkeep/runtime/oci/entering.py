"""Starting a program that is somewhere before it does anything, so that everything it starts is there, too.

Owns: the wait between a process's start and its program. Some things are inherited from the parent alone, such as the
group of resctrl: a command that is run in a container would begin in the daemon's. Called by ``driver.py`` and
``exec.py``. Does not own: where it is put (``class_resources/registry.py``).
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from podkeep.base.errors import Internal

Enter: TypeAlias = Callable[[int], None]
"""Puts the process of this ID where it belongs, or raises."""

_WAITING = ("/bin/sh", "-c", 'kill -STOP $$; exec "$@"', "sh")
"""A shell that stops itself, and becomes the program when it may go on. Forking and waiting in this process instead is
nothing that a process with threads may do."""


def popen(argv: Sequence[str], enter: Enter | None, **options: Any) -> subprocess.Popen[bytes]:
    """Start ``argv`` as :class:`subprocess.Popen` does, after ``enter`` was called with its process ID.

    :raises FileNotFoundError: if there is no such program.
    :raises PodkeepError: what ``enter`` raised; the program has not run then.
    """
    if enter is None:
        return subprocess.Popen(argv, **options)
    if shutil.which(argv[0], path=options.get("env", os.environ).get("PATH")) is None:
        # Later it would be the exit code of a command that never was.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    process = subprocess.Popen([*_WAITING, *argv], **options)
    try:
        _wait_until_stopped(process.pid)
        enter(process.pid)
    except BaseException:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        raise
    process.send_signal(signal.SIGCONT)
    return process


def _wait_until_stopped(pid: int) -> None:
    # WNOWAIT: should it have ended, that is for Popen to see.
    state = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if state is None or state.si_code != os.CLD_STOPPED:
        raise Internal(f"process {pid}, which was to run a command, ended before it could")
