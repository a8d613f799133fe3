"""Which mount namespace the verbs of ``podkeep mountns`` act on, and what they say where there is none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from podkeep.base.errors import FailedPrecondition, PermissionDenied
from podkeep.cli.core.invocation import Invocation

if TYPE_CHECKING:
    from podkeep.mountns.membership import Publication
    from podkeep.mountns.namespace_ref import NamespaceRef


def require_root(verb: str) -> None:
    """:raises PermissionDenied: unless root asks."""
    if os.geteuid() != 0:
        raise PermissionDenied(f"`podkeep mountns {verb}` needs root", hint="run it as root")


def require_mounting(verb: str) -> None:
    """:raises PermissionDenied: unless root asks, with the capability without which it can join no mount namespace."""
    require_root(verb)
    from podkeep.kernel.process import procfs

    if "CAP_SYS_ADMIN" not in procfs.capability_bounding_set():
        raise PermissionDenied(
            f"`podkeep mountns {verb}` needs CAP_SYS_ADMIN, which this process cannot have",
            hint="run it on the host, in no container and in no unit with CapabilityBoundingSet=",
        )


def runtime(invocation: Invocation) -> Publication | None:
    """Return what the runtime of this configuration says of its mount namespace, if it runs and is still there."""
    from podkeep.mountns import membership, pin

    told = membership.published(Path(invocation.config.runtime.run))
    if told is None or pin.pinned(Path(f"/proc/{told.pid}/ns/mnt")) != told.inode:
        return None
    return told


def of_runtime(invocation: Invocation, told: Publication | None) -> NamespaceRef:
    """Return where the runtime is, or would be if it hid its mounts.

    :param told: what the one that runs says of itself; None: none runs.
    """
    return configured(invocation, os.environ) if told is None or not told.hidden else told.place


def to_enter(invocation: Invocation, told: Publication | None) -> NamespaceRef:
    """Return where who wants to see container mounts goes: to the runtime, also if something else is pinned by now.

    :param told: what the runtime that runs says of itself; None: none runs.
    :raises FailedPrecondition: if there is nowhere to go, with the command that fixes it.
    """
    from podkeep.mountns import pin
    from podkeep.mountns.namespace_ref import NamespaceRef

    place = of_runtime(invocation, told)
    if told is not None and told.hidden and place.pin is not None:
        inode, host = pin.locate(place.pin)
        host.close()
        return place if inode == told.inode else NamespaceRef(pid=told.pid, source="the runtime")
    _require_pinned(invocation, place, told)
    return place


def configured(invocation: Invocation, environ: Mapping[str, str]) -> NamespaceRef:
    """Return where daemons with this configuration and environment belong, also where they do not hide their mounts.

    :raises FailedPrecondition: if two namespaces are there to choose from.
    """
    import msgspec

    from podkeep.mountns import pin
    from podkeep.mountns.namespace_ref import resolve

    config = msgspec.structs.replace(invocation.config.mountns, enabled=True)
    found = resolve(config, environ=environ, is_pinned=pin.is_pinned)
    assert found is not None  # None is: hiding is off
    return found


def of_services(invocation: Invocation) -> Path | None:
    """Return where the namespace is pinned that services of this configuration are to be in; ``None``: in none."""
    return pin_of_services(invocation) if invocation.config.mountns.enabled else None


def pin_of_services(invocation: Invocation) -> Path:
    """Return where services of this configuration that hide their mounts have the namespace pinned."""
    # What this shell's environment says is nothing that systemd's services know.
    pin = configured(invocation, {}).pin
    assert pin is not None  # no process was named
    return pin


def own_pin(invocation: Invocation) -> Path:
    """Return where a namespace is pinned that podkeep makes and removes.

    :raises FailedPrecondition: if it is somebody else's to make.
    """
    from podkeep.mountns.namespace_ref import KUBENSMNT

    place = configured(invocation, os.environ)
    if place.pin is None or not place.may_make:
        raise FailedPrecondition(
            f"the mount namespace at {place} ({place.source}) is not podkeep's to make or to remove",
            hint="unset KUBENSMNT, if podkeep's own is meant"
            if place.source == KUBENSMNT
            else "`systemctl start kubens` makes it, `systemctl stop kubens` removes it",
        )
    return place.pin


def _require_pinned(invocation: Invocation, place: NamespaceRef, told: Publication | None) -> None:
    """:raises FailedPrecondition: if nothing is pinned at ``place``, with the command that fixes it."""
    from podkeep.mountns import lifecycle, making, pin

    if place.pin is None or pin.is_pinned(place.pin):
        return
    as_it_is = "run the command as it is: what is mounted for containers is seen on the host"
    if told is not None and not told.hidden:
        raise FailedPrecondition(f"the runtime that serves (pid {told.pid}) hides no mounts", hint=as_it_is)
    if not invocation.config.mountns.enabled:
        raise FailedPrecondition("mountns.enabled is false: daemons hide no mounts", hint=as_it_is)
    if place.may_make:
        making.require_free(lifecycle.resolved(place.pin))
        fix = "start the runtime, which makes it: `podkeep runtime`; or `podkeep mountns start`, to stay"
    else:
        fix = started_by(place.source)
    raise FailedPrecondition(f"no mount namespace is pinned at {place.pin}", hint=fix)


def started_by(source: str) -> str:
    """Return what has to be started where podkeep makes no namespace itself, by what named the place."""
    from podkeep.mountns.namespace_ref import KUBENSMNT

    if source == KUBENSMNT:
        return "start what makes it (`systemctl start kubens`), or unset KUBENSMNT"
    return "start what makes it: `systemctl start kubens`"
