"""The container mount namespace from its making to its end: start, stop, status.

Owns: the lock, the order of the steps, and the decision whether anybody needs the namespace. Does not own: joining it
(``membership``). Called by ``podkeep mountns``, by the unit, and by daemons that need the namespace and find none: that
one is *on demand*, and who leaves it last removes it. ``start`` makes one to stay, or lets one on demand stay.

A start or a stop that was killed at any point is fixed by the next one: nothing counts as made until it is pinned.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from msgspec import structs

from podkeep.base import failpoints, lockfile
from podkeep.base.errors import DataLoss, FailedPrecondition, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import listed
from podkeep.kernel.files import openat
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import Propagation
from podkeep.kernel.namespace import namespaces
from podkeep.mountns import contents, daemons, making, netns_directory, record
from podkeep.mountns.namespace_ref import KUBENS_PIN
from podkeep.mountns.netns_directory import Done
from podkeep.mountns.pin import HostRoot, label, locate, of_init, opened, own, pinned
from podkeep.mountns.record import Record

LOCK_TIMEOUT_S = 30.0
"""How long another start or stop is waited for; each takes some milliseconds."""
LOCK_NAME = ".podkeep.lock"
"""In the directory of a pin, while somebody holds it; of mode 0600, because any user can lock what he can read."""
_NOT_OURS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT})
"""Errors of a directory in which nothing can be made or removed; the last one is of /proc."""
SHOWN = 5
"""How many processes an error names."""


class Started(FrozenStruct, kw_only=True):
    """``inode``: of the namespace; ``made``: whether it was made now."""

    inode: int
    made: bool


class Status(FrozenStruct, kw_only=True):
    """What there is at a pin. Without a namespace everything but ``pin`` is empty."""

    pin: Path
    inode: int | None = None
    on_demand: bool = False
    propagation: str = ""
    """Of ``/`` inside, as findmnt(8) prints it. ``shared,slave`` is right; without ``slave`` mounts that the host makes
    do not appear inside, because the host's own ``/`` is private."""
    processes: tuple[tuple[int, str], ...] = ()
    """Process ID and name of those inside."""
    container_mounts: int = 0
    """Mounts inside that the host does not have."""

    @property
    def follows_host(self) -> bool:
        """Whether mounts that the host makes appear inside."""
        return contents.follows_host(self.propagation)

    @property
    def is_shared(self) -> bool:
        """Whether containers see what is mounted inside while they run; no daemon starts where they do not."""
        return contents.is_shared(self.propagation)


def resolved(pin: Path) -> Path:
    """Return ``pin`` with the path of its directory as /proc/self/mountinfo names it: /var/run is a link."""
    # Not the last component: the pin itself is looked at without following a link.
    return Path(os.path.realpath(pin.parent)) / pin.name


def start(pin: Path, *, on_demand: bool = False) -> Started:
    """Make and pin the namespace, unless one is pinned; without ``on_demand`` it stays until it is stopped.

    Without ``on_demand`` it is also made right: what somebody pinned there that is only a slave is shared then.

    :raises FailedPrecondition: if ``pin`` is not podkeep's to make, something else is there, or the host would not see
        it.
    :raises KernelCallError: if the kernel refuses; nothing is left then.
    :raises Unavailable: if another start or stop does not end.
    """
    pin = resolved(pin)
    with locked(pin.parent, make=True):
        return start_locked(pin, on_demand=on_demand)


def start_locked(pin: Path, *, on_demand: bool) -> Started:
    """Do as :func:`start` while the caller holds the lock of the directory; ``pin`` is resolved."""
    inode, host = locate(pin)
    with host:
        known = record.read(pin.parent)
        if inode not in {None, host.inode} and not on_demand and pin != KUBENS_PIN:
            _share(pin, host)
    if inode is not None:
        if known is not None and known.on_demand and not on_demand:
            record.write(pin.parent, structs.replace(known, on_demand=False))
        return Started(inode=inode, made=False)
    if pin == KUBENS_PIN:
        raise FailedPrecondition(f"{pin} belongs to kubens.service", hint="start it with `systemctl start kubens`")
    _refuse_inside(pin, known)
    _refuse_copy(pin)
    try:
        return Started(inode=_make(pin, on_demand=on_demand), made=True)
    except BaseException:
        _remove(pin)
        raise


def _share(pin: Path, host: HostRoot) -> None:
    """Make ``/`` shared in a namespace that is pinned, if it is not: util-linux pins it before that step."""

    def make() -> None:
        if not contents.is_shared(contents.own_propagation()):
            mounts.set_propagation("/", Propagation.SHARED, recursive=True)

    with opened(pin, host) as namespace:
        if namespace is not None:
            namespaces.run_in_mntns(namespace, make)


