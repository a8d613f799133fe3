"""Being in the container mount namespace: joining, verifying, leaving, and telling others.

Called by the entry points of daemons **before they start a thread**: the whole process changes its mount namespace, and
the kernel lets only a process do that which shares its root and working directory with nobody (setns(2)).

Unlike CRI-O, which goes on in the host's namespace with a warning if it cannot join, a daemon that cannot get to where
it belongs does not start.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from podkeep.base import atomicfile
from podkeep.base.errors import DataLoss, FailedPrecondition, KernelCallError, PodkeepError
from podkeep.kernel import libc, namespaces
from podkeep.kernel.libc import CloneFlag
from podkeep.mountns import contents, lifecycle, record
from podkeep.mountns.namespace_ref import DEFAULT_PIN, KUBENS_PIN, NamespaceRef
from podkeep.mountns.pin import HostRoot, locate, open_pinned, own, pinned

log = logging.getLogger(__name__)

PUBLICATION = "mount-namespace.json"

_APART = "`podkeep mountns status` names the steps that bring the runtime to where the others are"


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Where this process is."""

    inode: int
    place: NamespaceRef | None
    """Where it belongs; None: hiding is off."""
    host: HostRoot
    """The host's ``/``, through which the pin is seen as long as the process lives."""


@dataclass(frozen=True, kw_only=True)
class Publication:
    """What a runtime tells of its mount namespace to those that must be in the same one."""

    inode: int
    pin: str
    """Empty: it has none, or is known by the process ID only."""
    hidden: bool
    pid: int
    """The runtime's."""


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
        if inode == here or lifecycle.is_inside(record.read(path.parent)):
            raise FailedPrecondition(
                f"mountns.enabled is false, and this process is in the mount namespace pinned at {path}, mnt:[{here}]",
                hint="start it without `nsenter` (`podkeep mountns uninstall` removes it from units), "
                "or set mountns.enabled",
            )
    return Membership(inode=here, place=None, host=HostRoot.own())


def _enter_pinned(place: NamespaceRef, path: Path, to_mount: bool) -> Membership:
    path = lifecycle.resolved(path)
    if not place.may_make:
        _require_pinned(place, path)
    with ExitStack() as undo:
        with lifecycle.locked(path.parent, make=place.may_make):
            inode, host = _locate(place, path)
            undo.callback(host.close)
            if inode is None and not place.may_make:
                raise FailedPrecondition(f"{place.source}: no mount namespace is pinned at {path}", hint=_hint(place))
            if inode is None:
                # Who makes it and then cannot be there takes it away again, without the lock.
                undo.callback(host.run, partial(lifecycle.release, path))
                inode = lifecycle.start_locked(path, on_demand=True).inode
            if inode == host.inode:
                raise FailedPrecondition(
                    f"{place.source}: {path} is the host's mount namespace: nothing would be hidden", hint=_hint(place)
                )
            if to_mount:
                _require_shared(place, path, host)
            if own() != inode:
                _join(path, host)
            verify(place, inode, pinned(path, host))
        undo.pop_all()
    return Membership(inode=inode, place=place, host=host)


def _require_pinned(place: NamespaceRef, path: Path) -> None:
    """Check before the lock is taken, which needs the directory, that there is something to join."""
    inode, host = _locate(place, path)
    host.close()
    if inode is None:
        found = "no mount namespace is pinned there" if path.exists() else "no such file"
        raise FailedPrecondition(f"{place.source}: {path}: {found}", hint=_hint(place))


def _locate(place: NamespaceRef, path: Path) -> tuple[int | None, HostRoot]:
    try:
        return locate(path)
    except (FailedPrecondition, KernelCallError) as error:
        raise FailedPrecondition(f"{place.source}: {error.message}", hint=error.hint or _hint(place)) from error


def _enter_process(place: NamespaceRef, pid: int, to_mount: bool) -> Membership:
    path = Path(f"/proc/{pid}/ns/mnt")
    try:
        inode = pinned(path)
    except KernelCallError as error:
        raise FailedPrecondition(f"{place.source}: {error.message}", hint=_hint(place)) from error
    if inode is None:
        raise FailedPrecondition(f"{place.source}: there is no process {pid}", hint=_hint(place))
    host = _init() if inode == own() else HostRoot.own()
    if host is None:
        raise FailedPrecondition(
            f"{place.source}: process {pid} is in the mount namespace of this process, and PID 1, which would tell "
            "whether that is the host's, cannot be looked at",
            hint="start it on the host, with --mount-namespace",
        )
    try:
        if _is_inits(inode):
            raise FailedPrecondition(
                f"{place.source}: process {pid} is in the host's mount namespace: nothing would be hidden",
                hint=_hint(place),
            )
        if to_mount:
            _require_shared(place, path, None)
        if own() != inode:
            _join(path, None)
        verify(place, inode, inode)
    except BaseException:
        host.close()
        raise
    return Membership(inode=inode, place=place, host=host)


def _require_shared(place: NamespaceRef, path: Path, host: HostRoot | None) -> None:
    """Refuse a namespace whose mounts do not reach containers: volumes would be empty, and nothing would fail.

    Made with ``unshare --propagation slave`` alone it is such a one (OpenShift enhancement "hide container mount
    points", the unit as printed).
    """
    with _opened(path, host) as namespace:
        propagation = namespaces.run_in_mntns(namespace, contents.own_propagation)
    if not contents.is_shared(propagation):
        raise FailedPrecondition(
            f"{place.source}: / is {propagation} in the mount namespace at {path}: containers would not see what is "
            "mounted there while they run",
            hint=f"`nsenter --mount={path} mount --make-rshared /`, and it is shared",
        )


