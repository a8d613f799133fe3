"""Events go an hour after they were last seen (kube-apiserver: ``--event-ttl``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from podkeep.apiserver.controllers.controller import NOTHING, Change, Delete, Item, Plan, service_account
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.storage.records import Key

EVENTS = "events"
TTL = timedelta(hours=1)


class EventExpiry:
    """The controller. ``ttl`` is how long events stay."""

    name = "event-ttl-controller"
    user = service_account(name)
    resources = frozenset({EVENTS})

    def __init__(self, ttl: timedelta = TTL) -> None:
        self._ttl = ttl
        self._since: dict[Key, datetime] = {}
        """Of events of the future, when they were looked at first as they are: they would stay until it comes."""

    def observe(self, change: Change) -> Iterator[Item]:
        self._since.pop(change.key, None)
        if not change.is_deletion:
            yield change.key

    def reconcile(self, item: Item, lister: Lister, now: datetime) -> Plan:
        assert isinstance(item, Key)
        event = lister.get(*item)
        if event is None:
            return NOTHING
        seen = last_seen(event, now)
        if seen == now:
            seen = self._since.setdefault(item, now)
        left = (seen + self._ttl - now).total_seconds()
        if left > 0:
            return Plan(after=left)
        delete = Delete(
            resource=EVENTS,
            namespace=item.namespace,
            name=item.name,
            uid=event["metadata"]["uid"],
            # For this revision alone: the event may have been told again since.
            revision=event["metadata"]["resourceVersion"],
        )
        return Plan(writes=[delete])


def last_seen(event: Mapping[str, Any], now: datetime) -> datetime:
    """Return when an event was told of last; what clients say of the future counts as now."""
    times = (
        event["metadata"].get("creationTimestamp"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("series", {}).get("lastObservedTime"),
    )
    return min(now, max(datetime.fromisoformat(text) for text in times if text))
