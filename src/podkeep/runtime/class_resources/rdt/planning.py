"""What a file of classes means on the machine that is there.

Owns: which of resctrl's files tell what the machine has, and whose CLOSIDs are taken. Does not own: their form
(``hardware.py``), or the meaning of the file (``allocation.py``). Called by ``plugin.py``, ``podkeep classes check``
and ``podkeep doctor``. Nothing is changed.
"""

from __future__ import annotations

from podkeep.base.errors import FailedPrecondition
from podkeep.kernel.cgroup.resctrl import Group, Resctrl
from podkeep.runtime.class_resources.rdt import allocation, hardware, tasks
from podkeep.runtime.class_resources.rdt.allocation import Plan
from podkeep.runtime.class_resources.rdt.configuration import Configuration
from podkeep.runtime.class_resources.rdt.groups import DEFAULT, PSEUDO_LOCK, PSEUDO_LOCKED, ControlGroups
from podkeep.runtime.class_resources.rdt.hardware import Hardware


def absence(resctrl: Resctrl) -> FailedPrecondition | None:
    """Return (not raise) why nothing can be allocated; None: something can."""
    try:
        resctrl.check()
    except FailedPrecondition as error:
        return error
    if resctrl.allocates():
        return None
    return FailedPrecondition(
        f"the hardware can only monitor caches and memory bandwidth ({resctrl.root})",
        hint="leave class_resources.rdt_config out on this machine",
    )


def read_hardware(resctrl: Resctrl) -> Hardware:
    """Return what can be allocated; nothing where :func:`absence` says why.

    :raises FailedPrecondition: if resctrl describes itself in a way that is not understood.
    :raises ResctrlError: if the kernel refuses.
    """
    if absence(resctrl):
        return Hardware()
    names = sorted(name for name in resctrl.groups() if not resctrl.mode(name).startswith(PSEUDO_LOCK))
    return hardware.read(
        resctrl.info(),
        [resctrl.schemata(name) for name in (DEFAULT, *names)],
        mount_options=resctrl.options(),
        bandwidth_maximum=resctrl.bandwidth_maximum(),
    )


def plan(configured: Configuration, groups: ControlGroups) -> Plan:
    """Return what a file means here; where nothing can be allocated it is checked in full all the same.

    :raises InvalidArgument: if the file does not fit the hardware.
    :raises FailedPrecondition: if the file says that the hardware must have what it does not have.
    :raises ResourceExhausted: if there are more classes than CLOSIDs.
    :raises ResctrlError: if the kernel refuses.
    """
    found = read_hardware(groups.resctrl)
    staying = _staying(groups) if found.closids else set()
    return allocation.plan(configured, found, foreign=staying - set(configured.classes))


def _staying(groups: ControlGroups) -> set[str]:
    """Return the control groups that will keep their CLOSIDs, whatever the configuration."""
    ours, resctrl = groups.ours(), groups.resctrl
    return {
        name
        for name in resctrl.groups()
        # A part of a cache that is locked is nobody's class of service any more (resctrl.rst, Cache Pseudo-Locking).
        if resctrl.mode(name) != PSEUDO_LOCKED
        if name not in ours or tasks.in_use(resctrl, Group(name=name))
    }
