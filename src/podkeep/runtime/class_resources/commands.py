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
from podkeep.kernel.process import process_tree, procfs
from podkeep.kernel.process.procfs import ProcessId
from podkeep.kernel.tables import lines
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
        """Forget the processes that ran commands in a container that ended."""
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
        first = target.process
        # Where a process is wholly inside, as the container's first one is. Without one nobody counts as inside: no
        # hierarchy has an empty number.
        whole = None if first is None else _hierarchies(first.pid, target.cgroup)
        # Each is the leader of a session: what has lost its parent on its way is found by that.
        return [
            process
            for process in process_tree.find(roots, roots)
            if (found := _hierarchies(process.pid, target.cgroup)) is not None and not found >= (whole or {""})
        ]


def _hierarchies(pid: int, cgroup: str) -> frozenset[str] | None:
    """Return the hierarchies in which a process is in a cgroup, or below it (cgroups(7), /proc/PID/cgroup).

    On its way in it is in some and not in others, and it may be looked for in any. None: it has ended.
    """
    try:
        table = lines(Path(f"/proc/{pid}/cgroup").read_text(errors="surrogateescape"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    places = (line.split(":", 2) for line in table)
    return frozenset(number for number, _, path in places if f"{path}/".startswith(f"{cgroup}/"))
