"""Working directories of containers and of commands in them, which the OCI runtime goes to as root.

Where a path leads is up to the pod: it names it, and links of its volumes and of its image are on the way. A link below
/proc may lead out of the container, to the root of any process that it sees. With one process namespace for all
containers of a pod that is the machine's root while another one is created, and crun before 1.14.1 does not look where
it came to (as runc before 1.1.12, CVE-2024-21626).

So the directory of a command is opened here, through no link of /proc, and crun gets the descriptor. Where a container
that was created came to is looked at, before anything in it runs. In a pod's user namespace commands need neither: the
OCI runtime is in it by then, and the kernel lets it follow no such link to a process outside. Called by ``driver.py``
and ``lifecycle/container_executor.py``; both functions block.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from podkeep.base.errors import FailedPrecondition, KernelCallError, NotFound
from podkeep.kernel.files import openat
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.namespace import namespaces
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId
from podkeep.runtime.oci import sealed
from podkeep.runtime.oci.mounts import normal

_TAKES_DESCRIPTORS = frozenset({"crun"})
"""Which OCI runtimes go to the directory of a command before they close what they inherited (crun 1.8.1 to 1.29, its
``exec_process_entrypoint``). runc closes first, and refuses a directory that is not in the container."""
_HINT = "name a directory of the container (workingDir, or WORKDIR of its image)"


def check(process: ProcessId) -> None:
    """Check that a container that was created is in a directory of its own mount namespace.

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
        raise FailedPrecondition("the container's working directory leads out of it", hint=_HINT)


@contextmanager
def opened(
    runtime: str, first: ProcessId | None, process: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], tuple[int, ...]]]:
    """Open the directory of a command, and yield its OCI process and the descriptors that the OCI runtime inherits.

    :param runtime: path of the OCI runtime.
    :param first: the container's first process; None: links of /proc lead nowhere there.
    :raises FailedPrecondition: if there is no such directory, or only behind a link of /proc.
    :raises NotFound: if the container has ended.
    """
    directory = normal(process.get("cwd") or "/")
    if first is None or directory == "/" or sealed.program(runtime) not in _TAKES_DESCRIPTORS:
        yield process, ()
        return
    with openat.closing(_open(first, directory)) as fd:
        args = [_program(directory, process["args"][0]), *process["args"][1:]]
        yield {**process, "cwd": f"/proc/self/fd/{fd}", "args": args}, (fd,)


def _program(directory: str, name: str) -> str:
    # crun looks for it below the path of the working directory, which ends with the descriptor.
    return f"{directory}/{name}" if "/" in name and not name.startswith("/") else name


def _open(first: ProcessId, directory: str) -> int:
    with openat.closing(procfs.pidfd_open(first)) as container:
        # In its mount namespace, not at /proc/PID/root: that is where the process went by chroot(2).
        return namespaces.run_in_mntns(container, lambda: _resolve(directory))


def _resolve(directory: str) -> int:
    try:
        with openat.closing(openat.open_named("/")) as root:
            return openat.openat2(root, os.fsencode(directory), os.O_PATH | os.O_DIRECTORY, openat.INSIDE)
    except KernelCallError as error:
        why = os.strerror(error.errno)
        if error.errno == errno.ELOOP:
            why = "it leads through a link of /proc, or through too many links"
        raise FailedPrecondition(f"the command's working directory {directory!r}: {why}", hint=_HINT) from error
