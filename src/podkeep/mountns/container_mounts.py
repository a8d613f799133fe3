"""The mount namespace that the runtime's and the agent's mounts live in, invisible to the rest of the machine.

Owns: creating it, pinning it so that it outlives the processes in it, joining it, removing it. Called by the runtime's
and the agent's entry points **before they start a thread** (a mount namespace can only be entered by a process whose
file system state is not shared).

    machine  /  ──slave──▶  container mount namespace  /  (shared inside)
                            pinned at <run>/mount-namespace/mnt

Mounts made on the machine appear inside; nothing made inside appears on the machine (OpenShift, hide container mount
points: guarantees 1 and 2). The pin lies on a self-bind that is private, because the kernel refuses to pin a mount
namespace on a mount that would propagate into it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from podkeep.base import failpoints
from podkeep.base.errors import FailedPrecondition, KernelCallError
from podkeep.kernel import libc, mountinfo, mounts, namespaces
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mounts import Propagation

UNIFIED = Path("/sys/fs/cgroup/unified")
"""Where a hybrid machine mounts its version 2 hierarchy."""


def pin_path(run: Path) -> Path:
    """Return where the namespace of the runtime with run directory ``run`` is pinned.

    Without symbolic links, as /proc/self/mountinfo names it: /var/run is one on most machines.
    """
    return Path(os.path.realpath(run)) / "mount-namespace" / "mnt"


def is_pinned(run: Path) -> bool:
    """Return whether a namespace is pinned for ``run``, as seen from the calling process."""
    pin = str(pin_path(run))
    return any(entry.mount_point == pin and entry.fs_type == "nsfs" for entry in mountinfo.read())


def is_unused(run: Path) -> bool:
    """Return whether nothing but the pin is mounted below ``run``, as seen from the calling process."""
    pin = pin_path(run)
    top = pin.parent.parent
    return {entry.mount_point for entry in mountinfo.under(top)} <= {str(top), str(pin), str(pin.parent)}


def enter(run: Path) -> int:
    """Create the namespace unless it is pinned already, and move the calling, single-threaded process into it.

    :returns: a descriptor of the namespace the process came from, for :func:`remove`.
    :raises FailedPrecondition: if the process has threads.
    :raises KernelCallError: if the kernel refuses; the process is then where it was.
    """
    _require_single_thread()
    origin = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if is_pinned(run):
            join(run)
        else:
            pin, where = pin_path(run), Path.cwd()
            _prepare_pin_point(pin)
            _unshare_pinned(origin, pin)
            os.chdir(where)
    except BaseException:
        os.close(origin)
        raise
    return origin


def join(run: Path) -> None:
    """Move the calling, single-threaded process into the pinned namespace.

    :raises FailedPrecondition: if none is pinned, or the process has threads.
    """
    pin = pin_path(run)
    if not is_pinned(run):
        raise FailedPrecondition(f"no mount namespace is pinned at {pin}", hint="start it with `podkeep runtime`")
    _require_single_thread()
    where = Path.cwd()
    fd = os.open(pin, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc.setns(fd, CloneFlag.NEWNS)
    finally:
        os.close(fd)
    # Entering a mount namespace moves the working directory to its root.
    os.chdir(where)


def remove(run: Path, origin: int) -> None:
    """Unpin the namespace; it ends with its last process.

    :param origin: what :func:`enter` returned; the pin is a mount of that namespace. The process may have threads.
    :raises KernelCallError: if the kernel refuses.
    """
    pin = pin_path(run)

    def unpin() -> None:
        mounts.unmount(pin, lazy=True)
        mounts.unmount(pin.parent, lazy=True)
        pin.unlink(missing_ok=True)
        pin.parent.rmdir()

    _in_mount_namespace(origin, unpin)


def _prepare_pin_point(pin: Path) -> None:
    pin.parent.mkdir(parents=True, exist_ok=True)
    directory = str(pin.parent)
    if not mountinfo.is_mount_point(directory):
        mounts.bind(directory, directory)
    mounts.set_propagation(directory, Propagation.UNBINDABLE)


def _unshare_pinned(origin: int, pin: Path) -> None:
    """Move into a new mount namespace that ``origin`` has pinned at ``pin``.

    Against loops the kernel binds a mount namespace only where its ID is above that of the namespace it is bound in
    (EINVAL otherwise), and kernel 6.18 hands out IDs per CPU, in batches. A CPU that gives a higher ID always exists:
    the one that ``origin`` was made on.
    """
    allowed = os.sched_getaffinity(0)
    try:
        for left, cpu in reversed(list(enumerate(sorted(allowed)))):
            os.sched_setaffinity(0, {cpu})
            libc.unshare(CloneFlag.NEWNS)
            # Before it is pinned: what a killed process leaves pinned is entered by the next one as it is.
            _separate()
            inside = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            try:
                libc.setns(origin, CloneFlag.NEWNS)
                namespaces.pin(inside, pin)
                failpoints.reach("mountns.pinned")
                libc.setns(inside, CloneFlag.NEWNS)
                return
            except KernelCallError as error:
                if error.errno != errno.EINVAL or left == 0:
                    raise
            finally:
                os.close(inside)
    finally:
        os.sched_setaffinity(0, allowed)


def _separate() -> None:
    """Make the new namespace a slave of the machine's, shared inside, with what the OCI runtime can work with."""
    mounts.set_propagation("/", Propagation.SLAVE, recursive=True)
    mounts.set_propagation("/", Propagation.SHARED, recursive=True)
    if _is_hybrid():
        # crun refuses to run while a second, version 2 hierarchy with controllers is in sight.
        mounts.unmount(UNIFIED, lazy=True)


def _is_hybrid() -> bool:
    return any(entry.mount_point == str(UNIFIED) and entry.fs_type == "cgroup2" for entry in mountinfo.read())


def _require_single_thread() -> None:
    if len(os.listdir("/proc/self/task")) > 1:
        raise FailedPrecondition("a process with threads cannot change its mount namespace")


def _in_mount_namespace(namespace: int, work: Callable[[], None]) -> None:
    """Run ``work`` on a thread of its own that has left this process's file system state and entered ``namespace``."""
    failure: list[Exception] = []

    def run() -> None:
        try:
            libc.unshare(CloneFlag.FS)
            libc.setns(namespace, CloneFlag.NEWNS)
            work()
        except (KernelCallError, OSError) as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="unpin")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
