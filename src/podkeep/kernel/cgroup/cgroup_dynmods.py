"""How long a process waits when it is moved into a cgroup, and the switch that ends the waiting.

The first write to a ``cgroup.procs`` file after a quiet moment waits for an RCU grace period, some 10 ms, because the
kernel then keeps all forks and exits of the machine out with one lock that is cheap to read and dear to write. Once a
hierarchy is mounted with ``favordynmods`` (cgroup-v2.rst, mount options; Linux 6.0) it does not. The option of any
hierarchy counts for all of them, so a named hierarchy of version 1 without a controller is enough, and no mount of the
machine is touched; on a machine whose cgroups are of version 2, too.

Until Linux 6.17 the setting ends with the last such hierarchy. Since 6.18 the kernel locks each process by itself from
then on and does not go back before a reboot (``cgroup_favor_dynmods`` in kernel/cgroup/cgroup.c).

While the hierarchy is there, ``/proc/PID/cgroup`` of every process names it, and on a machine with cgroups of version 1
crun fails to create containers, because it mounts every hierarchy that is named there. So it is not made where the
setting is in force already, and not kept on such a machine.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podkeep.base.errors import FailedPrecondition
from podkeep.kernel.cgroup.cgroups import CgroupLayout
from podkeep.kernel.mount import mounts
from podkeep.kernel.tables import lines, read_text

HIERARCHY = "podkeep-favordynmods"
"""The name of the hierarchy; ``/proc/PID/cgroup`` shows it while it is there."""
STAYS_SINCE = (6, 18)
"""From this kernel on the setting outlives the hierarchy."""
WAITS_S = 0.002
"""A move that takes longer than this waited for a grace period; without it takes some 50 µs."""
_SAMPLES = 2


@contextmanager
def favored(release: str, layout: CgroupLayout) -> Iterator[None]:
    """Let processes move into cgroups without waiting, for as long as the context lasts at least.

    The hierarchy is a mount that is attached nowhere, held by its descriptor, and let go at once where the setting
    stays. Nothing is done where processes do not wait anyway.

    :param release: of the kernel, as ``uname -r`` prints it.
    :raises FailedPrecondition: if the hierarchy would have to be kept beside cgroups of version 1.
    :raises KernelCallError: if the kernel does not know the option (before 6.0), or has no cgroups of version 1.
    """
    if shortest_move(layout) < WAITS_S:
        yield
        return
    # crun mounts every hierarchy that /proc/PID/cgroup names, and fails on this one where cgroups are of version 1.
    if layout.version == 1 and not stays(release):
        raise FailedPrecondition(
            f"favordynmods cannot be kept on Linux {release} with cgroups of version 1: crun would fail",
            hint="runtime.favordynmods = false, or Linux 6.18 or newer, or cgroups of version 2",
        )
    mount = _mount()
    try:
        # The kernel keeps the setting from here on, and a hierarchy that is kept would be named in every
        # /proc/PID/cgroup.
        if stays(release):
            os.close(mount)
            mount = -1
        yield
    finally:
        if mount >= 0:
            os.close(mount)


def stays(release: str) -> bool:
    """Say whether a kernel keeps the setting until it is booted anew."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return match is not None and (int(match[1]), int(match[2])) >= STAYS_SINCE


def _mount() -> int:
    context = mounts.fsopen("cgroup")
    try:
        # A named hierarchy without controllers takes no controller away from the cgroups of the machine.
        mounts.fsconfig_flag(context, "none")
        mounts.fsconfig_string(context, "name", HIERARCHY)
        mounts.fsconfig_flag(context, "favordynmods")
        mounts.fsconfig_create(context)
        return mounts.fsmount(context)
    finally:
        os.close(context)


def shortest_move(layout: CgroupLayout) -> float:
    """Return how many seconds the calling process takes to move into the cgroup that it is in: nothing changes.

    The shortest of a few moves, with quiet moments between them: a busy machine makes single ones long.

    :raises OSError: if the process cannot write to its cgroup.
    """
    procs = own_cgroup(layout, read_text("/proc/self/cgroup")) / "cgroup.procs"
    shortest = float("inf")
    for _ in range(_SAMPLES):
        # Moves shortly after another one pass without a wait, whatever the setting is: only one after a pause tells.
        time.sleep(0.02)
        before = time.monotonic()
        procs.write_text("0")
        shortest = min(shortest, time.monotonic() - before)
    return shortest


def expect_move(layout: CgroupLayout) -> None:
    """Have the wait for a grace period begin now that a process would begin which enters a cgroup a moment later.

    The calling thread does what that process will do, but stays where it is. For as long as one more grace period takes
    the kernel lets others pass without a wait. Blocks for as long as the wait takes.

    :raises OSError: if the thread cannot write to its cgroup.
    """
    own = own_cgroup(layout, read_text("/proc/thread-self/cgroup"))
    if layout.version == 1:
        # Of the calling thread alone. The kernel does not lock for the ID 0.
        (own / "tasks").write_text(str(threading.get_native_id()))
    else:
        (own / "cgroup.procs").write_text("0")


def own_cgroup(layout: CgroupLayout, text: str) -> Path:
    """Return the directory of a process's cgroup, in the first hierarchy of the layout.

    :param text: of ``/proc/PID/cgroup``.
    :raises FileNotFoundError: if the process is in none of them.
    """
    hierarchy = layout.hierarchies[0]
    controllers = set(hierarchy.name.split(",")) if layout.version == 1 else {""}
    for line in lines(text):
        _, names, path = line.split(":", 2)
        if controllers & {name.removeprefix("name=") for name in names.split(",")}:
            return hierarchy / path.lstrip("/")
    raise FileNotFoundError(f"the process is in no cgroup below {hierarchy}")
