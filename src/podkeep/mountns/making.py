"""Making the namespace and pinning it: the steps of OpenShift's container-mount-namespace.service, without systemd.

Owns: the calls and their order. Does not own: whether to make one, locks and records (``lifecycle``). Everything
happens on a thread of its own, so that the process keeps its namespace, working directory and processors.

    ExecStartPre   mount --bind --make-unbindable <directory> <directory>     unless it is already
    ExecStartPre   touch <pin>
    ExecStart      unshare --mount=<pin> --propagation slave mount --make-rshared /
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from podkeep.base import failpoints
from podkeep.base.errors import FailedPrecondition, KernelCallError
from podkeep.kernel import libc
from podkeep.kernel.files import openat
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import MountFlag, Propagation
from podkeep.kernel.namespace import namespaces


def make(pin: Path, announce: Callable[[int], None]) -> int:
    """Make a mount namespace, pin it at ``pin``, and return its inode.

    :param pin: without symbolic links; its directory exists and holds nothing that is to be bound elsewhere.
    :param announce: called with the inode before the namespace is pinned.
    :raises FailedPrecondition: if ``pin`` is something else.
    :raises KernelCallError: if the kernel refuses; the namespace is gone then.
    """
    bind_directory(pin.parent)
    _touch(pin)
    return namespaces.run_in_mntns(None, partial(_unshare_pinned, pin, announce))


def bind_directory(directory: Path) -> None:
    """Bind a directory onto itself, unless it is already, and keep it out of every copy.

    The kernel refuses to pin a mount namespace on a mount that would propagate into it. Another mount that is there is
    not podkeep's to change.

    :raises KernelCallError: if the kernel refuses.
    """
    if not mountinfo.is_self_bind(directory):
        mounts.bind(directory, directory)
        failpoints.reach("mountns.bound")
    mounts.set_propagation(directory, Propagation.UNBINDABLE)
    failpoints.reach("mountns.unbindable")


def require_free(pin: Path) -> None:
    """Check that nothing is in the way of a pin; the file of one that is gone is not.

    :raises FailedPrecondition: if something is.
    """
    if os.path.lexists(pin) and (not pin.is_file() or pin.stat().st_size):
        raise FailedPrecondition(
            f"{pin} exists and is not the empty file of a pin", hint="remove it, or set mountns.pin to another path"
        )


def _touch(pin: Path) -> None:
    try:
        # Not opened if it is there: what is pinned cannot be touched.
        os.close(os.open(pin, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
    except FileExistsError:
        require_free(pin)


def _unshare_pinned(pin: Path, announce: Callable[[int], None]) -> int:
    """Make the namespace and pin it in the one that the calling thread came from.

    Against loops the kernel binds a mount namespace only where its ID is above that of the namespace it is bound in
    (EINVAL otherwise), and kernel 6.18 hands out IDs per CPU, in batches. A CPU that gives a higher ID always exists:
    the one that the host's was made on.
    """
    refusal: KernelCallError | None = None
    with openat.closing(_here()) as origin:
        for cpu in (None, *_processors()):
            if cpu is not None and not _move_to(cpu):
                continue
            _unshare()
            with openat.closing(_here()) as inside:
                inode = os.fstat(inside).st_ino
                # Recorded first: a kill after the pin leaves a namespace that the next start knows.
                announce(inode)
                # Back first: within itself a namespace cannot be pinned.
                libc.setns(origin, CloneFlag.NEWNS)
                try:
                    mounts.mount(f"/proc/self/fd/{inside}", pin, flags=MountFlag.BIND)
                except KernelCallError as error:
                    # EINVAL: the new namespace's ID is below that of this one. It ends with its descriptor, and the
                    # next CPU is tried.
                    if error.errno != errno.EINVAL:
                        raise
                    refusal = error
                    continue
            failpoints.reach("mountns.pinned")
            return inode
    hint = f"is {pin.parent} a private mount? `findmnt -o+PROPAGATION {pin.parent}`"
    assert refusal is not None, "the first attempt is made on whichever processor this is"
    raise KernelCallError(refusal.call, errno.EINVAL, hint=hint)


def _here() -> int:
    return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


def _processors() -> list[int]:
    """Return the processors to try: first those that this thread is allowed, then the others."""
    allowed = os.sched_getaffinity(0)
    return [*sorted(allowed), *sorted(set(range(os.cpu_count() or 1)) - allowed)]


def _move_to(cpu: int) -> bool:
    """Move the calling thread, and only it; False: its cpuset or the machine does not have that processor."""
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError:
        return False
    return True


def _unshare() -> None:
    """Move the calling thread into a new mount namespace, a slave of the one it was in and shared itself."""
    libc.unshare(CloneFlag.NEWNS)
    failpoints.reach("mountns.unshared")
    # Before it is pinned: what a killed process leaves pinned is entered by the next one as it is.
    # Slave of the host first, so that nothing gets out; then shared among those inside, daemons and containers.
    mounts.set_propagation("/", Propagation.SLAVE, recursive=True)
    mounts.set_propagation("/", Propagation.SHARED, recursive=True)
    failpoints.reach("mountns.separated")
