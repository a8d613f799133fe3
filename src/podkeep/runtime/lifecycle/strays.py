"""Programs that a killed daemon or a failed creation left at work: they are ended before their work is undone.

Owns: finding and killing them. Called by the recovery, by the undo of a creation and by the probe of a handler; blocks.
"""

from __future__ import annotations

import time

from podkeep.base.errors import Internal
from podkeep.kernel.process import procfs
from podkeep.runtime.oci.driver import Driver

TIMEOUT_S = 5.0
"""How long killed programs may take to be gone."""


def kill_strays(driver: Driver, identity: str) -> None:
    """Kill the OCI runtimes and conmons that work on a container or an infra process, and wait for their end.

    They are known by their arguments, the ID and the directory of the OCI runtime's state, which nothing else has
    together. ``/proc/<pid>/exe`` would not do: crun executes a copy of itself that has no path. What one of them
    started meanwhile is found by looking again.

    Their descendants are killed with them. A container's first process is in namespaces of its pod, and not in the
    container's cgroup before crun has set it up: once its parents are gone, nothing would find it. Other containers of
    the pod may have stopped it (SIGSTOP), so that it does not end by itself either.

    :raises Internal: naming those that did not end; what they work on must not be removed then.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while found := procfs.find_by_arguments(identity, f"--root={driver.handler.root}"):
        killed = procfs.kill_family({process.pid for process in found}, (), found)
        for process in killed.union(found):
            if not procfs.wait(process, max(deadline - time.monotonic(), 0)):
                raise Internal(
                    f"process {process.pid}, which works on {identity}, did not end within {TIMEOUT_S:g} s after"
                    " SIGKILL",
                    hint="it hangs in the kernel (state D); try again later",
                )
        if time.monotonic() > deadline:
            raise Internal(f"new processes work on {identity} all the time", hint="something else uses its ID")
