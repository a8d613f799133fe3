"""Being in the container mount namespace: joining, verifying, leaving, and telling others.

Called by the entry points of daemons **before they start a thread**: the whole process changes its mount namespace, and
the kernel lets only a process do that which shares its root and working directory with nobody (setns(2)).

Unlike CRI-O, which goes on in the host's namespace with a warning if it cannot join, a daemon that cannot get to where
it belongs does not start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
from msgspec import structs

from podkeep.base import atomicfile
from podkeep.base.errors import FailedPrecondition, KernelCallError, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel import libc
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.namespace import namespaces
from podkeep.mountns import contents, lifecycle, record
from podkeep.mountns.namespace_ref import DEFAULT_PIN, KUBENS_PIN, NamespaceRef
from podkeep.mountns.pin import HostRoot, label, locate, of_init, opened, own, pinned

log = logging.getLogger(__name__)

PUBLICATION = "mount-namespace.json"

_APART = "`podkeep mountns status` names the steps that bring the runtime to where the others are"


class Membership(FrozenStruct, kw_only=True):
    """Where this process is."""

    inode: int
    place: NamespaceRef | None
    """Where it belongs; None: hiding is off."""
    host: HostRoot
    """The host's ``/``, through which the pin is seen as long as the process lives."""


class Publication(FrozenStruct, kw_only=True):
    """What a runtime tells of its mount namespace to those that must be in the same one."""

    inode: int
    pin: str
    """Empty: it has none, or is known by the process ID only."""
    hidden: bool
    pid: int
    """The runtime's."""

    @property
    def place(self) -> NamespaceRef:
        """Where it is, if it hides its mounts."""
        pin = Path(self.pin) if self.pin else None
        return NamespaceRef(pin=pin, pid=None if pin else self.pid, source="the runtime")


def enter(
    place: NamespaceRef | None, *, pins: Sequence[Path] = (KUBENS_PIN, DEFAULT_PIN), to_mount: bool = True
) -> Membership:
    """Move the calling, single-threaded process to where it belongs, and verify that it is there.

    :param pins: where container mount namespaces may be pinned; without ``place``, the process must be in none of them.
    :param to_mount: whether others are to see what this process mounts there. Who only looks may go where they do not.
    :raises FailedPrecondition: if the namespace is missing, something else, another one than this process is in
        afterwards, or one in which mounts reach nobody; or the process has threads. Without a change of its working
        directory.
    :raises KernelCallError: if the kernel refuses.
    """
    # The kernel refuses it to a process whose threads share root and working directory (setns(2)), with EINVAL alone.
    if len(os.listdir("/proc/self/task")) > 1:
        raise FailedPrecondition("a process with threads cannot change its mount namespace")
    if place is None:
        return _stay(pins)
    if place.pin is not None:
        return _enter_pinned(place, place.pin, to_mount)
    return _enter_process(place, place.pid or 0, to_mount)


def _stay(pins: Sequence[Path]) -> Membership:
    """Refuse to be hidden where it was asked not to be: who expects to see container mounts on the host would not."""
    here = own()
    for path in map(lifecycle.resolved, pins):
        inode, host = locate(path)
        host.close()
        # From inside, the pin may not be seen at all, not even through PID 1: the record beside it still tells.
        if inode == here or lifecycle.is_inside(record.read(path.parent)):
            raise FailedPrecondition(
                f"mountns.enabled is false, and this process is in the mount namespace pinned at {path}, {label(here)}",
                hint="start it without `nsenter` (`podkeep mountns uninstall` removes it from units), "
                "or set mountns.enabled",
            )
    return Membership(inode=here, place=None, host=HostRoot.own())


def _enter_pinned(place: NamespaceRef, path: Path, to_mount: bool) -> Membership:
    path = lifecycle.resolved(path)
    if not place.may_make:
        # The lock needs the directory.
        _located(place, path)[1].close()
    with ExitStack() as undo:
        # Held until this process is inside: a release by the last one who leaves would otherwise remove it in between.
        with lifecycle.locked(path.parent, make=place.may_make):
            inode, host = _located(place, path)
            undo.callback(host.close)
            if inode is None:
                # Who makes it and then cannot be there takes it away again, without the lock.
                undo.callback(host.run, partial(lifecycle.release, path))
                inode = lifecycle.start_locked(path, on_demand=True).inode
            if inode == host.inode:
                raise _refused(place, f"{path} is the host's mount namespace: nothing would be hidden")
            _go(place, path, host, inode, to_mount)
            # Under the lock, after joining: somebody without the lock (umount, kubens.service) may have replaced it
            # meanwhile.
            verify(place, inode, pinned(path, host))
        undo.pop_all()
    return Membership(inode=inode, place=place, host=host)


