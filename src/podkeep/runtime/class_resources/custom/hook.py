"""The program that enforces a type of the configuration: what it is told, and how long it may take.

Owns: one call of it. Does not own: when it is called (``plugin.py``). It is run in the daemon's mount namespace, as
root, with nothing of the daemon's environment. docs/class-resources.md has the contract as its author reads it.
"""

from __future__ import annotations

import enum
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from podkeep.base import spawn
from podkeep.base.errors import DeadlineExceeded, FailedPrecondition, NotFound, ResourceExhausted
from podkeep.base.text.printable import printable
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.process import process_tree, procfs
from podkeep.runtime.class_resources.model import Target

_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_OUTPUT_LIMIT = 64 << 10
"""Bytes of both outputs together."""
_ERROR_LIMIT = 1024
"""Characters of its first line that are passed on."""
_BEGINNING = 256
"""Bytes that the kernel looks at (binfmts.h, BINPRM_BUF_SIZE)."""


class Action(enum.StrEnum):
    """What it is to do: the program's one argument."""

    APPLY = "apply"
    VERIFY = "verify"
    RELEASE = "release"


class Hook:
    """A program and the seconds that one call may take."""

    def __init__(self, path: str, *, timeout: float, cgroups: Cgroups) -> None:
        self.path = path
        self._timeout = timeout
        self._cgroups = cgroups

    def cannot_run(self) -> str:
        """Return why it cannot be run; empty if it can."""
        what = f"its hook {self.path}"
        try:
            # Before it is opened: opening a FIFO waits for a writer.
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                return f"{what} is not a file"
            if not os.access(self.path, os.X_OK):
                return f"{what} is not executable: chmod +x {self.path}"
            with Path(self.path).open("rb") as file:
                beginning = file.read(_BEGINNING)
        except (FileNotFoundError, NotADirectoryError):
            return f"{what} is not there"
        except OSError as error:
            return f"{what} cannot be read: {error.strerror}"
        if reason := _format_problem(beginning):
            return f"{what} {reason}"
        return ""

    def call(self, action: Action, target: Target, told: Mapping[str, object]) -> None:
        """Run it to its end.

        :param told: what it is told besides of the target: type, class, previous class, parameters.
        :raises FailedPrecondition: if it ends with another status than 0, with the first line of its standard error; or
            if it cannot be run.
        :raises DeadlineExceeded: if it takes longer; it is killed with what it started
            (:func:`process_tree.kill_session`).
        """
        document = {
            **told,
            "level": target.level.value,
            "id": target.id,
            "name": target.name,
            "pid": target.process.pid if target.process else None,
            "cgroupPaths": self._cgroup_paths(target.cgroup),
        }
        what = f"the hook {self.path} ({action})"
        try:
            done = spawn.run_foreign(
                [self.path, action.value],
                stdin=json.dumps(document).encode(),
                timeout=self._timeout,
                env=_ENVIRONMENT,
                output_limit=_OUTPUT_LIMIT,
                # What it started and what has left its process group would live on.
                kill_others=process_tree.kill_session,
            )
        except DeadlineExceeded as error:
            hint = "see what it waits for, or raise hook_timeout of the type"
            raise DeadlineExceeded(f"{what} took longer than {self._timeout:g} s and was killed", hint=hint) from error
        except ResourceExhausted as error:
            raise FailedPrecondition(f"{what} printed more than {_OUTPUT_LIMIT >> 10} KiB and was killed") from error
        except (NotFound, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "it, or what runs it, is gone"
            raise FailedPrecondition(f"{what} cannot be run: {reason}") from error
        if done.returncode != 0:
            raise FailedPrecondition(f"{what} failed: {_first_line(done)}")

    def _cgroup_paths(self, cgroup: str) -> dict[str, str]:
        """Return the cgroup's directories by controller; version 2 has one, ``unified``."""
        directories = [path for path in self._cgroups.directories(cgroup) if path.is_dir()]
        if self._cgroups.version == 2:
            return {"unified": str(directories[0])} if directories else {}
        by_hierarchy = dict(zip(self._cgroups.directories(cgroup), self._cgroups.layout.hierarchies, strict=True))
        return {name: str(path) for path in directories for name in by_hierarchy[path].name.split(",")}


def _format_problem(beginning: bytes) -> str:
    """Return why the kernel would not execute a file that begins so; empty if it would (execve(2))."""
    if beginning.startswith(b"\x7fELF"):
        return ""
    if not beginning.startswith(b"#!"):
        return "is neither a program nor begins with #!"
    words = beginning[2:].split(b"\n", 1)[0].split()
    if not words:
        return "names nothing after #!"
    if not os.path.exists(words[0]):
        return f"is to be run by {printable(os.fsdecode(words[0]))}, which is not there"
    return ""


def _first_line(done: spawn.Completed) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    if lines:
        return printable(lines[0][:_ERROR_LIMIT])
    ended = f"status {done.returncode}"
    if done.returncode < 0:
        number = -done.returncode
        ended = f"signal {number} ({procfs.signal_name(number)}) ended it"
    return f"{ended}, and it said nothing"
