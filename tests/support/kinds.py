"""What a kind makes of an object, without a registry: defaults, dropped fields, errors, warnings, cells."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.meta import objects
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.patch.values import copy
from podkeep.apiserver.schema.decode import decode

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
_TIME = "2026-11-23T11:00:00Z"


def merged(value: Any, changes: Any) -> Any:
    """Return ``value`` with changes, in dicts at any depth; None removes a field."""
    if not isinstance(value, dict) or not isinstance(changes, dict):
        return changes
    result = value | {name: merged(value.get(name, {}), item) for name, item in changes.items()}
    return {name: item for name, item in result.items() if item is not None}


def defaulted(resource: Resource, value: dict[str, Any]) -> Object:
    """Return an object as it is decoded and defaulted."""
    fields = {"name": "a"} | ({"namespace": "default"} if resource.namespaced else {})
    given = {**value, "metadata": fields | value.get("metadata", {})}
    found = decode(given, resource.struct)
    assert not found.unknown
    resource.strategy.default(found.value)
    return found.value


def created(resource: Resource, value: dict[str, Any], gates: FeatureGates | None = None) -> Object:
    """Return an object as its creation stores it."""
    new = defaulted(resource, value)
    strategy = resource.strategy
    objects.initialize(new, uid="u", now=_TIME)
    if strategy.status and not strategy.status_on_create:
        new.pop("status", None)
    strategy.drop(new, None, gates or FeatureGates())
    strategy.prepare_create(new)
    return new


def _texts(errors: FieldErrors) -> list[str]:
    return list(dict.fromkeys(map(str, errors.found)))


def problems(resource: Resource, value: dict[str, Any]) -> list[str]:
    """Return what is wrong with a new object."""
    new, errors = created(resource, value), FieldErrors()
    resource.strategy.validate(new, errors)
    resource.strategy.validate_create(new, errors)
    return _texts(errors)


def updated(
    resource: Resource, old: dict[str, Any], changes: dict[str, Any], gates: FeatureGates | None = None
) -> tuple[Object, Object]:
    """Return an object after an update, and before; ``changes`` are merged into it."""
    before = created(resource, old)
    new = defaulted(resource, merged(copy(before), changes))
    strategy = resource.strategy
    if strategy.status:
        new["status"] = copy(before.get("status", {}))
    objects.keep_identity(new, before)
    strategy.drop(new, before, gates or FeatureGates())
    strategy.prepare_update(new, before)
    return new, before


def update_problems(resource: Resource, old: dict[str, Any], changes: dict[str, Any]) -> list[str]:
    """Return what is wrong with an update."""
    (new, before), errors = updated(resource, old, changes), FieldErrors()
    resource.strategy.validate(new, errors)
    resource.strategy.validate_update(new, before, errors)
    return _texts(errors)


def status_problems(resource: Resource, old: dict[str, Any], status: dict[str, Any]) -> list[str]:
    """Return what is wrong with a status that is merged into that of an object."""
    before, errors = created(resource, old), FieldErrors()
    new = defaulted(resource, merged(copy(before), {"status": status}))
    resource.strategy.prepare_status(new, before)
    resource.strategy.validate_status(new, before, errors)
    return _texts(errors)


def warnings(resource: Resource, value: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    """Return the warnings of a write."""
    before = None if old is None else created(resource, old)
    return resource.strategy.warnings(created(resource, value), before)


def table(resource: Resource, value: dict[str, Any], now: datetime = NOW) -> dict[str, Any]:
    """Return the cells of an object's row by the names of the columns; those for ``-o wide`` are in parentheses."""
    return {
        f"({column.name})" if column.priority else column.name: column.cell(value, now) for column in resource.columns
    }