def _located(place: NamespaceRef, path: Path) -> tuple[int | None, HostRoot]:
    """Return what :func:`locate` does.

    :raises FailedPrecondition: if there is no namespace, and none to be made.
    """
    try:
        inode, host = locate(path)
    except (FailedPrecondition, KernelCallError) as error:
        raise _refused(place, error.message, hint=error.hint) from error
    if inode is None and not place.may_make:
        host.close()
        found = "no mount namespace is pinned there" if path.exists() else "no such file"
        raise _refused(place, f"{path}: {found}")
    return inode, host


def _enter_process(place: NamespaceRef, pid: int, to_mount: bool) -> Membership:
    path = Path(f"/proc/{pid}/ns/mnt")
    try:
        inode = pinned(path)
    except KernelCallError as error:
        raise _refused(place, error.message) from error
    if inode is None:
        raise _refused(place, f"there is no process {pid}")
    # Opened before joining: afterwards the host is not to be seen from here.
    host = HostRoot.of_init() if inode == own() else HostRoot.own()
    if host is None:
        raise _refused(
            place,
            f"process {pid} is in the mount namespace of this process, and PID 1, which would tell whether that is the "
            "host's, cannot be looked at",
            hint="start it on the host, with --mount-namespace",
        )
    with ExitStack() as undo:
        undo.callback(host.close)
        if inode == of_init():
            raise _refused(place, f"process {pid} is in the host's mount namespace: nothing would be hidden")
        _go(place, path, None, inode, to_mount)
        verify(place, inode, inode)
        undo.pop_all()
    return Membership(inode=inode, place=place, host=host)


def _go(place: NamespaceRef, path: Path, host: HostRoot | None, inode: int, to_mount: bool) -> None:
    """Join the namespace at ``path``, as ``host`` sees it, unless this process is there.

    :raises FailedPrecondition: if it is to mount something in a namespace whose mounts do not reach containers: volumes
        would be empty, and nothing would fail. Made with ``unshare --propagation slave`` alone it is such a one
        (OpenShift enhancement "hide container mount points", the unit as printed).
    """
    with opened(path, host) as namespace:
        if namespace is None:
            raise FailedPrecondition(f"no mount namespace is at {path} any more", hint="start again")
        propagation = namespaces.run_in_mntns(namespace, contents.own_propagation) if to_mount else "shared"
        if not contents.is_shared(propagation):
            raise _refused(
                place,
                f"/ is {propagation} in the mount namespace at {path}: containers would not see what is mounted there "
                "while they run",
                hint=f"`nsenter --mount={path} mount --make-rshared /`, and it is shared",
            )
        if own() != inode:
            _join(namespace)


def _join(namespace: int) -> None:
    try:
        # Before setns(2), which moves the working directory to the root of the namespace.
        where = os.getcwd()
    except OSError as error:
        raise FailedPrecondition(f"the working directory is gone: {error.strerror}", hint="start it in /") from error
    try:
        libc.setns(namespace, CloneFlag.NEWNS)
        # Entering a mount namespace moves the working directory to its root.
        os.chdir(where)
    except OSError as error:
        raise FailedPrecondition(
            f"the working directory {where} is not there in the mount namespace: {error.strerror}",
            hint="start it in /",
        ) from error


