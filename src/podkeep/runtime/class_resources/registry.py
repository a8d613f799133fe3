"""The types of class resources of this node, and everything that concerns several of them at once.

Owns: names to classes (``default`` among them), refusing what is not offered, all-or-nothing over several types, which
containers and pods are in a class, and replacing the configuration while they are. Does not own: what a class means
(each type), records (``runtime/containers.py``, ``runtime/sandboxes.py``) or reading the configuration
(``loading.py``). Everything but looking up names blocks; it is called on threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from podkeep.base import failpoints
from podkeep.base.errors import FailedPrecondition, InvalidArgument, PermissionDenied, PodkeepError
from podkeep.base.undo import UndoStack
from podkeep.kernel import procfs
from podkeep.runtime.class_resources.annotations import Annotation
from podkeep.runtime.class_resources.guard import Guard, TargetLocks
from podkeep.runtime.class_resources.model import DEFAULT_CLASS, ClassResource, Level, Offer, Target, problem

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class OfferedType:
    """A type as it is offered at one level. ``default``: the class that ``default`` stands for; empty: none."""

    name: str
    offer: Offer
    default: str = ""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A container or pod, and the class it has of each type."""

    target: Target
    classes: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _Set:
    """One configuration. Replaced as a whole."""

    types: Mapping[str, ClassResource] = field(default_factory=dict)
    defaults: Mapping[Level, Mapping[str, str]] = field(default_factory=dict)
    disabled: Mapping[str, str] = field(default_factory=dict)
    """Types that podkeep knows and this node's configuration does not have, and why."""


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
        """Take types that are configured; nothing is in force before :meth:`start`."""
        self._set = _Set(
            types={item.name: item for item in sorted(types, key=lambda item: item.name)},
            defaults={Level.CONTAINER: dict(container_defaults or {}), Level.POD: dict(pod_defaults or {})},
            disabled=dict(disabled or {}),
        )
        self._guard = Guard()
        self._assigned: dict[tuple[Level, str], Assignment] = {}
        self._locks = TargetLocks()
        self.generation = 0
        """Changes with every reload, so that what is derived from the offers can be kept until then."""

    def offers(self, level: Level) -> tuple[OfferedType, ...]:
        """Return what is offered at a level, sorted by name."""
        current = self._set
        return tuple(
            OfferedType(name=name, offer=offer, default=_default(current, level, name, offer))
            for name, item in current.types.items()
            if (offer := item.offers().get(level)) is not None
        )

    def why_not(self, level: Level, name: str) -> str:
        """Return why a configured type offers nothing at a level; empty if it does, or is none."""
        item = self._set.types.get(name)
        return "" if item is None else item.why_not(level)

    def resolve(self, level: Level, asked: Mapping[str, str]) -> dict[str, str]:
        """Return types to the classes that a request means, each of them offered and possible now.

        :raises InvalidArgument: if there is no such type or class at ``level``, or no default.
        :raises FailedPrecondition: if this node does not have the type, or cannot give the class now.
        """
        current = self._set
        result = {}
        for name in sorted(asked):
            item, offer = _offered(current, level, name)
            wanted = asked[name]
            if wanted == DEFAULT_CLASS:
                wanted = _required_default(current, level, name, offer)
            elif wanted not in offer.classes:
                raise InvalidArgument(
                    problem(name, f"no class {wanted!r} for {level.value}s"), hint=f"offered: {_listed(offer.classes)}"
                )
            item.check(level, wanted)
            result[name] = wanted
        return result

    def check_annotations(self, found: Mapping[str, Annotation]) -> None:
        """Check that annotations may ask for the classes of a container that they ask for; unknown ones are no error.

        :raises PermissionDenied: naming the annotation that may not.
        """
        current = self._set
        for name, annotation in found.items():
            item, wanted = current.types.get(name), annotation.class_name
            if wanted == DEFAULT_CLASS:
                wanted = current.defaults[Level.CONTAINER].get(name, wanted)
            if item is not None and item.denies_annotation(wanted, annotation.origin):
                raise PermissionDenied(
                    problem(name, f"class {wanted!r} cannot be had by an annotation of a {annotation.origin}"),
                    hint=f"the node's configuration denies it; leave {annotation.key} out",
                )

    def edit(self, classes: Mapping[str, str], config: dict[str, Any]) -> dict[str, Any]:
        """Return the OCI configuration of a container with what says its classes; ``config`` is left as it is.

        :raises FailedPrecondition: if a type is not there any more.
        """
        for name in sorted(classes):
            config = self._type(name).edit(classes[name], config)
        return config

    def command(
        self, target: Target, classes: Mapping[str, str], config: dict[str, Any]
    ) -> tuple[dict[str, Any], Callable[[int], None] | None]:
        """Return what a command that is run in a container starts with: the OCI configuration, and how it gets in.

        :param config: the container's, as it was created.
        """
        current, steps = self._set, []
        for name in sorted(classes):
            if _has(current, target.level, name, classes[name]):
                config = current.types[name].edit(classes[name], config)
            item = current.types.get(name)
            step = None if item is None else item.entering(target, classes[name])
            if step is not None:
                steps.append(step)

        def enter(pid: int) -> None:
            for step in steps:
                step(pid)

        return config, enter if steps else None

    def apply(self, target: Target, classes: Mapping[str, str]) -> None:
        """Put a new container or pod into its classes, all of them or none.

        :raises PodkeepError: if a type refuses; the others are undone then.
        """
        if not classes:
            return
        with self._working_on(target), UndoStack() as undo:
            for name in sorted(classes):
                item, wanted = self._type(name), classes[name]
                item.apply(target, wanted)
                undo.push(f"release {target.name} from {name}={wanted}", _releasing(item, target, wanted))
                failpoints.reach(f"class.applied.{name}")
            self._assigned[target.level, target.id] = Assignment(target=target, classes=dict(classes))

    def check_change(self, level: Level, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        """Check that resolved classes can take the place of others in what exists; looks only.

        :raises InvalidArgument: if a type is immutable and its class would change.
        """
        held = self._set
        for name, class_name in wanted.items():
            _, offer = _offered(held, level, name)
            if offer.immutable and current.get(name) != class_name:
                has = f"it has {current[name]!r}" if name in current else "it has none"
                raise InvalidArgument(
                    problem(name, f"the class of a {level.value} is immutable, {has}"),
                    hint=f"create the {level.value} anew to have class {class_name!r}",
                )

    def change(self, target: Target, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        """Change the classes of ``wanted``, resolved names, and leave those of other types; all of them or none.

        :param current: the classes in force.
        :raises InvalidArgument: if a type is immutable.
        :raises PodkeepError: if a type refuses; ``current`` is in force again then.
        """
        if not wanted:
            return
        with self._working_on(target), UndoStack() as undo:
            self.check_change(target.level, current, wanted)
            for name in sorted(wanted):
                item, new, old = self._type(name), wanted[name], current.get(name)
                item.apply(target, new, previous=old)
                description = f"take back {name}={new} of {target.name}"
                undo.push(description, _returning(item, target, new, old))
                failpoints.reach(f"class.changed.{name}")
            classes = {**current, **wanted}
            self._assigned[target.level, target.id] = Assignment(target=target, classes=classes)

    def verify(self, target: Target, classes: Mapping[str, str]) -> None:
        """Check that everything that was applied is in force.

        :param classes: those of the record; a change that came after somebody read it counts.
        :raises FailedPrecondition: saying what is not.
        """
        with self._working_on(target):
            assigned = self._assigned.get((target.level, target.id))
            classes = classes if assigned is None else assigned.classes
            for name in sorted(classes):
                self._type(name).verify(target, classes[name])

    def release(self, target: Target, classes: Mapping[str, str]) -> None:
        """Take what ended, or never came to be, out of its classes; safe to repeat. Every type gets its turn.

        :raises PodkeepError: the first error of a type.
        """
        with self._working_on(target):
            self._assigned.pop((target.level, target.id), None)
            failed: PodkeepError | None = None
            for name in sorted(classes):
                item = self._set.types.get(name)
                if item is None:
                    log.info(
                        "%s was in class %s of %s, which is not configured any more", target.name, classes[name], name
                    )
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
            for name, item in self._set.types.items():
                used = {classes[name] for classes in in_use if name in classes}
                item.activate(used, previous=None)

    def restore(self, target: Target, classes: Mapping[str, str], change: Mapping[str, str]) -> None:
        """Bring what lived on while no daemon ran into the classes of its record.

        Types and classes that the configuration does not have any more stay as they are: what runs is not ended for
        them.

        :param change: the classes of a change that nobody finished.
        :raises PodkeepError: the first error of a type; every type gets its turn.
        """
        with self._working_on(target):
            self._assigned[target.level, target.id] = Assignment(target=target, classes=dict(classes))
            failed: PodkeepError | None = None
            for name in sorted({*classes, *change}):
                try:
                    self._restore(target, name, classes.get(name), change.get(name))
                except PodkeepError as error:
                    log.warning("%s: %s", target.name, error)
                    failed = failed or error
            if failed is not None:
                raise failed

    def _restore(self, target: Target, name: str, wanted: str | None, other: str | None) -> None:
        item = self._set.types.get(name)
        if item is None or (wanted is not None and not _has(self._set, target.level, name, wanted)):
            log.warning("%s keeps class %s of %s, which is not configured any more", target.name, wanted, name)
            return
        if wanted is None:
            assert other is not None
            log.info("%s: taking back an unfinished change to %s=%s", target.name, name, other)
            item.release(target, other)
            return
        if other is None:
            try:
                item.verify(target, wanted)
            except FailedPrecondition as error:
                log.info("%s is put back into %s=%s: %s", target.name, name, wanted, error)
            else:
                return
        item.apply(target, wanted, previous=other)
        item.verify(target, wanted)

    def replace(self, new: ClassResources) -> None:
        """Put another configuration into force, for what is in a class already, too; all of it or nothing.

        :raises FailedPrecondition: if a class that something is in is not offered any more.
        :raises PodkeepError: if a type cannot work, or something cannot get what its class means now; what was in
            force stays in force.
        """
        with self._guard.alone():
            old, coming = self._set, new._set
            self._forget_dead()
            for assignment in self._assigned.values():
                _check_kept(old, coming, assignment)
            with UndoStack() as undo:
                for name, item in coming.types.items():
                    before = old.types.get(name)
                    item.activate(self._used(name), previous=before)
                    undo.push(f"put the former {name} classes into force", self._reactivating(item, before))
                for assignment in list(self._assigned.values()):
                    undo.push(
                        f"give {assignment.target.name} what its classes meant",
                        lambda assignment=assignment: _reapply(old, assignment),  # type: ignore[misc]
                    )
                    _reapply(coming, assignment)
            self._set = coming
            self.generation += 1
            for name in old.types.keys() - coming.types.keys():
                _deactivate(old.types[name])

    def _reactivating(self, item: ClassResource, before: ClassResource | None) -> Callable[[], None]:
        if before is None:
            return item.deactivate
        return lambda: before.activate(self._used(before.name), previous=item)

    def _used(self, name: str) -> frozenset[str]:
        return frozenset(item.classes[name] for item in self._assigned.values() if name in item.classes)

    def _forget_dead(self) -> None:
        for key, assignment in list(self._assigned.items()):
            process = assignment.target.process
            if process is not None and not procfs.alive(process):
                del self._assigned[key]

    def close(self) -> None:
        """Give back what serves all classes; nothing is in one any more."""
        with self._guard.alone():
            for item in self._set.types.values():
                _deactivate(item)

    def assignments(self) -> tuple[Assignment, ...]:
        """Return what is in a class now."""
        return tuple(self._assigned.values())

    def users(self) -> list[dict[str, Any]]:
        """Return who is in which classes, for ``podkeep classes``; JSON."""
        users = [
            {"level": item.target.level.value, "id": item.target.id, "name": item.target.name, "classes": item.classes}
            for item in self.assignments()
        ]
        return sorted(users, key=lambda user: (user["name"], user["id"]))

    def describe(self) -> dict[str, Any]:
        """Return what the classes of each type mean here, and why a type that podkeep knows is not offered; JSON.

        ``disabled`` is why the configuration does not have a type, ``notOffered`` why one that it has offers nothing at
        a level.
        """
        current = self._set
        result: dict[str, Any] = {}
        for name, item in current.types.items():
            reasons = {level.value: why for level in Level if (why := item.why_not(level))}
            result[name] = item.describe() | ({"notOffered": reasons} if reasons else {})
        return result | {name: {"disabled": reason} for name, reason in current.disabled.items()}

    def _type(self, name: str) -> ClassResource:
        item = self._set.types.get(name)
        if item is None:
            raise FailedPrecondition(problem(name, "this type is not configured any more"))
        return item

    @contextmanager
    def _working_on(self, target: Target) -> Iterator[None]:
        with self._guard.together(), self._locks.of((target.level, target.id)):
            yield


def _offered(current: _Set, level: Level, name: str) -> tuple[ClassResource, Offer]:
    item = current.types.get(name)
    if item is None:
        if name in current.disabled:
            raise FailedPrecondition(problem(name, current.disabled[name]))
        raise InvalidArgument(
            problem(name, "this node has no such type"), hint=f"it has: {_listed(tuple(current.types))}"
        )
    offers = item.offers()
    if level in offers:
        return item, offers[level]
    reason = item.why_not(level) or f"it has no classes for {level.value}s"
    if not offers:
        raise FailedPrecondition(problem(name, reason))
    raise InvalidArgument(problem(name, reason), hint=f"its classes are for {_listed(tuple(offers))}s")


def _classes(item: ClassResource, level: Level) -> tuple[str, ...]:
    offer = item.offers().get(level)
    return () if offer is None else offer.classes


def _default(current: _Set, level: Level, name: str, offer: Offer) -> str:
    chosen = current.defaults.get(level, {}).get(name, "")
    return chosen if chosen in offer.classes else ""


def _required_default(current: _Set, level: Level, name: str, offer: Offer) -> str:
    chosen = _default(current, level, name, offer)
    if not chosen:
        raise InvalidArgument(
            problem(name, f"this node has no default class for {level.value}s"),
            hint=f"name one of {_listed(offer.classes)}, or set class_resources.{level.value}_defaults",
        )
    return chosen


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20]) or "none"
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


