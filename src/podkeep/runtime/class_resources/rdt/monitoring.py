"""Monitoring groups of resctrl, one for each container in a class: how much cache and bandwidth it uses.

Owns: making and removing them, and reading what the kernel counts. Does not own: which class a container is in, or the
names of metrics (``runtime/stats``). A container that cannot be counted runs all the same: the hardware has a limited
number of RMIDs, and each control and monitoring group takes one.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Collection

from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.cgroup.resctrl import Group, Resctrl, ResctrlError
from podkeep.kernel.tables import GONE
from podkeep.runtime.class_resources.rdt import tasks
from podkeep.runtime.class_resources.rdt.tasks import Threads

log = logging.getLogger(__name__)

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_CACHE = "L3"
"""The resource that is monitored; a domain is one such cache with the memory behind it."""
_NONE_LEFT = frozenset({errno.ENOSPC, errno.EBUSY})
"""EBUSY: those that are free still have lines in the cache."""
_NOT_MONITORED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EPERM})
"""The hardware, or the kernel, counts nothing: control groups have no ``mon_groups``."""


class DomainUsage(FrozenStruct, kw_only=True):
    """What a container uses of one cache and the memory behind it; None: not counted, or not known now."""

    domain: int
    """The cache's ID."""
    occupancy: int | None = None
    """Bytes of the cache."""
    total_bytes: int | None = None
    """Bytes moved from and to memory, since the container was put into its class."""
    local_bytes: int | None = None
    """Those of the memory that belongs to the domain."""


class Monitoring:
    """The monitoring groups of one resctrl file system. Any thread may use it.

    Every method that changes something raises :class:`ResctrlError` if the kernel refuses, unless it says otherwise.
    """

    def __init__(self, resctrl: Resctrl) -> None:
        self._resctrl = resctrl
        self._exhausted = False

    def watch(self, name: str, container: str, threads: Threads) -> None:
        """Count what a container uses whose threads are in control group ``name``, if there is an RMID for it.

        :raises FailedPrecondition: if threads could not be moved into the monitoring group fast enough.
        """
        group, is_new = Group(name=name, monitor=container), True
        try:
            self._resctrl.create(group)
        except ResctrlError as error:
            if error.errno in _NONE_LEFT:
                self._say_exhausted(container, error)
            if error.errno in _NOT_MONITORED | _NONE_LEFT:
                return
            if error.errno != errno.EEXIST:
                raise
            is_new = False
        # Nothing can be in a new group yet.
        tasks.move(self._resctrl, group, threads, all_of_them=is_new)

    def join(self, name: str, container: str, threads: Threads) -> None:
        """Count threads that have come into control group ``name`` for a container, if that is counted."""
        try:
            tasks.move(self._resctrl, Group(name=name, monitor=container), threads, all_of_them=True)
        except ResctrlError as error:
            if error.errno not in GONE:
                raise

    def take_along(self, container: str, source: str, target: str) -> None:
        """Before a container goes to another control group: move its monitoring group there, or remove it.

        Moved, it keeps its counts and takes the container's threads along, all at once.
        """
        group = Group(name=source, monitor=container)
        # Linux before 6.5 cannot move it: the container is counted anew then.
        if self._resctrl.exists(group) and self._resctrl.move_monitor(group, target) is None:
            self._resctrl.remove(group)

    def forget(self, container: str) -> None:
        """Stop counting what a container uses, whatever control group it is in; safe to repeat."""
        for name in ("", *sorted(self._resctrl.groups())):
            group = Group(name=name, monitor=container)
            if self._resctrl.exists(group):
                self._resctrl.remove(group)

    def sweep(self, name: str) -> None:
        """Remove the groups of containers that ended while nobody was there to see, from a control group of ours."""
        for container in sorted(self._resctrl.monitors(name)):
            group = Group(name=name, monitor=container)
            # What has another name was made by somebody else.
            if _CONTAINER_ID.fullmatch(container) and not tasks.in_use(self._resctrl, group):
                self._resctrl.remove(group)

    def give_up(self, names: Collection[str], needy: str) -> bool:
        """Remove one container's group from these control groups, so that ``needy`` gets its RMID; is there one?"""
        for name in sorted(names):
            for container in filter(_CONTAINER_ID.fullmatch, sorted(self._resctrl.monitors(name))):
                self._resctrl.remove(Group(name=name, monitor=container))
                log.warning("container %s is not monitored any more: group %s needs its RMID", container, needy)
                return True
        return False

    def usage(self, name: str, container: str) -> tuple[DomainUsage, ...]:
        """Return what a container uses, by domain; empty if it is not counted."""
        counted = self._resctrl.counts(Group(name=name, monitor=container)).get(_CACHE, {})
        return tuple(
            DomainUsage(
                domain=domain,
                occupancy=events.get("llc_occupancy"),
                total_bytes=events.get("mbm_total_bytes"),
                local_bytes=events.get("mbm_local_bytes"),
            )
            for domain, events in sorted(counted.items())
        )

    def _say_exhausted(self, container: str, error: ResctrlError) -> None:
        # Once: each container after this one would say the same.
        if not self._exhausted:
            self._exhausted = True
            log.warning(
                "container %s is not monitored, nor may be others: the hardware has no RMID left: %s", container, error
            )