def follow(run: Path, place: NamespaceRef | None) -> Membership:
    """Move the calling, single-threaded process to where the runtime with run directory ``run`` is.

    :param place: where this process would go by itself, for a runtime that does not tell where it is (another than
        podkeep's); it is not made then.
    :raises FailedPrecondition: as :func:`enter`, or if the runtime is somewhere where this process cannot go.
    :raises KernelCallError: if the kernel refuses.
    """
    theirs = published(run)
    if theirs is None:
        return enter(None if place is None else structs.replace(place, may_make=False))
    if theirs.hidden:
        there = theirs.place
        if own() == theirs.inode:
            membership, seen = _beside(there)
        else:
            membership, seen = enter(there), True
        # The last one who leaves a namespace made on demand removes it.
        may_make = seen and place is not None and place.may_make and place.pin == there.pin
        membership = structs.replace(membership, place=structs.replace(there, may_make=may_make))
    else:
        membership = Membership(inode=own(), place=None, host=HostRoot.own())
    try:
        # Once more after joining: the runtime may have been restarted elsewhere meanwhile.
        require_together(run, membership)
    except FailedPrecondition:
        membership.host.close()
        raise
    return membership


def require_together(run: Path, membership: Membership) -> None:
    """Check that this process is where the runtime with run directory ``run`` says that it is, if it says so.

    :raises FailedPrecondition: naming both namespaces.
    """
    theirs = published(run)
    if theirs is not None and membership.inode != theirs.inode:
        raise FailedPrecondition(
            f"the runtime is in mount namespace {label(theirs.inode)}, this process in {label(membership.inode)}: "
            "volumes that one mounts are not there for the other",
            hint=_APART if theirs.hidden else "start both from the same shell, or set mountns.enabled",
        )


def _beside(there: NamespaceRef) -> tuple[Membership, bool]:
    """Return the membership of a process that is where the runtime is already, and whether that is pinned in its eyes.

    It need not see the pin.
    """
    here = own()
    if there.pin is None:
        return Membership(inode=here, place=there, host=HostRoot.of_init() or HostRoot.own()), False
    inode, host = locate(there.pin)
    return Membership(inode=here, place=there, host=host), inode == here


def verify(place: NamespaceRef, wanted: int, there: int | None) -> None:
    """Check that this process is in the namespace that it was to join, and that others will join the same.

    :param wanted: inode of the namespace that was to be joined.
    :param there: inode of what is at ``place`` now; None: nothing.
    :raises FailedPrecondition: if the three are not one.
    """
    here = own()
    if not here == wanted == there:
        pin = "nothing" if there is None else label(there)
        raise FailedPrecondition(
            f"{place.source}: this process is in {label(here)}, {label(wanted)} was to be joined, and "
            f"{pin} is at {place}",
            hint="start again when `podkeep mountns status` shows one namespace",
        )


def _refused(place: NamespaceRef, text: str, hint: str = "") -> FailedPrecondition:
    """Return the error of a daemon that cannot go to ``place``; without ``hint``, what named the place decides that."""
    usual = {
        "the runtime": _APART,
        "--mount-namespace": "name the file of a pinned mount namespace, such as /run/container-mount-namespace/mnt, "
        "which `podkeep mountns start` makes",
        "--mount-namespace-pid": "name a process in the mount namespace, or use --mount-namespace",
        "KUBENSMNT": "start what makes it (`systemctl start kubens`), unset KUBENSMNT, or set mountns.enabled=false",
    }.get(place.source, "make it with `podkeep mountns start`, or set mountns.enabled=false")
    return FailedPrecondition(f"{place.source}: {text}", hint=hint or usual)


def leave(membership: Membership) -> None:
    """Let go of the namespace when this process ends: one that was made on demand is removed if it is unused.

    The process stays where it is, and may have threads. A failure is logged: nothing that follows depends on it.
    """
    place = membership.place
    try:
        if place is not None and place.may_make and place.pin is not None:
            membership.host.run(partial(lifecycle.release, place.pin))
    except (OSError, PodkeepError) as error:
        log.warning("could not remove the mount namespace at %s: %s", place, error)
    finally:
        membership.host.close()


def publish(run: Path, membership: Membership) -> None:
    """Write where this process is into its run directory.

    :raises OSError: if the directory is missing, read-only or full.
    """
    place = membership.place
    publication = Publication(
        inode=membership.inode,
        pin=str(place.pin) if place is not None and place.pin is not None else "",
        hidden=place is not None,
        pid=os.getpid(),
    )
    atomicfile.write(run / PUBLICATION, msgspec.json.encode(publication), mode=0o644)


def published(run: Path) -> Publication | None:
    """Return what the runtime with this run directory told last, also if it has ended; None: nothing.

    :raises DataLoss: if it cannot be understood.
    """
    return record.load(run / PUBLICATION, Publication, hint="restart the runtime")
