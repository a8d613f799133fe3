"""A host of a daemon's own: a mount namespace whose ``/`` is shared, as systemd makes it, kept by a process in it.

What a process on the host sees of the daemon's mounts can so be looked at, whether the daemon hides them or not. The
host goes with the context; nothing of the machine is changed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

_ROOT = Path(__file__).resolve().parent.parent
_UNIFIED = "/sys/fs/cgroup/unified"
_MAKE = f"""
mount --make-rshared /
# crun refuses hybrid machines; podkeep fixes that where it hides its mounts, and the host is to be the same for both.
if mountpoint --quiet {_UNIFIED}; then umount --lazy {_UNIFIED}; fi
echo ready
exec cat
"""


def lines(pid: int) -> int:
    """The lines of the mount table that process ``pid`` sees."""
    return Path(f"/proc/{pid}/mountinfo").read_bytes().count(b"\n")


def command_in(pid: int, command: Sequence[str]) -> list[str]:
    """``command`` in the mount namespace of process ``pid``."""
    return ["nsenter", f"--mount=/proc/{pid}/ns/mnt", "--", *command]


def module(name: str) -> list[str]:
    """The command of a module of this package, from whatever directory: who enters a namespace is in its root."""
    return ["env", f"PYTHONPATH={_ROOT}", sys.executable, "-m", name]


class Machine:
    """The machine itself as a host: for one that may be used up."""

    pid = 1

    def command(self, command: Sequence[str]) -> list[str]:
        """``command`` as it is."""
        return list(command)


class Host(AbstractContextManager["Host"]):
    """The host while the context lasts."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """A process on the host that makes no mounts."""
        assert self._process is not None
        return self._process.pid

    def command(self, command: Sequence[str]) -> list[str]:
        """``command`` on this host."""
        return command_in(self.pid, command)

    def __enter__(self) -> Host:
        command = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-e", "-c", _MAKE]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise OSError(f"no host: its first process ended with {self._process.wait()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.communicate()  # closes its input, and with that it ends