def _check_kept(old: _Set, coming: _Set, assignment: Assignment) -> None:
    """Check that what is in a class that ``old`` has can be in it under ``coming``."""
    target = assignment.target
    for name, class_name in assignment.classes.items():
        if _has(old, target.level, name, class_name) and not _has(coming, target.level, name, class_name):
            raise FailedPrecondition(
                problem(name, f"class {class_name!r} would be gone, and {target.name} is in it"),
                hint=f"end the {target.level.value}, or give it another class, first",
            )


def _has(types: _Set, level: Level, name: str, class_name: str) -> bool:
    item = types.types.get(name)
    return item is not None and class_name in _classes(item, level)


def _reapply(types: _Set, assignment: Assignment) -> None:
    """Give what is in a class what it means; what ended meanwhile is left alone."""
    target = assignment.target
    for name, class_name in sorted(assignment.classes.items()):
        if not _has(types, target.level, name, class_name):
            continue
        try:
            types.types[name].apply(target, class_name, previous=class_name)
        except PodkeepError:
            if target.process is not None and not procfs.alive(target.process):
                return
            raise


def _deactivate(item: ClassResource) -> None:
    try:
        item.deactivate()
    except PodkeepError as error:
        log.warning("%s is not given back: %s", problem(item.name, "something"), error)


def _releasing(item: ClassResource, target: Target, class_name: str) -> Callable[[], None]:
    return lambda: item.release(target, class_name)


def _returning(item: ClassResource, target: Target, new: str, old: str | None) -> Callable[[], None]:
    if old is None:
        return lambda: item.release(target, new)
    return lambda: item.apply(target, old, previous=new)
