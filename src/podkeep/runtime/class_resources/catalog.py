"""What is configured: the types of class resources of one configuration, their classes, and the node's defaults.

Owns: names to classes (``default`` among them), and refusing what is not offered. Does not own: putting anything into a
class (``registry.py``, which replaces the catalog at a reload). Never changes and looks only; a type may look at the
machine to answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podkeep.base.errors import FailedPrecondition, InvalidArgument, PermissionDenied
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import listed
from podkeep.runtime.class_resources.annotations import Annotation
from podkeep.runtime.class_resources.model import DEFAULT_CLASS, ClassResource, Level, Offer, problem

_SHOWN_NAMES = 20
"""Names that a hint has at most."""


class OfferedType(FrozenStruct, kw_only=True):
    """A type as it is offered at one level. ``default``: the class that ``default`` stands for; empty: none."""

    name: str
    offer: Offer
    default: str = ""


class Catalog(FrozenStruct, kw_only=True):
    """One configuration. ``types`` are by name and in its order."""

    types: Mapping[str, ClassResource] = msgspec.field(default_factory=dict)
    defaults: Mapping[Level, Mapping[str, str]] = msgspec.field(default_factory=dict)
    """For each level types to the classes that the node chose."""
    disabled: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Types that podkeep knows and the configuration does not have, and why."""

    def offers(self, level: Level) -> tuple[OfferedType, ...]:
        """Return what is offered at a level, sorted by name."""
        return tuple(
            OfferedType(name=name, offer=offer, default=self._default(level, name, offer))
            for name in self.types
            if (offer := self._offer(level, name)) is not None
        )

    def why_not(self, level: Level, name: str) -> str:
        """Return why nothing of a type is offered at a level; empty if something is, or there is no such type."""
        return self.types[name].why_not(level) if name in self.types else self.disabled.get(name, "")

    def has(self, level: Level, name: str, class_name: str) -> bool:
        offer = self._offer(level, name)
        return offer is not None and class_name in offer.classes

    def type_with(self, level: Level, name: str, class_name: str) -> ClassResource:
        """Return the type of a class that was offered when it was asked for.

        :raises FailedPrecondition: if it is not offered any more.
        """
        if not self.has(level, name, class_name):
            raise FailedPrecondition(
                problem(name, f"class {class_name!r} is not configured any more"),
                hint="the node's configuration changed",
            )
        return self.types[name]

    def resolve(self, level: Level, asked: Mapping[str, str]) -> dict[str, str]:
        """Return types to the classes that a request means, each of them offered and possible now.

        :raises InvalidArgument: if there is no such type or class at ``level``, or no default.
        :raises FailedPrecondition: if this node does not have the type, or cannot give the class now.
        """
        result = {}
        for name in sorted(asked):
            item, offer = self._offered(level, name)
            wanted = asked[name]
            if wanted == DEFAULT_CLASS:
                wanted = self._required_default(level, name, offer)
            elif wanted not in offer.classes:
                raise InvalidArgument(
                    problem(name, f"no class {wanted!r} for {level.value}s"), hint=f"offered: {_listed(offer.classes)}"
                )
            item.check(level, wanted)
            result[name] = wanted
        return result

    def check_change(self, level: Level, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        """Check that resolved classes can take the place of others in what exists.

        :raises InvalidArgument: if a type is immutable and its class would change.
        """
        for name, class_name in wanted.items():
            _, offer = self._offered(level, name)
            if offer.immutable and current.get(name) != class_name:
                has = f"it has {current[name]!r}" if name in current else "it has none"
                raise InvalidArgument(
                    problem(name, f"the class of a {level.value} is immutable, {has}"),
                    hint=f"create the {level.value} anew to have class {class_name!r}",
                )

    def check_annotations(self, found: Mapping[str, Annotation]) -> None:
        """Check that annotations may ask for the classes of a container that they ask for; unknown ones are no error.

        :raises PermissionDenied: naming the annotation that may not.
        """
        for name, annotation in found.items():
            item, wanted = self.types.get(name), annotation.class_name
            if wanted == DEFAULT_CLASS:
                wanted = self.defaults[Level.CONTAINER].get(name, wanted)
            if item is not None and item.denies_annotation(wanted, annotation.origin):
                raise PermissionDenied(
                    problem(name, f"class {wanted!r} cannot be requested by an annotation of a {annotation.origin}"),
                    hint=f"the node's configuration denies it; leave {annotation.key} out",
                )

    def check_keeps(self, before: Catalog, level: Level, classes: Mapping[str, str], user: str) -> None:
        """Check that what is in classes of the catalog ``before`` can stay in them.

        :raises FailedPrecondition: naming the class that would be gone, and ``user``.
        """
        for name, class_name in classes.items():
            if before.has(level, name, class_name) and not self.has(level, name, class_name):
                raise FailedPrecondition(
                    problem(name, f"class {class_name!r} would be gone, and {user} is in it"),
                    hint=f"end the {level.value}, or give it another class, first",
                )

    def describe(self) -> dict[str, Any]:
        """Return what the classes of each type mean here, and why a type that podkeep knows is not offered; JSON.

        ``disabled`` is why the configuration does not have a type, ``notOffered`` why one that it has offers nothing at
        a level.
        """
        result: dict[str, Any] = {}
        for name, item in self.types.items():
            reasons = {level.value: why for level in Level if (why := item.why_not(level))}
            result[name] = item.describe() | ({"notOffered": reasons} if reasons else {})
        return result | {name: {"disabled": reason} for name, reason in self.disabled.items()}

    def _offer(self, level: Level, name: str) -> Offer | None:
        return self.types[name].offers().get(level) if name in self.types else None

    def _offered(self, level: Level, name: str) -> tuple[ClassResource, Offer]:
        item = self.types.get(name)
        if item is None:
            if name in self.disabled:
                raise FailedPrecondition(problem(name, self.disabled[name]))
            raise InvalidArgument(
                problem(name, "this node has no such type"), hint=f"it has: {_listed(tuple(self.types))}"
            )
        offers = item.offers()
        if level in offers:
            return item, offers[level]
        reason = item.why_not(level) or f"it has no classes for {level.value}s"
        if not offers:
            raise FailedPrecondition(problem(name, reason))
        raise InvalidArgument(problem(name, reason), hint=f"its classes are for {_listed(tuple(offers))}s")

    def _default(self, level: Level, name: str, offer: Offer) -> str:
        chosen = self.defaults.get(level, {}).get(name, "")
        return chosen if chosen in offer.classes else ""

    def _required_default(self, level: Level, name: str, offer: Offer) -> str:
        chosen = self._default(level, name, offer)
        if not chosen:
            raise InvalidArgument(
                problem(name, f"this node has no default class for {level.value}s"),
                hint=f"name one of {_listed(offer.classes)}, or set class_resources.{level.value}_defaults",
            )
        return chosen


def _listed(names: Sequence[str]) -> str:
    return listed(names, _SHOWN_NAMES) or "none"
