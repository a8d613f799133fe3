"""Events: stored as ``v1`` has them, and shown as ``events.k8s.io/v1`` has them, too."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.cells import at, since
from podkeep.apiserver.kinds.field_rules import immutable, named
from podkeep.apiserver.kinds.resources import Column, Resource, Strategy, View
from podkeep.apiserver.meta.objects import Object, metadata, path_segment
from podkeep.apiserver.patch.values import equal
from podkeep.apiserver.schema.table import Kind

CORE = Kind("", "v1", "Event")
EVENTS = Kind("events.k8s.io", "v1", "Event")
_MAX = 128
_MAX_MESSAGE = 1024
_FIELDS = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
"""What ``events.k8s.io/v1`` calls the fields that ``v1`` has under other names."""
_CORE_FIELDS = {core: name for name, core in _FIELDS.items()}
_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_IMMUTABLE = (
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
)
_NAMED_AS = {"reportingComponent": "reportingController"}
_EMPTY: Mapping[str, Any] = {"involvedObject": {}, "source": {}, "count": 0}


def as_core(value: Mapping[str, Any]) -> Object:
    """Return an event of ``events.k8s.io/v1`` as ``v1`` has it."""
    renamed = {_FIELDS.get(name, name): item for name, item in value.items()}
    return renamed | {"apiVersion": CORE.api_version, "kind": CORE.kind}


def of_core(value: Mapping[str, Any]) -> Object:
    """Return an event of ``v1`` as ``events.k8s.io/v1`` has it."""
    renamed = {_CORE_FIELDS.get(name, name): item for name, item in value.items()}
    return renamed | {"apiVersion": EVENTS.api_version, "kind": EVENTS.kind}


def _validate(value: Object, errors: FieldErrors) -> None:
    _validate_old(value, "reportingComponent", errors)


def _validate_new(value: Object, errors: FieldErrors) -> None:
    _validate_old(as_core(value), "reportingController", errors)


def _validate_old(event: Mapping[str, Any], controller: str, errors: FieldErrors) -> None:
    """Note what is wrong with any event, in the form of ``v1``; ``controller`` is the path of one field."""
    namespace = metadata(event).get("namespace", "")
    about = at(event, "involvedObject", "namespace", default="")
    path, why = "involvedObject.namespace", "does not match event.namespace"
    # Events without it are of the older form (legacyValidateEvent): those about the cluster's objects are in `default`.
    if not event.get("eventTime"):
        if about != namespace and (about or namespace != "default"):
            errors.invalid(path, about, why)
    else:
        if not about and namespace not in ("default", "kube-system"):
            errors.invalid(path, about, why)
        _validate_timed(event, controller, errors)


def _validate_timed(event: Mapping[str, Any], controller: str, errors: FieldErrors) -> None:
    """Note what is wrong with an event that says when it happened."""
    reporter = event.get("reportingComponent", "")
    errors.required(controller, reporter)
    named(controller, reporter, names.label_key_problems(reporter), errors)
    for name in ("reportingInstance", "action", "reason"):
        text = event.get(name, "")
        errors.required(name, text)
        if len(text.encode()) > _MAX:
            errors.invalid(name, "", f"can have at most {_MAX} characters")
    if len(event.get("message", "").encode()) > _MAX_MESSAGE:
        errors.invalid("message", "", f"can have at most {_MAX_MESSAGE} characters")


def _validate_create(value: Object, errors: FieldErrors) -> None:
    """Hold a new event against the rules of ``events.k8s.io/v1`` alone; paths are those of ``v1``, as upstream's."""
    event = as_core(value)
    _series(event, errors)
    errors.required("eventTime", event.get("eventTime"))
    kind = event.get("type", "")
    if kind not in ("Normal", "Warning"):
        errors.invalid("type", "", f"has invalid value: {kind}")
    for name in ("firstTimestamp", "lastTimestamp", "count"):
        if event.get(name):
            errors.invalid(name, "", "needs to be unset")
    if any(at(event, "source", default={}).values()):
        errors.invalid("source", "", "needs to be unset")


