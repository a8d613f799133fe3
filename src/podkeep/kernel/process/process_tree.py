"""Process trees: processes with their descendants and the members of their sessions, found and killed as a whole.

Owns: which processes a tree has, and stopping all of them before the first is killed. Does not own: single processes
(``procfs``), and cgroups, which are better where a tree has one of its own.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from podkeep.base.backoff import doubling
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId, Snapshot

_MAX_PASSES = 100
"""How often it is looked for processes that others start while they are stopped."""
_STOPPING_S = 1.0
"""How long those that are to stop may take: what waits in the kernel for something else may take any time."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


class SharedLook:
    """Looks at all processes for the threads that ask at the same time, once for all of them.

    Each of a pod's many commands that are ended at once would look by itself otherwise, again and again, and keep the
    interpreter from everything else.
    """

    def __init__(self, look: Callable[[], Snapshot]) -> None:
        self._look = look
        self._changed = threading.Condition()
        self._begun = self._done = 0
        self._looks = False
        self._found: Snapshot | None = None

    def __call__(self) -> Snapshot:
        """Return what a look found that began after this was called: one under way may have missed something."""
        with self._changed:
            wanted = self._begun + 1
            while self._looks:
                self._changed.wait()
                if self._done >= wanted and self._found is not None:
                    return self._found
            self._looks = True
            self._begun = this = self._begun + 1
        found: Snapshot | None = None
        try:
            found = self._look()
            return found
        finally:
            with self._changed:
                self._looks = False
                self._done, self._found = this, found
                self._changed.notify_all()


_snapshot = SharedLook(procfs.snapshot)


def find(roots: Collection[int], sessions: Collection[int], known: Collection[ProcessId] = ()) -> list[ProcessId]:
    """Return the living processes that are one of ``roots``, descend from one, or belong to one of ``sessions``.

    :param known: their IDs among ``roots`` and ``sessions`` do not count once others have them.
    """
    seen = _snapshot()
    living = seen.living
    passed_on = {process.pid for process in known if living.get(process.pid, process) != process}
    roots, sessions = frozenset(roots) - passed_on, frozenset(sessions) - passed_on
    found = {pid for pid, session in seen.sessions.items() if pid in roots or session in sessions}
    return [living[pid] for pid in found.union(descendants(living, seen.parents, roots))]


def descendants(processes: Iterable[int], parents: Mapping[int, int], roots: Collection[int]) -> list[int]:
    """Return which of ``processes`` are one of ``roots`` or descend from one. Pure.

    Each parent is looked at once, however deep its descendants are: a pod may have all its processes in one line.
    """
    belongs = dict.fromkeys(roots, True)
    found = []
    for pid in processes:
        ancestor, way = pid, []
        while ancestor > 1 and ancestor not in belongs:
            # An ID may be used again while they are looked at, also by a descendant: then parents form a circle.
            belongs[ancestor] = False
            way.append(ancestor)
            ancestor = parents.get(ancestor, 0)
        if belongs.get(ancestor, False):
            belongs.update(dict.fromkeys(way, True))
            found.append(pid)
    return found


def kill(
    roots: Collection[int], sessions: Collection[int], known: Collection[ProcessId] = (), *, spare: int = 0
) -> set[ProcessId]:
    """Kill the processes of :func:`find`, but ``spare``; return them.

    What made itself a daemon (a session of its own, and a parent that ended) is not found. Roots and leaders of
    sessions that somebody may have waited for are among ``known``, or their IDs may be others' by now.

    :raises KernelCallError: if the kernel refuses.
    """
    stopped: set[ProcessId] = set()
    deadline = time.monotonic() + _STOPPING_S
    # Stopped before any is killed: the children of a dead parent are adopted, and are no descendants any more.
    for _ in range(_MAX_PASSES):
        tree = find(roots, sessions, known)
        new = [process for process in tree if process not in stopped and process.pid != spare]
        if not new:
            break
        for process in new:
            procfs.kill(process, signal.SIGSTOP)
        stopped.update(new)
        # The signal comes after a fork(2) that has begun, and the child is seen only then: look once more.
        pauses = doubling(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not all(map(procfs.has_stopped, new)) and time.monotonic() < deadline:
            time.sleep(pauses.next())
    for process in stopped:
        procfs.kill(process, signal.SIGKILL)
    return stopped


def kill_session(leader: int) -> None:
    """Kill the leader of a session with what belongs to the session or descends from it: see :func:`kill`."""
    kill({leader}, {leader})
