"""The type ``rdt``: classes of caches and memory bandwidth, enforced through resctrl.

Owns: what the registry asks of a type, for RDT. Does not own: the file (``configuration.py``), what a class may use
(``allocation.py``), control groups (``groups.py``), monitoring (``monitoring.py``). A class is a control group of the
class's name. The OCI runtime is told, too (``linux.intelRdt``), but what counts is what is written and read back here:
runc puts the first process into a group that it finds, and no version of either runtime reads back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from podkeep.base.config import ClassResourcesConfig
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.cgroup.resctrl import DEFAULT_GROUP, Group, Resctrl, ResctrlError
from podkeep.kernel.process import procfs
from podkeep.runtime.class_resources.model import RDT, ClassResource, Level, Offer, Origin, Target, named
from podkeep.runtime.class_resources.rdt import allocation, configuration, explain, planning, tasks
from podkeep.runtime.class_resources.rdt.allocation import Plan
from podkeep.runtime.class_resources.rdt.groups import DEFAULT, ControlGroups
from podkeep.runtime.class_resources.rdt.hardware import Hardware
from podkeep.runtime.class_resources.rdt.monitoring import Monitoring
from podkeep.runtime.class_resources.rdt.tasks import Threads
from podkeep.runtime.oci.compose import Config, setting

log = logging.getLogger(__name__)

DISABLED = "RDT is disabled: class_resources.rdt_config names no file"


def load(config: ClassResourcesConfig, cgroups: Cgroups, root: Path) -> ClassResource | None:
    """Read the configuration and plan for this machine; nothing is in force yet.

    :param root: the runtime's persistent directory.
    :returns: None if RDT is not configured and nothing is left of when it was.
    :raises InvalidArgument: with the file and the line.
    :raises FailedPrecondition: if the file says that the hardware must have what it does not have.
    :raises ResourceExhausted: if there are more classes than CLOSIDs.
    """
    groups = ControlGroups(Resctrl(Path(config.resctrl)), root)
    if not config.rdt_config and not groups.notes:
        return None
    with named(RDT):
        if not config.rdt_config:
            return Rdt(planning.read_hardware(groups.resctrl), DISABLED, groups, cgroups)
        plan = planning.plan(configuration.load(Path(config.rdt_config)), groups)
        if absent := planning.absence(groups.resctrl):
            return Rdt(plan.hardware, str(absent), groups, cgroups)
    for warning in plan.warnings:
        log.warning("%s", warning)
    for name, reason in plan.unavailable.items():
        log.info("RDT class %s is not offered: %s", name, reason)
    return Rdt(plan.hardware, plan, groups, cgroups)


class Rdt(ClassResource):
    """RDT classes of one configuration."""

    name = RDT

    def __init__(self, hardware: Hardware, plan: Plan | str, groups: ControlGroups, cgroups: Cgroups) -> None:
        """:param plan: or why nothing is offered."""
        self._plan = None if isinstance(plan, str) else plan
        self._why_not = plan if isinstance(plan, str) else _why_not(plan)
        planned = {} if self._plan is None else self._plan.classes
        self._lines = {name: tuple(item.schemata) for name, item in planned.items()}
        """Classes that are offered, to the lines of their schemata."""
        self._unlimited = allocation.everything(hardware)
        """The lines of a group without limits."""
        self._groups, self._resctrl, self._cgroups = groups, groups.resctrl, cgroups
        self._monitoring = Monitoring(groups.resctrl)
        self._members: dict[str, tuple[Target, str]] = {}
        """By ID what was put, or seen, in a class; what is gone without :meth:`release` has no threads."""

    def offers(self) -> Mapping[Level, Offer]:
        return {Level.CONTAINER: Offer(classes=tuple(sorted(self._lines)))} if self._lines else {}

    def why_not(self, level: Level) -> str:
        if level is Level.POD:
            return "caches and memory bandwidth are allocated to containers, not to pods as a whole"
        return self._why_not

    def check(self, level: Level, class_name: str) -> None:
        with named(RDT):
            self._resctrl.check()

    def denies_annotation(self, class_name: str, origin: Origin) -> bool:
        plan = self._plan
        return plan is not None and class_name in plan.classes and origin in plan.classes[class_name].denied

    def edit(self, class_name: str, config: Config) -> Config:
        """Without schemata: the group has them, and a runtime that compares or writes them needs none."""
        return setting("linux", intelRdt={"closID": class_name})(config)

    def activate(self, in_use: Collection[str], *, previous: ClassResource | None) -> None:
        with named(RDT):
            if planning.absence(self._resctrl):
                return
            root = None if self._plan is None else self._plan.root
            self._groups.establish(self._lines | ({DEFAULT: root.schemata} if root else {}), self._unlimited)
        # It is in force: what fails from here on is tidied up at the next start.
        try:
            for name in self._groups.ours():
                self._monitoring.sweep(name)
        except PodkeepError as error:
            log.warning("class resource rdt: what an earlier daemon left is not tidied up: %s", error)

    def deactivate(self) -> None:
        with named(RDT):
            if self._groups.notes and not planning.absence(self._resctrl):
                self._groups.establish({}, self._unlimited)

    def put(self, target: Target, class_name: str, previous: str | None) -> None:
        self._fix(class_name)
        # Before the move: whoever finds the group gone meanwhile puts this one back as well (_fix).
        self._members[target.id] = target, class_name
        self._move(target, class_name, previous)

    def verify(self, target: Target, class_name: str) -> None:
        with named(RDT):
            group = Group(name=class_name)
            if not self._resctrl.exists(group):
                raise FailedPrecondition(f"resctrl group {class_name} of {target.name} is gone")
            if left := tasks.outside(self._resctrl, group, self._threads(target)):
                shown = ", ".join(map(str, left[:5])) + (", ..." if len(left) > 5 else "")
                raise FailedPrecondition(f"{len(left)} threads of {target.name} are not in class {class_name}: {shown}")
            wrong = self._groups.differences(class_name, self._lines.get(class_name, ()))
            if wrong:
                raise FailedPrecondition(f"class {class_name} is not in force: {'; '.join(wrong)}")
            self._members[target.id] = target, class_name

    def release(self, target: Target, class_name: str) -> None:
        # First, so that _return does not put it back any more.
        self._members.pop(target.id, None)
        with named(RDT):
            # resctrl is not mounted: nothing of it is left to give back.
            if not self._resctrl.exists(DEFAULT_GROUP):
                return
            if self._resctrl.exists(Group(name=class_name)):
                tasks.move(self._resctrl, DEFAULT_GROUP, self._threads(target))
            self._monitoring.forget(target.id)
            self._remove_retired()

    def entering(self, target: Target, class_name: str) -> Callable[[int], None] | None:
        return partial(self._enter, target, class_name)

    def describe(self) -> dict[str, Any]:
        return {"disabled": self._why_not} if self._plan is None else explain.describe(self._plan)

    def _enter(self, target: Target, class_name: str, pid: int) -> None:
        """Put a process into the class; what it starts will be in it as well."""
        threads = partial(procfs.threads, pid)
        with named(RDT):
            if not self._resctrl.exists(Group(name=class_name)):
                self._fix(class_name)
            try:
                tasks.move(self._resctrl, Group(name=class_name), threads, all_of_them=True)
                self._monitoring.join(class_name, target.id, threads)
            except ResctrlError as error:
                if self._resctrl.exists(Group(name=class_name)) or class_name in self._lines:
                    raise
                log.warning("%s: a command runs outside class %s, which is gone: %s", target.name, class_name, error)

    def _fix(self, class_name: str) -> None:
        """Put right what somebody else changed; who was in a group that is gone is in the default one."""
        lines = self._lines.get(class_name)
        if lines is None or not self._groups.fix(class_name, lines):
            return
        for member, of_class in list(self._members.values()):
            if of_class == class_name:
                self._return(member.id)

    def _return(self, member: str) -> None:
        """Put a container back into its class, which may change at the same time."""
        done: tuple[Target, str] | None = None
        while (now := self._members.get(member)) != done and now is not None:
            try:
                self._move(*now, None)
            except PodkeepError as error:
                log.warning("%s could not be put back into %s: %s", now[0].name, now[1], error)
            done = now

    def _threads(self, target: Target) -> Threads:
        return partial(tasks.threads_of, self._cgroups, target.cgroup, target.process)

    def _move(self, target: Target, class_name: str, previous: str | None) -> None:
        threads = self._threads(target)
        if previous is not None and previous != class_name:
            self._monitoring.take_along(target.id, previous, class_name)
        tasks.move(self._resctrl, Group(name=class_name), threads, all_of_them=previous is None)
        self._monitoring.watch(class_name, target.id, threads)

    def _remove_retired(self) -> None:
        """Remove the groups of classes that the configuration does not have any more, after their last task.

        Not when a container only goes to another class: that may be taken back.
        """
        if retired := self._groups.notes.groups.keys() - self._lines.keys():
            self._groups.remove_unused(retired)


def _why_not(plan: Plan) -> str:
    if plan.classes:
        return ""
    return (
        "; ".join(f"{name}: {reason}" for name, reason in plan.unavailable.items()) or f"{plan.source} has no classes"
    )
