"""What ``podkeep mountns status`` says: the namespace, who is inside, and what is out of sync.

Owns: putting the answers of ``mountns.lifecycle`` and ``mountns.sync`` together, and their form. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import listed
from podkeep.cli.core.output import aligned, fields
from podkeep.cli.mountns import namespace
from podkeep.kernel.mount import mountinfo
from podkeep.mountns import contents, daemons, lifecycle, making, sync
from podkeep.mountns.daemons import KUBELET, Daemon
from podkeep.mountns.membership import Membership, Publication
from podkeep.mountns.pin import HostRoot, locate
from podkeep.mountns.sync import Mismatch

if TYPE_CHECKING:
    from podkeep.base.config import Config
    from podkeep.mountns.namespace_ref import NamespaceRef

SHOWN = 8
"""How many processes the table names."""
_OTHER_RUNTIMES = ("crio", "containerd")
"""Runtimes that can be put into the namespace; a kubelet that uses one has its name in the path of the socket."""


class Report(FrozenStruct, kw_only=True):
    """Everything that ``status`` shows. ``host`` is the propagation of the host's ``/`` in the words of findmnt(8)."""

    enabled: bool
    source: str
    may_make: bool
    """Whether podkeep makes the namespace where there is none."""
    state: lifecycle.Status
    host: str
    daemons: tuple[Daemon, ...]
    """Those inside, and those outside that have to do with them."""
    mismatches: tuple[Mismatch, ...]

    @property
    def good(self) -> bool:
        """Whether daemons can work in the namespace, and every one that belongs in it is inside."""
        return self.in_sync and self.state.is_shared

    @property
    def in_sync(self) -> bool:
        """Whether a namespace is there and every daemon that belongs in it is inside."""
        return self.state.inode is not None and not self.mismatches

    def as_json(self) -> dict[str, Any]:
        state = self.state
        return {
            "enabled": self.enabled,
            "pin": state.pin,
            "source": self.source,
            **fields(state, "inode", "on_demand", "propagation"),
            "host_propagation": self.host,
            "follows_host": state.follows_host and contents.is_shared(self.host),
            "container_mounts": state.container_mounts,
            "processes": [{"pid": pid, "name": name} for pid, name in state.processes],
            "daemons": [
                {**fields(item, "name", "pid", "inode"), "inside": item.inode == state.inode} for item in self.daemons
            ],
            "in_sync": self.in_sync,
            "mismatches": self.mismatches,
        }

    def lines(self) -> list[str]:
        fixes = [line for item in self.mismatches for line in (item.message, f"fix: {item.hint}")]
        return [*aligned(list(self._rows())), *fixes]

    def _rows(self) -> Iterator[tuple[str, str]]:
        state = self.state
        if not self.enabled:
            yield "hiding", "off: mountns.enabled is false, daemons stay in the host's mount namespace"
        yield "pin", f"{state.pin}"
        if state.inode is None:
            yield "namespace", f"none; {self._makes()}" if self.enabled and not self.mismatches else "none"
            return
        kept = "on demand: goes with the last who needs it" if state.on_demand else "stays until it is stopped"
        yield "namespace", f"{sync.label(state.inode)}, {kept}"
        yield "propagation", _reaches(state)
        yield "host's /", _follows(self.host, state)
        yield "container mounts", f"{state.container_mounts}"
        yield "daemons", ", ".join(self._shown(item) for item in self.daemons) or "none"
        yield "processes", _processes(state.processes)
        yield "in sync", "yes" if self.in_sync else "no"

    def _makes(self) -> str:
        if self.may_make:
            return "`podkeep runtime` makes it when it starts, `podkeep mountns start` makes one to stay"
        return namespace.started_by(self.source)

    def _shown(self, daemon: Daemon) -> str:
        return f"{daemon}" if daemon.inode == self.state.inode else f"{daemon} outside, in {sync.label(daemon.inode)}"


def _reaches(state: lifecycle.Status) -> str:
    if state.is_shared:
        return state.propagation
    fix = f"nsenter --mount={state.pin} mount --make-rshared /"
    return f"{state.propagation}: containers do not see what is mounted here, so no daemon starts; `{fix}`"


def _follows(host: str, state: lifecycle.Status) -> str:
    if contents.is_shared(host) and state.follows_host:
        return f"{host}: what the host mounts is seen inside"
    if contents.is_shared(host):
        return f"{host}, but was not when this was made: what it mounts is not seen inside; stop, and start again"
    return f"{host}: what it mounts from now on is not seen inside; `mount --make-rshared /`, stop, and start again"


def _processes(processes: Sequence[tuple[int, str]]) -> str:
    names = listed([f"{name} ({pid})" for pid, name in processes], SHOWN)
    return f"{len(processes)}: {names}" if processes else "0"


def examine(config: Config, place: NamespaceRef, told: Publication | None) -> Report:
    """Look at the namespace at ``place`` and at the daemons of this machine.

    :param told: what the runtime of this configuration, which is running, says of itself; None: none runs.
    :raises FailedPrecondition: if something is pinned there that is no mount namespace, or is in the way of a pin.
    :raises KernelCallError: if it cannot be looked at.
    """
    pin = place.pin or Path(f"/proc/{place.pid}/ns/mnt")
    state = lifecycle.status(pin)
    if state.inode is None and place.may_make and config.mountns.enabled:
        making.require_free(lifecycle.resolved(pin))
    _, host = locate(lifecycle.resolved(pin))
    with host:
        found = daemons.find()
        runtime = next((item for item in found if told is not None and item.pid == told.pid), None)
        hides = told is not None and told.hidden
        return Report(
            enabled=config.mountns.enabled,
            source=place.source,
            may_make=place.may_make,
            state=state,
            host=_propagation(host),
            daemons=_concerned(found, state, runtime),
            mismatches=tuple(_mismatches(place, state, found, runtime if hides else None, host, config.runtime.socket)),
        )


def _propagation(host: HostRoot) -> str:
    return contents.propagation(host.run(mountinfo.read))


def _concerned(found: Sequence[Daemon], state: lifecycle.Status, runtime: Daemon | None) -> tuple[Daemon, ...]:
    return tuple(item for item in found if item.inode == state.inode or item == runtime or item.name == KUBELET)


def _mismatches(
    place: NamespaceRef,
    state: lifecycle.Status,
    found: Sequence[Daemon],
    runtime: Daemon | None,
    host: HostRoot,
    socket: str,
) -> Iterator[Mismatch]:
    if runtime is not None:
        membership = Membership(inode=runtime.inode, place=place, host=host)
        yield from sync.check(membership, socket=socket, found=found, me=runtime)
    if state.inode is None:
        return
    # A kubelet with another runtime: of two that belong together, one is inside.
    for kubelet in (item for item in found if item.name == KUBELET):
        for other in found:
            names = other.name in _OTHER_RUNTIMES and other.name in kubelet.endpoint
            if names and state.inode in {kubelet.inode, other.inode} and kubelet.inode != other.inode:
                membership = Membership(inode=other.inode, place=place, host=host)
                yield from sync.check(membership, found=[kubelet], me=other)
