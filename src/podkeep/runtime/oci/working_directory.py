"""The working directory of a container, which the OCI runtime goes to as root.

Where the path leads is up to the pod: it names it, and links of its volumes and of its image are on the way. A link
below /proc may lead out of the container, to the root of any process that it sees. With one process namespace for all
containers of a pod that is the machine's root while another one is created, and crun before 1.14.1 does not look where
it came to (as runc before 1.1.12, CVE-2024-21626). So it is looked at here, before anything of the pod runs there: of a
container between its creation and its start, and of a command before its program is executed (``exec.py``). Called by
``driver.py`` and ``lifecycle/container_executor.py``.
"""

from __future__ import annotations

from podkeep.base.errors import FailedPrecondition, NotFound
from podkeep.kernel.files import openat
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId

_LOOK_THEMSELVES = frozenset({"runc", "runsc"})
"""OCI runtimes that go nowhere else: runc looks, and gVisor has a kernel of its own in the container."""
_MAKE_INSIDE = frozenset({"crun", "runsc"})


def check(process: ProcessId) -> None:
    """Check that a container that was created is in a directory of its own mount namespace; blocks.

    :raises FailedPrecondition: if it is not.
    :raises NotFound: if it is gone.
    """
    try:
        fd = openat.open_named(f"/proc/{process.pid}/cwd")
    except OSError as error:
        raise NotFound(f"process {process.pid} of the container is gone: {error}") from error
    with openat.closing(fd):
        inside = mountinfo.is_seen_by(fd, process.pid)
    if not procfs.alive(process):
        raise NotFound(f"process {process.pid} of the container is gone")
    if not inside:
        raise outside("the container's")


def makes_it_anywhere(runtime: str) -> bool:
    """Say whether an OCI runtime, by its name, may make a missing directory wherever links lead, also outside.

    runc does, as root, and looks only afterwards where it came to. crun makes it inside (openat2, RESOLVE_IN_ROOT).
    """
    return runtime not in _MAKE_INSIDE


def looks_itself(runtime: str) -> bool:
    """Say whether an OCI runtime, by its name (``sealed.program``), goes nowhere else by itself."""
    return runtime in _LOOK_THEMSELVES


def outside(whose: str) -> FailedPrecondition:
    """Return the error for a working directory that leads out of the container."""
    return FailedPrecondition(
        f"{whose} working directory leads out of the container",
        hint="name a directory of the container (workingDir, or WORKDIR of its image)",
    )
