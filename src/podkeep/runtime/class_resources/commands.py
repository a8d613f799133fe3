"""Commands that are on their way into containers.

Owns: which processes run commands (the OCI runtime's, and what they have started and not put into the container yet).
What a class gives to a container's processes finds them in its cgroup; these are not there. Does not own: what they are
given (each type), or waiting for it (``oci/entering.py``). Called by the registry, for one target on one thread at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import FailedPrecondition, NotFound
from podkeep.kernel import procfs
from podkeep.kernel.procfs import ProcessId
from podkeep.runtime.class_resources.model import Target

_MAX_PASSES = 100


class Commands:
    """The processes that run commands, by container."""

    def __init__(self) -> None:
        self._running: dict[Hashable, set[ProcessId]] = {}

    def note(self, target: Target, pid: int) -> None:
        """Note a process that will run a command in ``target``."""
        with suppress(NotFound):
            key = (target.level, target.id)
            self._running[key] = {procfs.identify(pid), *self._alive(target)}

    def forget(self, target: Target) -> None:
        """Forget what ran commands in what ended."""
        self._running.pop((target.level, target.id), None)

    def give(self, target: Target, step: Callable[[int], None]) -> None:
        """Call ``step`` for each process outside that runs a command, and for what they start meanwhile.

        :raises PodkeepError: what ``step`` raises.
        """
        done: set[ProcessId] = set()
        for _ in range(_MAX_PASSES):
            new = [process for process in self._outside(target) if process not in done]
            if not new:
                return
            for process in new:
                with suppress(NotFound):
                    step(process.pid)
            done.update(new)
        raise FailedPrecondition(f"commands in {target.name} start processes faster than they can be changed")

    def _alive(self, target: Target) -> list[ProcessId]:
        return [process for process in self._running.get((target.level, target.id), ()) if procfs.alive(process)]

    def _outside(self, target: Target) -> list[ProcessId]:
        roots = {process.pid for process in self._alive(target)}
        if not roots:
            return []
        return [process for process in procfs.find_family(roots, ()) if not _is_in(process.pid, target.cgroup)]


def _is_in(pid: int, cgroup: str) -> bool:
    """Say whether a process is in a cgroup, or below it, in any hierarchy (cgroups(7), /proc/PID/cgroup)."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return True  # it ended
    return any(f"{line.split(':', 2)[2]}/".startswith(f"{cgroup}/") for line in lines)
