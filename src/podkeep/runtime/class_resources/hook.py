"""The program that enforces a type of the configuration: what it is told, and how long it may take.

Owns: one call of it. Does not own: when it is called (``custom.py``). It is run in the daemon's mount namespace, as
root, with nothing of the daemon's environment. docs/class-resources.md has the contract as its author reads it.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping
from pathlib import Path

from podkeep.base import spawn
from podkeep.base.errors import DeadlineExceeded, FailedPrecondition, NotFound, ResourceExhausted
from podkeep.base.printable import printable
from podkeep.kernel.cgroups import Cgroups
from podkeep.runtime.class_resources.model import Target

_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_OUTPUT_LIMIT = 64 << 10
"""Bytes of both outputs together."""
_ERROR_LIMIT = 1024
"""Characters of its first line that are passed on."""


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
        path = Path(self.path)
        if not path.exists():
            return f"its hook {path} is not there"
        if not path.is_file() or not os.access(path, os.X_OK):
            return f"its hook {path} is no program that can be run"
        return ""

    def call(self, action: Action, target: Target, told: Mapping[str, object]) -> None:
        """Run it to its end.

        :param told: what it is told besides of the target: type, class, previous class, parameters.
        :raises FailedPrecondition: if it ends with another status than 0, with the first line of its standard error; or
            if it cannot be run.
        :raises DeadlineExceeded: if it takes longer; it and its process group are killed.
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


def _first_line(done: spawn.Completed) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    if lines:
        return printable(lines[0][:_ERROR_LIMIT])
    return f"status {done.returncode}, and it said nothing"