def _series(event: Mapping[str, Any], errors: FieldErrors) -> None:
    series = event.get("series")
    if series is None:
        return
    if series.get("count", 0) < 2:
        errors.invalid("series.count", "", "should be at least 2")
    errors.required("series.lastObservedTime", series.get("lastObservedTime"))


def _validate_update(value: Object, old: Object, errors: FieldErrors) -> None:
    event, before = as_core(value), as_core(old)
    if not equal(event.get("series"), before.get("series")):
        _series(event, errors)
    for name in _IMMUTABLE:
        empty = _EMPTY.get(name)
        immutable(event.get(name) or empty, before.get(name) or empty, _NAMED_AS.get(name, name), errors)


def _selectable(event: Mapping[str, Any]) -> dict[str, str]:
    about = event.get("involvedObject", {})
    reporter = event.get("reportingComponent", "")
    return {f"involvedObject.{name}": about.get(name, "") for name in _REFERENCE} | {
        "reason": event.get("reason", ""),
        "reportingComponent": reporter,
        "source": at(event, "source", "component", default="") or reporter,
        "type": event.get("type", ""),
    }


def _selectable_new(value: Mapping[str, Any]) -> dict[str, str]:
    about = value.get("regarding", {})
    return {f"regarding.{name}": about.get(name, "") for name in _REFERENCE} | {
        name: value.get(name, "") for name in ("reason", "reportingController", "type")
    }


# columns: of the form that v1 has


def _first_seen(event: Mapping[str, Any], now: datetime) -> str:
    return since(event.get("firstTimestamp") or event.get("eventTime"), now)


def _last_seen(event: Mapping[str, Any], now: datetime) -> str:
    if "series" in event:
        return since(event["series"].get("lastObservedTime"), now)
    last = event.get("lastTimestamp")
    return since(last, now) if last else _first_seen(event, now)


def _object(event: Mapping[str, Any], _: datetime) -> str:
    about = event.get("involvedObject", {})
    kind: str = about.get("kind", "").lower()
    return f"{kind}/{about['name']}" if about.get("name") else kind


def _source(event: Mapping[str, Any], _: datetime) -> str:
    source = event.get("source", {})
    component: str = source.get("component") or event.get("reportingComponent", "")
    instance = source.get("host") or event.get("reportingInstance", "")
    return f"{component}, {instance}" if instance else component


def _count(event: Mapping[str, Any], _: datetime) -> int:
    count: int = at(event, "series", "count", default=0) if "series" in event else event.get("count") or 1
    return count


_COLUMNS = (
    Column(name="Last Seen", cell=_last_seen),
    Column(name="Type", cell=lambda event, _: event.get("type", "")),
    Column(name="Reason", cell=lambda event, _: event.get("reason", "")),
    Column(name="Object", cell=_object),
    Column(name="Subobject", cell=lambda event, _: at(event, "involvedObject", "fieldPath", default=""), priority=1),
    Column(name="Source", cell=_source, priority=1),
    Column(name="Message", cell=lambda event, _: event.get("message", "").strip()),
    Column(name="First Seen", cell=_first_seen, priority=1),
    Column(name="Count", cell=_count, priority=1),
    Column(name="Name", cell=lambda event, _: metadata(event)["name"], format="name", priority=1),
)


def _on_core(column: Column) -> Column:
    return Column(
        name=column.name,
        cell=lambda value, now: column.cell(as_core(value), now),
        format=column.format,
        priority=column.priority,
    )


RESOURCES = (
    Resource(
        kind=CORE,
        plural="events",
        short_names=("ev",),
        columns=_COLUMNS,
        strategy=Strategy(validate=_validate, name_rule=path_segment, create_on_update=True, selectable=_selectable),
    ),
    Resource(
        kind=EVENTS,
        plural="events",
        short_names=("ev",),
        columns=tuple(map(_on_core, _COLUMNS)),
        strategy=Strategy(
            validate=_validate_new,
            validate_create=_validate_create,
            validate_update=_validate_update,
            create_on_update=True,
            selectable=_selectable_new,
        ),
        view=View(storage_name="events", read=of_core, write=as_core),
    ),
)
