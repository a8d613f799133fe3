"""What the store keeps, and what it tells watchers."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Key(NamedTuple):
    """An object's place: ``resource`` is ``GROUP/PLURAL``, of the core group ``PLURAL``; ``namespace`` may be empty."""

    resource: str
    namespace: str
    name: str


class Stored(NamedTuple):
    """One revision of an object: its JSON as it is served, ``metadata.resourceVersion`` and all."""

    key: Key
    revision: int
    value: bytes


class EventType(StrEnum):
    """What a write did."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Event(NamedTuple):
    """A write as watchers see it. ``previous`` is the revision before; None if it made the object.

    Of a deletion, ``stored`` has the object's last state with the revision of the deletion.
    """

    type: EventType
    stored: Stored
    previous: Stored | None
