"""Containers and pods in their classes, over all types of this node.

Owns: all-or-nothing over several types, who is in a class, and replacing the configuration while they are. Does not
own: what is configured (``catalog.py``), what a class means (each type), records (``runtime/lifecycle/containers.py``,
``runtime/lifecycle/sandboxes.py``) or reading the configuration (``loading.py``). Everything but looking up names
blocks; it is called on threads.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from podkeep.base import failpoints
from podkeep.base.errors import PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.undo import UndoStack
from podkeep.kernel.process import procfs
from podkeep.runtime.class_resources.catalog import Catalog
from podkeep.runtime.class_resources.commands import Commands
from podkeep.runtime.class_resources.guard import Guard
from podkeep.runtime.class_resources.model import OOM, ClassResource, Level, Target, problem
from podkeep.runtime.oci.compose import Config
from podkeep.runtime.oci.entering import Enter

log = logging.getLogger(__name__)


class Assignment(FrozenStruct, kw_only=True):
    """A container or pod, and the class it has of each type."""

    target: Target
    classes: Mapping[str, str]


class ClassResources:
    """The class resources of one runtime."""

    def __init__(
        self,
        types: Sequence[ClassResource] = (),
        container_defaults: Mapping[str, str] | None = None,
        pod_defaults: Mapping[str, str] | None = None,
        *,
        disabled: Mapping[str, str] | None = None,
    ) -> None:
        """Take types that are configured; nothing is in force before :meth:`start`.

        :param disabled: types that podkeep knows and the configuration does not have, and why.
        """
        self.catalog = Catalog(
            types={item.name: item for item in sorted(types, key=lambda item: item.name)},
            defaults={Level.CONTAINER: dict(container_defaults or {}), Level.POD: dict(pod_defaults or {})},
            disabled=dict(disabled or {}),
        )
        """What is in force: looking up names waits for nothing."""
        self._guard = Guard()
        self._assigned: dict[tuple[Level, str], Assignment] = {}
        self._commands = Commands()
        self.generation = 0
        """Changes with every reload, so that what is derived from the offers can be kept until then."""

    def edit(self, classes: Mapping[str, str], config: Config) -> Config:
        """Return the OCI configuration of a container with what says its classes; ``config`` is left as it is.

        :raises FailedPrecondition: if a class is not there any more.
        """
        catalog = self.catalog
        for name in sorted(classes):
            config = catalog.type_with(Level.CONTAINER, name, classes[name]).edit(classes[name], config)
        return config

    def command(
        self, target: Target, classes: Mapping[str, str], config: dict[str, Any]
    ) -> tuple[dict[str, Any], Enter | None]:
        """Return what a command that is run in a container starts with: the OCI configuration, and how it gets in.

        Not every OCI runtime gives a command the oom_score_adj that it is told (crun 1.8 does not): it would have the
        daemon's, and be the last to be ended on the whole machine.

        :param config: the container's, as it was created; what says a class that is gone stays as it was then.
        """
        catalog, enters = self.catalog, False
        score = config.get("process", {}).get("oomScoreAdj")
        for name in sorted(classes):
            item = catalog.types.get(name)
            if item is None:
                continue
            if catalog.has(target.level, name, classes[name]):
                config = item.edit(classes[name], config)
            enters = enters or item.entering(target, classes[name]) is not None
        enter = partial(self._enter, target, classes) if enters else None
        if OOM not in classes and score is not None and score != procfs.oom_score_adj(os.getpid()):
            enter = partial(_enter_with_score, score, enter)
        return config, enter

    def _enter(self, target: Target, classes: Mapping[str, str], pid: int) -> None:
        """Put a process that will run a command into the classes that ``target`` has now, and into later ones."""
        with self._guard.of((target.level, target.id)):
            assigned = self._assigned.get((target.level, target.id))
            classes = classes if assigned is None else assigned.classes
            if assigned is not None:
                # Before the steps: a change of classes that comes next finds the process, though it is not in the
                # container's cgroup yet.
                self._commands.note(target, pid)
            for name in sorted(classes):
                item = self.catalog.types.get(name)
                if item is not None and (step := item.entering(target, classes[name])) is not None:
                    step(pid)

    def apply(self, target: Target, classes: Mapping[str, str]) -> None:
        """Put a new container or pod into its classes, all of them or none.

        :raises PodkeepError: if a type refuses; the others are undone then.
        """
        if classes:
            with self._guard.of((target.level, target.id)), UndoStack() as undo:
                self._put(target, {}, classes, undo, done="applied")

    def change(self, target: Target, current: Mapping[str, str], wanted: Mapping[str, str]) -> Callable[[], None]:
        """Change the classes of ``wanted``, resolved names, and leave those of other types; all of them or none.

        :param current: the classes in force.
        :returns: what takes it back, also into classes that are not configured any more; a failure of it is logged.
        :raises InvalidArgument: if a type is immutable.
        :raises PodkeepError: if a type refuses; ``current`` is in force again then.
        """
        undo = UndoStack()
        if wanted:
            with self._guard.of((target.level, target.id)):
                self.catalog.check_change(target.level, current, wanted)
                try:
                    self._put(target, current, wanted, undo, done="changed")
                except BaseException:
                    undo.run()
                    raise
        return partial(self._take_back, target, current, undo)

    def _put(
        self, target: Target, current: Mapping[str, str], wanted: Mapping[str, str], undo: UndoStack, *, done: str
    ) -> None:
        for name in sorted(wanted):
            new, old = wanted[name], current.get(name)
            item = self.catalog.type_with(target.level, name, new)
            # Before the change, for it leads to what can be seen to be in force now.
            way_back = item.way_back(target, new, old)
            if old is not None:
                undo.push(f"take back commands in {target.name}", partial(self._give_commands, item, target, old))
            # First: what they start from now on has the class, and what they started before is found, here or there.
            self._give_commands(item, target, new)
            item.apply(target, new, previous=old)
            undo.push(f"take back {name}={new} of {target.name}", way_back)
            failpoints.reach(f"class.{done}.{name}")
        self._note(target, {**current, **wanted})

    def _give_commands(self, item: ClassResource, target: Target, class_name: str) -> None:
        if (step := item.entering(target, class_name)) is not None:
            self._commands.give(target, step)

    def _take_back(self, target: Target, classes: Mapping[str, str], undo: UndoStack) -> None:
        with self._guard.of((target.level, target.id)):
            undo.run()
            self._note(target, classes)

    def _note(self, target: Target, classes: Mapping[str, str]) -> None:
        if classes:
            self._assigned[target.level, target.id] = Assignment(target=target, classes=dict(classes))
        else:
            self._assigned.pop((target.level, target.id), None)

    def verify(self, target: Target, classes: Mapping[str, str]) -> None:
        """Check that everything that was applied is in force.

        :param classes: those of the record; a change that came after somebody read it counts.
        :raises FailedPrecondition: saying what is not.
        """
        with self._guard.of((target.level, target.id)):
            assigned = self._assigned.get((target.level, target.id))
            classes = classes if assigned is None else assigned.classes
            for name in sorted(classes):
                self.catalog.type_with(target.level, name, classes[name]).verify(target, classes[name])

    def release(self, target: Target, classes: Mapping[str, str]) -> None:
        """Take what ended, or never came to be, out of its classes; safe to repeat. Every type gets its turn.

        :raises PodkeepError: the first error of a type.
        """
        with self._guard.of((target.level, target.id)):
            self._assigned.pop((target.level, target.id), None)
            self._commands.forget(target)
            failed: PodkeepError | None = None
            for name in sorted(classes):
                item = self.catalog.types.get(name)
                if item is None:
                    text = "%s keeps its class of %s: the type is no longer configured"
                    log.warning(text, target.name, name)
                    continue
                try:
                    item.release(target, classes[name])
                except PodkeepError as error:
                    log.warning("%s could not be released from %s=%s: %s", target.name, name, classes[name], error)
                    failed = failed or error
                failpoints.reach(f"class.released.{name}")
            if failed is not None:
                raise failed

    def start(self, in_use: Sequence[Mapping[str, str]] = ()) -> None:
        """Put the configuration into force when the daemon starts.

        :param in_use: the classes of every container and pod that has some.
        :raises PodkeepError: if a type cannot. Those before it are in force then; :meth:`close` undoes that.
        """
        with self._guard.alone():
            for name, item in self.catalog.types.items():
                used = {classes[name] for classes in in_use if name in classes}
                item.activate(used, previous=None)

    def restore(self, target: Target, classes: Mapping[str, str], change: Mapping[str, str]) -> dict[str, str]:
        """Bring what lived on while no daemon ran into the classes of its record, and return those it is in.

        Types and classes that the configuration does not have any more stay as they are: what runs is not ended for
        them. A change from one of them can only be finished.

        :param change: the classes of a change that was not finished.
        :raises PodkeepError: the first error of a type; every type gets its turn.
        """
        in_force, failed = dict(classes), list[PodkeepError]()
        with self._guard.of((target.level, target.id)):
            self._note(target, classes)
            for name in sorted({*classes, *change}):
                try:
                    if self._restore(target, name, classes.get(name), change.get(name)):
                        in_force[name] = change[name]
                except PodkeepError as error:
                    log.warning("%s: %s", target.name, error)
                    failed.append(error)
            self._note(target, in_force)
        if failed:
            raise failed[0]
        return in_force

    def _restore(self, target: Target, name: str, wanted: str | None, other: str | None) -> bool:
        """Put ``target`` back into class ``wanted`` of a type; return whether it is in ``other`` instead."""
        item, has = self.catalog.types.get(name), partial(self.catalog.has, target.level, name)
        finish = False
        if item is None or (wanted is not None and not has(wanted)):
            if item is None or other is None or not has(other):
                reason = "" if item is None else item.why_not(target.level)
                state = f"not offered: {reason}" if reason else "not configured any more"
                log.warning("%s keeps class %s of %s, which is %s", target.name, wanted, name, state)
                return False
            log.info("%s: %s is gone, so a change to %s=%s is finished", target.name, wanted, name, other)
            wanted, other, finish = other, wanted, True
        if wanted is None:
            assert other is not None
            log.info("%s: taking back an unfinished change to %s=%s", target.name, name, other)
            item.release(target, other)
            return False
        if other is None:
            try:
                item.verify(target, wanted)
                return False
            except PodkeepError as error:
                log.info("%s is put back into %s=%s: %s", target.name, name, wanted, error)
        item.apply(target, wanted, previous=other or wanted)
        item.verify(target, wanted)
        return finish

    def replace(self, new: ClassResources) -> None:
        """Put another configuration into force, for what is in a class already, too; all of it or nothing.

        :raises FailedPrecondition: if a class that something is in is not offered any more.
        :raises PodkeepError: if a type cannot work, or something cannot get what its class means now; what was in
            force stays in force.
        """
        with self._guard.alone():
            old, coming = self.catalog, new.catalog
            # What ended and is not released yet must not keep its class in the configuration.
            self._forget_dead()
            for item in self._assigned.values():
                coming.check_keeps(old, item.target.level, item.classes, item.target.name)
            touched: list[Assignment] = []
            with UndoStack() as undo:
                # The first to be pushed is the last to be undone: when the former types are in force again.
                undo.push("give everything what its classes meant", partial(_reapply_all, old, touched))
                for name, item_type in coming.types.items():
                    before = old.types.get(name)
                    item_type.activate(self._used(name), previous=before)
                    undo.push(f"put the former {name} classes into force", self._reactivating(item_type, before))
                failpoints.reach("class.activated")
                for assignment in self._assigned.values():
                    touched.append(assignment)
                    _reapply(coming, assignment)
            self.catalog = coming
            self.generation += 1
            # Last: until here a reload that fails goes back to them.
            for name in sorted(old.types.keys() - coming.types.keys()):
                _deactivate(old.types[name])

    def _reactivating(self, item: ClassResource, before: ClassResource | None) -> Callable[[], None]:
        if before is None:
            return item.deactivate
        return lambda: before.activate(self._used(before.name), previous=item)

    def _used(self, name: str) -> frozenset[str]:
        return frozenset(item.classes[name] for item in self._assigned.values() if name in item.classes)

    def _forget_dead(self) -> None:
        for key, assignment in list(self._assigned.items()):
            if _ended(assignment.target):
                del self._assigned[key]

    def close(self) -> None:
        """Give back what serves all classes; nothing is in one any more."""
        with self._guard.alone():
            for item in self.catalog.types.values():
                _deactivate(item)

    def assignments(self) -> tuple[Assignment, ...]:
        return tuple(self._assigned.values())

    def users(self) -> list[dict[str, Any]]:
        """Return who is in which classes, for ``podkeep classes``; JSON."""
        users = [
            {"level": item.target.level.value, "id": item.target.id, "name": item.target.name, "classes": item.classes}
            for item in self.assignments()
        ]
        return sorted(users, key=lambda user: (user["name"], user["id"]))


def _enter_with_score(score: int, enter: Enter | None, pid: int) -> None:
    procfs.set_oom_score_adj(pid, score)
    if enter is not None:
        enter(pid)


def _ended(target: Target) -> bool:
    return target.process is not None and not procfs.alive(target.process)


def _reapply(catalog: Catalog, assignment: Assignment) -> None:
    """Give what is in a class what it means in ``catalog``; what ended meanwhile is left alone."""
    target = assignment.target
    try:
        for name, class_name in sorted(assignment.classes.items()):
            if catalog.has(target.level, name, class_name):
                catalog.types[name].apply(target, class_name, previous=class_name)
    except PodkeepError:
        if not _ended(target):
            raise


def _reapply_all(catalog: Catalog, assignments: Iterable[Assignment]) -> None:
    for assignment in assignments:
        try:
            _reapply(catalog, assignment)
        except PodkeepError as error:
            log.warning("%s does not have what its classes mean: %s", assignment.target.name, error)


def _deactivate(item: ClassResource) -> None:
    try:
        item.deactivate()
    except PodkeepError as error:
        log.warning("%s cannot be released: %s", problem(item.name, "something"), error)
