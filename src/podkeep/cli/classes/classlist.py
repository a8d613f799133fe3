"""What ``podkeep classes`` says: the class resources that a runtime offers, and who is in which class. Pure.

Owns: the reading of what the runtime reports (KEP-3008, RuntimeStatus) and its lines. What is beyond CRI, such as users
and reasons, is podkeep's own verbose status and may be absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from podkeep.base.frozen import FrozenStruct
from podkeep.cli.core.output import Columns
from podkeep.cri.v1 import api_pb2

CONTAINER, POD = "container", "pod"

_NOTHING = api_pb2.ClassResourceInfo(immutable=True)
"""Stands for a type that is not offered."""
_SHOWN_USERS = 2
"""So many are named in the table; JSON has all."""


class ClassRow(FrozenStruct, kw_only=True):
    """One class, and the containers (``namespace/pod/container``) or pods (``namespace/pod``) that are in it."""

    name: str
    users: tuple[str, ...] = ()


class TypeRow(FrozenStruct, kw_only=True):
    """One type at one level; ``default`` is the class that ``default`` stands for, empty without one."""

    name: str
    level: str
    mutable: bool
    default: str
    classes: tuple[ClassRow, ...]


COLUMNS: Columns[tuple[TypeRow, ClassRow]] = {
    "TYPE": lambda row: row[0].name,
    "LEVEL": lambda row: row[0].level,
    "CLASS": lambda row: row[1].name,
    "DEFAULT": lambda row: "yes" if row[1].name == row[0].default else "-",
    "MUTABLE": lambda row: "yes" if row[0].mutable else "no",
    "USED BY": lambda row: _shown(row[1].users),
}


class NotOffered(FrozenStruct, kw_only=True):
    """A type that the configuration has and that offers nothing at a level."""

    name: str
    level: str
    why: str


class ClassReport(FrozenStruct, kw_only=True):
    """Everything that is known of the class resources of a node."""

    types: tuple[TypeRow, ...]
    """What is offered."""
    left: tuple[TypeRow, ...] = ()
    """What is not offered any more, with the classes that something is in."""
    not_offered: tuple[NotOffered, ...] = ()
    disabled: Mapping[str, str]
    """Types that the configuration does not have, and what would give them."""
    meaning: Mapping[str, Any]
    """By type: what its classes are on this node."""

    def rows(self) -> list[tuple[TypeRow, ClassRow]]:
        types = sorted((*self.types, *self.left), key=lambda item: (item.name, item.level))
        return [(item, name) for item in types for name in item.classes]

    def offered(self, name: str) -> dict[str, TypeRow]:
        """Return the type by level; empty if it is not offered at any."""
        return {item.level: item for item in self.types if item.name == name}

    def notes(self) -> list[str]:
        """Return the lines below the table: what the node was told to offer and cannot, and what it was not told.

        That a type is for one level only is not worth one, as long as the other is offered.
        """
        lines = [
            f"not offered: {item.name} for {item.level}s: {item.why}"
            for item in self.not_offered
            if not self.offered(item.name)
        ]
        if self.disabled:
            lines.append(f"not configured: {', '.join(sorted(self.disabled))}")
        return lines


def _shown(users: Sequence[str]) -> str:
    if not users:
        return "-"
    rest = len(users) - _SHOWN_USERS
    return ", ".join([*users[:_SHOWN_USERS], *([f"+{rest}"] if rest > 0 else [])])


def report(resources: api_pb2.ResourcesInfo, info: Mapping[str, str]) -> ClassReport:
    """Return the report of what a runtime's status says.

    :param info: its verbose part.
    """
    described: dict[str, dict[str, Any]] = json.loads(info.get("classResources", "{}"))
    users: list[dict[str, Any]] = json.loads(info.get("classResourceUsers", "[]"))
    known = {
        (item.Name, level): item
        for level, infos in ((CONTAINER, resources.container_class_resources), (POD, resources.pod_class_resources))
        for item in infos
    }
    in_use = {(name, user["level"]) for user in users for name in user["classes"]}
    return ClassReport(
        types=tuple(_type_row(*key, known[key], users) for key in sorted(known)),
        left=tuple(_type_row(*key, _NOTHING, users) for key in sorted(in_use - known.keys())),
        not_offered=tuple(
            NotOffered(name=name, level=level, why=why)
            for name, meaning in sorted(described.items())
            for level, why in sorted(meaning.get("notOffered", {}).items())
        ),
        disabled={name: meaning["disabled"] for name, meaning in sorted(described.items()) if "disabled" in meaning},
        meaning={
            name: {key: value for key, value in meaning.items() if key != "notOffered"}
            for name, meaning in sorted(described.items())
            if "disabled" not in meaning
        },
    )


def _type_row(name: str, level: str, offered: api_pb2.ClassResourceInfo, users: Iterable[Mapping[str, Any]]) -> TypeRow:
    by_class: dict[str, list[str]] = {}
    for user in users:
        if user["level"] == level and name in user["classes"]:
            by_class.setdefault(user["classes"][name], []).append(user["name"])
    names = [item.Name for item in offered.classes]
    # What was taken out of the configuration while the runtime was down is still in use.
    gone = sorted(by_class.keys() - set(names))
    return TypeRow(
        name=name,
        level=level,
        mutable=not offered.immutable,
        default=offered.default_class,
        classes=tuple(ClassRow(name=item, users=tuple(by_class.get(item, ()))) for item in [*names, *gone]),
    )