def _make(pin: Path, *, on_demand: bool) -> int:
    directory = pin.parent
    # What a killed start did to /run/netns is still ours to undo.
    left = record.read(directory) or Record()
    done = (netns_directory.missing(), left.netns, *_netns_of_others())
    made = Record(on_demand=on_demand, netns=netns_directory.all_of(done))
    # Before anything is made: whoever comes after a kill has to know what to undo.
    record.write(directory, made)
    failpoints.reach("mountns.recorded")

    def announce(inode: int) -> None:
        inherited = () if contents.follows_host(contents.own_propagation()) else sorted(set(contents.keys()))
        # The inode is written before the namespace is pinned: from inside the pin is not seen, and this file is.
        record.write(directory, structs.replace(made, inode=inode, inherited=tuple(inherited)))

    # Before the namespace is made: a first `ip netns add` would later mount over what is pinned in it.
    netns_directory.prepare()
    failpoints.reach("mountns.netns")
    return making.make(pin, announce)


def _pins() -> list[Path]:
    """Return where mount namespaces are pinned on this host, by whomever."""
    table = mountinfo.read()
    return [Path(entry.mount_point) for entry in table if entry.fs_type == "nsfs" and entry.root.startswith("mnt:[")]


def _netns_of_others() -> Iterator[Done]:
    """Yield what podkeep did to /run/netns for namespaces that are pinned elsewhere: who ends last undoes it."""
    for path in _pins():
        with suppress(DataLoss):
            if (known := record.read(path.parent)) is not None:
                yield known.netns


def stop(pin: Path, *, force: bool = False, if_unused: bool = False) -> bool:
    """Remove the pin and everything that came with it; the namespace ends with its last process.

    :param force: also with processes or container mounts inside, which go on in a namespace that nobody can enter.
    :param if_unused: with somebody inside do nothing.
    :returns: whether one was removed.
    :raises FailedPrecondition: if it is used, naming by whom, or not podkeep's to remove.
    :raises KernelCallError: if the kernel refuses.
    :raises Unavailable: if another start or stop does not end.
    """
    pin = resolved(pin)
    inode, host = locate(pin)
    with host:
        if pin == KUBENS_PIN and inode is not None:
            raise FailedPrecondition(f"{pin} belongs to kubens.service", hint="stop it with `systemctl stop kubens`")
        # Called from another mount namespace, it acts where the pin is: mounts are taken away where they are.
        return host.run(partial(_stop, pin, force=force, if_unused=if_unused, on_demand_only=False))


def release(pin: Path) -> bool:
    """Remove the namespace if it was made on demand and nobody is inside; called on the host, by who leaves it.

    :returns: whether it was removed.
    :raises KernelCallError: if the kernel refuses.
    :raises Unavailable: if another start or stop does not end.
    """
    return _stop(resolved(pin), force=False, if_unused=True, on_demand_only=True)


def _stop(pin: Path, *, force: bool, if_unused: bool, on_demand_only: bool) -> bool:
    if not pin.parent.is_dir():
        return False
    with locked(pin.parent):
        known = record.read(pin.parent)
        if on_demand_only and (known is None or not known.on_demand):
            return False
        with opened(pin) as namespace:
            if namespace is None:
                _refuse_inside(pin, known)
                _remove(pin)
                return False
            used = "" if force else _use(namespace, known)
        if used and if_unused:
            return False
        if used:
            raise FailedPrecondition(
                f"the mount namespace at {pin} is used by {used}",
                hint="stop the daemons and remove the pods (`podkeep rm`) first; "
                "`podkeep mountns stop --force` takes it away nevertheless",
            )
        _remove(pin)
        return True


def status(pin: Path) -> Status:
    """Return what there is at ``pin``.

    :raises FailedPrecondition: if something is pinned there that is no mount namespace.
    :raises KernelCallError: if it cannot be looked at.
    """
    pin = resolved(pin)
    inode, host = locate(pin)
    with host:
        return Status(pin=pin) if inode is None else host.run(partial(_status, pin))


def _status(pin: Path) -> Status:
    with opened(pin) as namespace:
        if namespace is None:
            return Status(pin=pin)
        inode = os.fstat(namespace).st_ino
        known = record.read(pin.parent) or Record()
        return Status(
            pin=pin,
            inode=inode,
            on_demand=known.on_demand,
            propagation=namespaces.run_in_mntns(namespace, contents.own_propagation),
            processes=tuple(contents.processes(inode)),
            container_mounts=len(contents.container_mounts(namespace, known.inherited)),
        )


@contextmanager
def locked(directory: Path, *, make: bool = False) -> Iterator[None]:
    """Hold the lock of a pin's directory: nobody makes, joins or removes the namespace meanwhile.

    The lock is on a file in it that goes with it: who waited for one that is gone begins anew. Where no file can be
    made, as in /proc, there is none: nothing can be made or removed there either.

    :param make: make the directory if it is missing; it is removed again if nothing has been put into it.
    :raises FailedPrecondition: if it is missing and not to be made, or cannot be made, or the file system is full.
    :raises Unavailable: if somebody else holds the lock for too long.
    """
    try:
        fd, made = _lock(directory, make=make)
        try:
            yield
        finally:
            _unlock(fd, directory)
            if made:
                with suppress(OSError):
                    directory.rmdir()
    except OSError as error:
        raise FailedPrecondition(
            f"{error.filename or directory}: {error.strerror}",
            hint="the mount namespace for containers is pinned there; set mountns.pin to a path that can be written",
        ) from error


