"""Moving everything that runs in a cgroup into a group of resctrl.

Owns: which threads a container has, and that none is left outside however fast it starts others. Does not own: which
group (``plugin.py``). resctrl knows threads only: a process that is moved takes neither its other threads nor its
children along, but what they start later is where they are.
"""

from __future__ import annotations

import errno
import itertools
import time
from collections.abc import Callable

from podkeep.base.errors import FailedPrecondition
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.cgroup.resctrl import Group, Resctrl, ResctrlError
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId

TIMEOUT_S = 5.0
"""How long moving goes after a container that starts threads all the time."""

Threads = Callable[[], frozenset[int]]
"""Returns the threads that live now."""


def threads_of(cgroups: Cgroups, cgroup: str, process: ProcessId | None) -> frozenset[int]:
    """Return the IDs of the threads of all processes in a cgroup and below it, and of ``process``.

    :raises KernelCallError: if the cgroup cannot be read.
    """
    # 0 is a thread that has no ID in this PID namespace.
    found = {thread for thread in cgroups.threads(cgroup) if thread > 0}
    if process is not None and procfs.alive(process):
        found |= procfs.threads(process.pid)
    return frozenset(found)


def outside(resctrl: Resctrl, group: Group, threads: Threads) -> list[int]:
    """Return the living threads that are not in the group, sorted.

    :raises ResctrlError: if the group is missing.
    """
    return _look(resctrl, group, threads)[0]


def _look(resctrl: Resctrl, group: Group, threads: Threads) -> tuple[list[int], frozenset[int]]:
    """Return who is outside, and all who are inside."""
    # In this order: what is listed first and found in the group then was there while it was listed, so what it started
    # meanwhile, unlisted, is in the group as well.
    listed = threads()
    if not listed:
        return [], frozenset()
    inside = resctrl.tasks(group)
    return sorted(itertools.filterfalse(procfs.thread_has_ended, listed - inside)), inside


def in_use(resctrl: Resctrl, group: Group) -> int:
    """Return how many threads live in the group; what has ended and is not waited for yet does not count.

    :raises ResctrlError: if the group is missing.
    """
    return sum(not procfs.thread_has_ended(thread) for thread in resctrl.tasks(group))


def move(resctrl: Resctrl, group: Group, threads: Threads, *, all_of_them: bool = False) -> None:
    """Move threads into the group until none is outside.

    :param all_of_them: none can be there already, so it need not be looked at: finding out who is in a group takes the
        kernel a look at every thread of the machine.
    :raises ResctrlError: if the group is missing or the kernel refuses.
    :raises FailedPrecondition: if there are still some outside after :data:`TIMEOUT_S` seconds.
    """
    deadline = time.monotonic() + TIMEOUT_S
    inside = frozenset[int]()
    if not all_of_them:
        left, inside = _look(resctrl, group, threads)
        if not left:
            return
    while True:
        # Listed anew, and moved at once: what starts others all the time is soon gone.
        for thread in sorted(threads() - inside):
            _put(resctrl, group, thread)
        left, inside = _look(resctrl, group, threads)
        if not left:
            return
        if time.monotonic() > deadline:
            raise FailedPrecondition(
                f"{len(left)} threads are still outside resctrl group {group} after {TIMEOUT_S:.0f} s, among them"
                f" {left[0]}: it starts them faster than they can be moved",
                hint="pause or stop the container",
            )


def _put(resctrl: Resctrl, group: Group, thread: int) -> None:
    """Move a thread, if it still lives.

    A thread has its creator's control group of when the kernel began to make it, and is seen when that is done. So one
    can come to light outside after its creator was moved, and a monitoring group takes it by way of its control group.
    """
    try:
        resctrl.add_task(group, thread)
    except ResctrlError as error:
        if not group.monitor or error.errno != errno.EINVAL:
            raise
        resctrl.add_task(Group(name=group.name), thread)
        resctrl.add_task(group, thread)
