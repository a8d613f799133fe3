"""Pods that an earlier runtime made in another mount namespace, which lives on.

Owns: finding them before anything is touched, and refusing to start. Their mounts are in that namespace: a runtime in
another one would take the pods for broken, and removing a directory that is a mount point over there takes the mount
away from containers that run (rmdir(2)). If that namespace is gone, so are the mounts, and ``recovery`` does the rest.

Two things tell, and neither needs more than a runtime that was killed leaves behind: the monitors of containers run in
the mount namespace that their runtime was in, and the runtime's publication says which that was. An inode alone proves
nothing, the kernel gives it to another namespace when one has ended; so the pods' mounts must be there, too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from podkeep.base.errors import DataLoss, FailedPrecondition, NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.process import procfs
from podkeep.mountns import pin as pins
from podkeep.mountns.membership import Membership, Publication, published
from podkeep.mountns.pin import HostRoot, label
from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.records import Container, Sandbox, SandboxState
from podkeep.runtime.model.state import State

log = logging.getLogger(__name__)

_PROC = Path("/proc")


class Elsewhere(FrozenStruct, kw_only=True):
    """A mount namespace with pods in it, and a process that is in it or the file that it is pinned on."""

    inode: int
    pid: int | None = None
    name: str = ""
    pin: Path | None = None

    def command(self, membership: Membership) -> str:
        """Return the command that starts the runtime there, given where it was started now."""
        if self.inode == membership.host.inode:
            return "podkeep --set mountns.enabled=false runtime"
        podkeep = "podkeep" if membership.place is not None else "podkeep --set mountns.enabled=true"
        there = f"--mount-namespace={self.pin}" if self.pid is None else f"--mount-namespace-pid={self.pid}"
        return f"{podkeep} runtime {there}"


def require_none(state: State, layout: Layout, membership: Membership) -> None:
    """Refuse to start where the pods are not.

    :param membership: which mount namespace this runtime is in.
    :raises FailedPrecondition: naming both namespaces and the way to the other one.
    """
    # After a reboot no mount namespace of before is left.
    if state.boot not in ("", procfs.boot_id()):
        return
    found = find(state.sandboxes(), state.containers(), layout, membership)
    if found is None:
        return
    who = f"{found.name} (pid {found.pid}) is in it" if found.pid else f"it is pinned at {found.pin}"
    raise FailedPrecondition(
        f"there are pods that were made in {label(found.inode)}, which still exists: {who}. This runtime is in "
        f"{label(membership.inode)}, where their mounts are not",
        hint=f"start it where they are with `{found.command(membership)}` and remove them, "
        "then end it and start it as before",
    )


def find(
    sandboxes: Iterable[Sandbox], containers: Iterable[Container], layout: Layout, membership: Membership
) -> Elsewhere | None:
    """Return a living mount namespace other than this runtime's that holds pods of these records."""
    ready = [item for item in sandboxes if item.status.state is SandboxState.READY]
    return _by_monitor(containers, membership.inode) or _by_publication(ready, layout, membership)


def _by_monitor(containers: Iterable[Container], own: int) -> Elsewhere | None:
    for container in containers:
        monitor = container.status.monitor
        if monitor is None or not procfs.alive(monitor):
            continue
        inode = _namespace(monitor.pid)
        # Asked again: what was read is about this process only if it has not ended meanwhile.
        if inode is not None and inode != own and procfs.alive(monitor):
            return Elsewhere(inode=inode, pid=monitor.pid, name=_name(monitor.pid))
    return None


def _by_publication(ready: list[Sandbox], layout: Layout, membership: Membership) -> Elsewhere | None:
    try:
        last = published(layout.run)
    except DataLoss as error:
        log.warning("it is not known in which mount namespaces pods were made: %s", error.message)
        return None
    if not ready or last is None or last.inode == membership.inode:
        return None
    for entry in sorted(int(name) for name in os.listdir(_PROC) if name.isdecimal()):
        if _namespace(entry) == last.inode and _has_mounts(entry, ready, layout):
            return Elsewhere(inode=last.inode, pid=entry, name=_name(entry))
    return _by_pin(last, membership.host)


def _by_pin(last: Publication, host: HostRoot) -> Elsewhere | None:
    if not last.pin:
        return None
    try:
        pinned = pins.pinned(Path(last.pin), host)
    except FailedPrecondition:
        return None
    return Elsewhere(inode=last.inode, pin=Path(last.pin)) if pinned == last.inode else None


def _has_mounts(pid: int, ready: list[Sandbox], layout: Layout) -> bool:
    directories = {str(layout.sandbox_run(sandbox.id)) for sandbox in ready}
    try:
        entries = mountinfo.under(layout.sandboxes_run, pid)
    except NotFound:
        return False
    return any(str(parent) in directories for entry in entries for parent in Path(entry.mount_point).parents)


def _namespace(pid: int) -> int | None:
    try:
        return (_PROC / str(pid) / "ns/mnt").stat().st_ino
    except OSError:
        return None


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "a process"