def _init() -> HostRoot | None:
    """Return what PID 1 has; None: this process may not look at it, as root without CAP_SYS_PTRACE may not."""
    try:
        return HostRoot.of_init()
    except KernelCallError:
        return None


def _is_inits(inode: int) -> bool:
    with suppress(KernelCallError), HostRoot.of_init() as init:
        return init.inode == inode
    return False


def follow(run: Path, place: NamespaceRef | None) -> Membership:
    """Move the calling, single-threaded process to where the runtime with run directory ``run`` is.

    :param place: where this process would go by itself, for a runtime that does not tell where it is (another than
        podkeep's); it is not made then.
    :raises FailedPrecondition: as :func:`enter`, or if the runtime is somewhere where this process cannot go.
    :raises KernelCallError: if the kernel refuses.
    """
    theirs = published(run)
    if theirs is None:
        return enter(None if place is None else replace(place, may_make=False))
    if theirs.hidden and own() == theirs.inode:
        return _beside(theirs, place)
    if theirs.hidden:
        pin = Path(theirs.pin) if theirs.pin else None
        there = NamespaceRef(pin=pin, pid=None if pin else theirs.pid, source="the runtime")
        # The last one who leaves a namespace made on demand removes it.
        may_make = place is not None and place.may_make and place.pin == pin
        membership = replace(enter(there), place=replace(there, may_make=may_make))
    else:
        membership = Membership(inode=own(), place=None, host=HostRoot.own())
    if membership.inode != theirs.inode:
        membership.host.close()
        raise FailedPrecondition(
            f"the runtime is in mount namespace mnt:[{theirs.inode}], this process in mnt:[{membership.inode}]: "
            "volumes that one mounts are not there for the other",
            hint=_APART if theirs.hidden else "start both from the same shell, or set mountns.enabled",
        )
    return membership


def _beside(theirs: Publication, place: NamespaceRef | None) -> Membership:
    """Return the membership of a process that is where the runtime is already; it need not see the pin."""
    if not theirs.pin:
        return Membership(
            inode=theirs.inode, place=NamespaceRef(pid=theirs.pid, source="the runtime"), host=_init() or HostRoot.own()
        )
    pin = Path(theirs.pin)
    inode, host = locate(pin)
    may_make = inode == theirs.inode and place is not None and place.may_make and place.pin == pin
    return Membership(
        inode=theirs.inode, place=NamespaceRef(pin=pin, may_make=may_make, source="the runtime"), host=host
    )


def _join(path: Path, host: HostRoot | None) -> None:
    try:
        where = os.getcwd()
    except OSError as error:
        raise FailedPrecondition(f"the working directory is gone: {error.strerror}", hint="start it in /") from error
    with _opened(path, host) as namespace:
        try:
            libc.setns(namespace, CloneFlag.NEWNS)
            # Entering a mount namespace moves the working directory to its root.
            os.chdir(where)
        except OSError as error:
            raise FailedPrecondition(
                f"the working directory {where} is not there in the mount namespace: {error.strerror}",
                hint="start it in /",
            ) from error


@contextmanager
def _opened(path: Path, host: HostRoot | None) -> Iterator[int]:
    namespace = open_pinned(path, host)
    if namespace is None:
        raise FailedPrecondition(f"no mount namespace is at {path} any more", hint="start again")
    try:
        yield namespace
    finally:
        os.close(namespace)


def verify(place: NamespaceRef, wanted: int, there: int | None) -> None:
    """Check that this process is where it was to go, and that this is still what others will join.

    :param wanted: inode of the namespace that was to be joined.
    :param there: inode of what is at ``place`` now; None: nothing.
    :raises FailedPrecondition: if the three are not one.
    """
    here = own()
    if not here == wanted == there:
        pin = "nothing" if there is None else f"mnt:[{there}]"
        raise FailedPrecondition(
            f"{place.source}: this process is in mnt:[{here}], mnt:[{wanted}] was to be joined, and "
            f"{pin} is at {place}",
            hint="start again when `podkeep mountns status` shows one namespace",
        )


def _hint(place: NamespaceRef) -> str:
    return {
        "the runtime": _APART,
        "--mount-namespace": "name the file of a pinned mount namespace, such as /run/container-mount-namespace/mnt, "
        "which `podkeep mountns start` makes",
        "--mount-namespace-pid": "name a process in the mount namespace, or use --mount-namespace",
        "KUBENSMNT": "start what makes it (`systemctl start kubens`), unset KUBENSMNT, or set mountns.enabled=false",
    }.get(place.source, "make it with `podkeep mountns start`, or set mountns.enabled=false")


def leave(membership: Membership) -> None:
    """Let go of the namespace when this process ends: one that was made on demand is removed if nobody needs it.

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
    atomicfile.write(run / PUBLICATION, json.dumps(asdict(publication)).encode(), mode=0o644)


def published(run: Path) -> Publication | None:
    """Return what the runtime with this run directory told last, also if it has ended; None: nothing.

    :raises DataLoss: if it cannot be understood.
    """
    path = run / PUBLICATION
    try:
        content = json.loads(path.read_bytes())
        return Publication(
            inode=int(content["inode"]),
            pin=str(content["pin"]),
            hidden=bool(content["hidden"]),
            pid=int(content["pid"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataLoss(f"{path}: {error}", hint="restart the runtime") from error
