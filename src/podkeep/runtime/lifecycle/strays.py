"""Programs that work on a container: what a killed daemon or a failed creation left is ended before its work is undone,
what starts a command is waited for.

Owns: finding, killing and awaiting them. Called by the recovery, by the creation of a container and its undo, and by
the probe of a handler; blocks.
"""

from __future__ import annotations

import time

from podkeep.base.errors import FailedPrecondition, Internal
from podkeep.kernel.process import process_tree, procfs
from podkeep.kernel.process.procfs import ProcessId
from podkeep.runtime.oci.driver import Driver

TIMEOUT_S = 5.0
"""How long killed programs may take to be gone, and commands to start."""
_PAUSE_S = 0.02


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
        killed = process_tree.kill({process.pid for process in found}, (), found)
        for process in killed.union(found):
            if not procfs.wait(process, max(deadline - time.monotonic(), 0)):
                raise Internal(
                    f"process {process.pid}, which works on {identity}, did not end within {TIMEOUT_S:g} s after"
                    " SIGKILL",
                    hint="it hangs in the kernel (state D); try again later",
                )
        if time.monotonic() > deadline:
            raise Internal(f"new processes work on {identity} all the time", hint="something else uses its ID")


def await_commands(driver: Driver, identity: str, first: ProcessId) -> None:
    """Wait until every command that was begun in a container has started.

    Another container is about to be set up in its process namespace, by a process whose root is the machine's. Where a
    command that was begun before starts is not looked at (``oci/working_directory.py``), and the container can stop it
    (SIGSTOP) until there is such a process to be led to.

    :param first: the container's first process.
    :raises FailedPrecondition: if one does not start.
    """
    if not driver.looks_at_commands:
        return
    deadline = time.monotonic() + TIMEOUT_S
    while any(not _has_started(driver, process, first) for process in _commands(driver, identity)):
        if time.monotonic() > deadline:
            raise FailedPrecondition(
                f"a command that was begun in container {identity} did not start within {TIMEOUT_S:g} s",
                hint="end what runs commands there (exec, probes), and try again",
            )
        time.sleep(_PAUSE_S)


def _commands(driver: Driver, identity: str) -> list[ProcessId]:
    return procfs.find_by_arguments("exec", identity, f"--root={driver.handler.root}")


def _has_started(driver: Driver, runtime: ProcessId, first: ProcessId) -> bool:
    """Return whether a program runs in the container that an OCI runtime, which waits for it, was told to start."""
    tree = process_tree.find({runtime.pid}, (), [runtime])
    return any(procfs.share_namespace(item, first, "pid") and driver.has_started(item) for item in tree)
