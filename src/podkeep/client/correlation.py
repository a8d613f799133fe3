"""Which events are written, and how: repeated ones are counted, similar ones combined, and too many left out. Pure.

The rules and their figures are client-go's (tools/record, events_cache.go).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from msgspec import structs

from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import rfc3339

MAX_KEYS = 4096
"""Of each cache: those that were not used for the longest time go."""
SIMILAR = 10
"""Different messages of one reason, from which on they are combined."""
SIMILAR_S = 600.0
BURST = 25
"""Events of one source about one object at once."""
REFILL_S = 300.0
"""After which one more may be written."""
_COMBINED = "(combined from similar events): "

Value = TypeVar("Value")


class Reference(FrozenStruct, kw_only=True):
    """What an event is about (v1.ObjectReference)."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"
    resource_version: str = ""
    field_path: str = ""

    @property
    def object(self) -> tuple[str, ...]:
        """The object itself, whatever part of it."""
        return self.kind, self.namespace, self.name, self.uid, self.api_version


class Occurrence(FrozenStruct, kw_only=True):
    """Something that happened once. ``time``: seconds since 1970."""

    about: Reference
    type: str
    reason: str
    message: str
    time: float
    annotations: tuple[tuple[str, str], ...] = ()


@dataclass(kw_only=True)
class RecordedEvent:
    """An event as the API has it: one object for all that are the same."""

    occurrence: Occurrence
    name: str
    first: float
    last: float
    count: int = 1
    exists: bool = False
    """The API has it, so that it is patched."""

    def forget_text(self) -> None:
        """Keep no text of it: each occurrence brings its own, and pods may have thousands of long ones told."""
        self.occurrence = structs.replace(self.occurrence, message="", annotations=())


@dataclass(kw_only=True)
class _Similar:
    messages: set[int] = field(default_factory=set)
    """Hashes of them: texts may be long."""
    last: float = 0.0


@dataclass(kw_only=True)
class _Bucket:
    tokens: float = float(BURST)
    at: float = 0.0


class _Recent(Generic[Value]):
    """The values that were used last."""

    def __init__(self) -> None:
        self._values: OrderedDict[Any, Value] = OrderedDict()

    def get(self, key: Any) -> Value | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Any, value: Value) -> Value:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > MAX_KEYS:
            self._values.popitem(last=False)
        return value


class Correlator:
    """Of one source: a component on a host."""

    def __init__(self) -> None:
        self._similar: _Recent[_Similar] = _Recent()
        self._written: _Recent[RecordedEvent] = _Recent()
        self._buckets: _Recent[_Bucket] = _Recent()

    def take(self, occurrence: Occurrence) -> RecordedEvent | None:
        """Return the event that an occurrence makes or counts; None: it is one too many."""
        key, combined = self._combined(occurrence)
        known = self._written.get(key)
        if known is None:
            name = f"{occurrence.about.name}.{int(occurrence.time * 1e9):x}"
            event = RecordedEvent(occurrence=combined, name=name, first=occurrence.time, last=occurrence.time)
            known = self._written.put(key, event)
        else:
            known.occurrence, known.last, known.count = combined, occurrence.time, known.count + 1
        if self._allowed(occurrence):
            return known
        known.forget_text()
        return None

    def _combined(self, occurrence: Occurrence) -> tuple[Any, Occurrence]:
        """Return the key and the content of the event, which may stand for similar ones."""
        about = occurrence.about
        group = (*about.object, occurrence.type, occurrence.reason)
        similar = self._similar.get(group)
        if similar is None or occurrence.time - similar.last > SIMILAR_S:
            similar = self._similar.put(group, _Similar())
        similar.last = occurrence.time
        text = hash(occurrence.message)
        similar.messages.add(text)
        if len(similar.messages) < SIMILAR:
            return (*group, about.field_path, text), occurrence
        similar.messages.pop()
        return group, Occurrence(
            about=about,
            type=occurrence.type,
            reason=occurrence.reason,
            message=_COMBINED + occurrence.message,
            time=occurrence.time,
            annotations=occurrence.annotations,
        )

    def _allowed(self, occurrence: Occurrence) -> bool:
        key = occurrence.about.object
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets.put(key, _Bucket(at=occurrence.time))
        bucket.tokens = min(bucket.tokens + max(occurrence.time - bucket.at, 0.0) / REFILL_S, float(BURST))
        bucket.at = occurrence.time
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


def body(event: RecordedEvent, component: str, host: str) -> dict[str, Any]:
    """Return an event as the API takes it (v1.Event)."""
    occurrence = event.occurrence
    about = occurrence.about
    involved = {
        "kind": about.kind,
        "namespace": about.namespace,
        "name": about.name,
        "uid": about.uid,
        "apiVersion": about.api_version,
        "resourceVersion": about.resource_version,
        "fieldPath": about.field_path,
    }
    metadata: dict[str, Any] = {"name": event.name, "namespace": about.namespace or "default"}
    if occurrence.annotations:
        metadata["annotations"] = dict(occurrence.annotations)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": {key: value for key, value in involved.items() if value},
        "reason": occurrence.reason,
        "message": occurrence.message,
        "source": {"component": component, **({"host": host} if host else {})},
        "firstTimestamp": rfc3339.of_seconds(event.first),
        "lastTimestamp": rfc3339.of_seconds(event.last),
        "count": event.count,
        "type": occurrence.type,
        "eventTime": None,
        "reportingComponent": component,
        "reportingInstance": host,
    }


def change(event: RecordedEvent) -> dict[str, Any]:
    """Return the patch of an event that happened again."""
    return {
        "message": event.occurrence.message,
        "lastTimestamp": rfc3339.of_seconds(event.last),
        "count": event.count,
    }
