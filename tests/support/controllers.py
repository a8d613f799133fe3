"""Changes that controllers are told of, without a store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from podkeep.apiserver.controllers.controller import Change, Controller, Item
from podkeep.apiserver.storage.records import Event, EventType, Key, Stored

NOW = datetime(2026, 11, 23, 6, 0, tzinfo=UTC)
"""When controllers are told of changes."""


def change(found: tuple[str, dict[str, Any]], kind: EventType = EventType.MODIFIED) -> Change:
    """Return a change of an object, given with the name of its resource."""
    resource, value = found
    key = Key(resource, value["metadata"].get("namespace", ""), value["metadata"]["name"])
    return Change(Event(kind, Stored(key, 1, msgspec.json.encode(value)), None), NOW)


def told(controller: Controller, found: tuple[str, Any], kind: EventType = EventType.MODIFIED) -> list[Item]:
    """Return what a controller will look at because of a change."""
    return list(controller.observe(change(found, kind)))