def _lock(directory: Path, *, make: bool) -> tuple[int | None, bool]:
    path = directory / LOCK_NAME
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    made = False
    while True:
        try:
            if make and not directory.is_dir():
                directory.mkdir(mode=0o755, parents=True)
                made = True
            fd = _open_lock(directory)
        except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
            # While others make and remove it, it may be there at the first look and gone at the second.
            if (make and not os.path.lexists(directory)) or directory.is_dir():
                continue
            raise FailedPrecondition(f"{directory}: not a directory") from error
        if fd is None:
            return None, made
        with ExitStack() as undo:
            undo.callback(os.close, fd)
            if not lockfile.take(fd, deadline - time.monotonic()):
                raise Unavailable(
                    f"{directory}: another process makes or removes the mount namespace and does not end",
                    hint=f"`fuser -v {path}` names it",
                )
            # The last holder unlinks the lock file: a process that waited for it has locked a file that is gone.
            if lockfile.is_at(fd, path):
                undo.pop_all()
                return fd, made


def _open_lock(directory: Path) -> int | None:
    """Return a descriptor of the file that is locked; None: none can be made there."""
    with openat.closing(os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as above:
        try:
            return os.open(LOCK_NAME, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=above)
        except OSError as error:
            # ENOENT is said of a directory that was removed meanwhile as well.
            if error.errno in _NOT_OURS and os.fstat(above).st_nlink:
                return None
            raise


def _unlock(fd: int | None, directory: Path) -> None:
    if fd is None:
        return
    with suppress(OSError):
        # Else it has gone with the directory, and what is there now is another one's.
        if lockfile.is_at(fd, directory / LOCK_NAME):
            (directory / LOCK_NAME).unlink()
    os.close(fd)


def is_inside(known: Record | None) -> bool:
    """Return whether the calling thread is in the namespace of which ``known`` is the record.

    Asked where PID 1 does not see the namespace pinned. Who is where PID 1 is cannot be inside, whatever number the
    record has: numbers are used again.
    """
    return known is not None and known.inode == own() != of_init()


def _refuse_inside(pin: Path, known: Record | None) -> None:
    """Refuse to make a namespace within itself, where PID 1 does not tell that it is there."""
    if is_inside(known):
        raise FailedPrecondition(
            f"this process is in the mount namespace that podkeep made for {pin}, and PID 1 does not see it pinned",
            hint="leave it: `nsenter --mount=/proc/1/ns/mnt`",
        )


def _refuse_copy(pin: Path) -> None:
    """Refuse to make one where only this process and its children would see it pinned.

    That is so in a mount namespace that follows PID 1's. One that does not is a machine of its own.
    """
    if of_init() not in {None, own()} and daemons.reaches(1):
        raise FailedPrecondition(
            f"this process is in {label(own())}, a copy of the host's mount namespace, as systemd makes one for "
            f"PrivateTmp= and the like: the host would not see what is pinned at {pin}",
            hint="make it on the host first, with `podkeep mountns start`, or start this on the host",
        )


def _use(namespace: int, known: Record | None) -> str:
    """Return who uses the namespace, for an error; empty: nobody."""
    inside = contents.processes(os.fstat(namespace).st_ino)
    count = len(contents.container_mounts(namespace, (known or Record()).inherited))
    parts = []
    if inside:
        names = listed([f"{name} ({pid})" for pid, name in inside], SHOWN)
        parts.append(f"{len(inside)} process{'es' if len(inside) > 1 else ''}, {names}")
    if count:
        parts.append(f"{count} container mount{'s' if count > 1 else ''}")
    return " and ".join(parts)


def _remove(pin: Path) -> None:
    """Remove what :func:`start` makes, all or the half of it that is there."""
    directory = pin.parent
    known = record.read(directory)
    ours = known is not None or pinned(pin) is not None
    # Several may be stacked at one path.
    while pinned(pin) is not None:
        mounts.unmount(pin, lazy=True, missing_ok=False)
        failpoints.reach("mountns.unpinned")
    # Only what looks like a pin's file is removed: anything else at this path is somebody's own.
    if ours and pin.is_file() and not pin.stat().st_size:
        pin.unlink()
    if ours and directory.is_dir() and mountinfo.is_self_bind(directory):
        # The lock holds a descriptor of a file in it.
        mounts.unmount(directory, lazy=True)
        failpoints.reach("mountns.unbound")
    if known is not None:
        # The last one clears away: without the mount point, `ip netns add` would cover what is pinned in another one.
        if not _pins():
            netns_directory.restore(known.netns)
        failpoints.reach("mountns.restored")
        # Last: a kill before this point leaves a record, by which the next start or stop goes on.
        record.remove(directory)
    with suppress(OSError):
        (directory / LOCK_NAME).unlink(missing_ok=True)  # its holder is whoever calls this
        directory.rmdir()
