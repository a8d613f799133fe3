"""Any object that fits its type is taken or refused: a rule that looks at it finds what it expects, or says so."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.kinds.workloads.scale import from_scale, to_scale
from podkeep.apiserver.patch.values import copy
from podkeep.apiserver.schema.types import Anything, Format, List, Map, Scalar, Struct, Type
from support.api_kinds import MANIFESTS, RESOURCES, creation, stored, update

_TEXTS = (
    "",
    "a",
    "A",
    "-",
    "None",
    "In",
    "Exists",
    "RollingUpdate",
    "NodePort",
    "LoadBalancer",
    "ExternalName",
    "IPv4",
)
_MORE = (
    "IPv6",
    "10.0.0.5",
    "fd00::5",
    "x/y",
    "Indexed",
    "0-3,5",
    "* * * * *",
    "Local",
    "ClientIP",
    "True",
    "FailIndex",
)
_SCALARS: dict[Format, tuple[Any, ...]] = {
    Format.STRING: _TEXTS + _MORE,
    Format.INT32: (-1, 0, 1, 80, 30_001, 100_001),
    Format.INT64: (-1, 0, 1, 1 << 40),
    Format.DOUBLE: (0, 0.5),
    Format.BOOLEAN: (False, True),
    Format.BYTES: ("", "YQ=="),
    Format.QUANTITY: ("0", "1", "100m", "-1"),
    Format.INT_OR_STRING: (-1, 0, 1, "", "5", "50%", "200%", "x", "9" * 30 + "%"),
    Format.TIME: ("2026-11-23T06:00:00Z", "2020-11-23T06:00:00Z"),
    Format.MICROTIME: ("2026-11-23T06:00:00.000000Z",),
}


def _value(random_: random.Random, kind: Type, depth: int) -> Any:
    if isinstance(kind, Scalar):
        return random_.choice(_SCALARS[kind.format])
    if isinstance(kind, List):
        return [_value(random_, kind.items, depth + 1) for _ in range(random_.randint(0, 3))]
    if isinstance(kind, Map):
        return {random_.choice(_TEXTS): _value(random_, kind.values, depth + 1) for _ in range(random_.randint(0, 2))}
    if isinstance(kind, Anything):
        return random_.choice(({}, {"a": 1}, [], "a", 5))
    assert isinstance(kind, Struct)
    chance = 0.6 if depth < 4 else 0.15
    fields = {name: item for name, item in kind.fields.items() if random_.random() < chance}
    return {name: _value(random_, item.type, depth + 1) for name, item in fields.items()}


def _mixed(random_: random.Random, resource: Resource) -> dict[str, Any]:
    """Return the least that a kind needs with something else in some of its places."""
    value: dict[str, Any] = copy(dict(MANIFESTS[resource.plural]))
    for name, field in resource.struct.fields.items():
        if name in ("apiVersion", "kind", "metadata"):
            continue
        if isinstance(field.type, Struct) and isinstance(value.get(name), dict):
            for inner, item in field.type.fields.items():
                if random_.random() < 0.3:
                    value[name][inner] = _value(random_, item.type, 2)
        elif random_.random() < 0.5:
            value[name] = _value(random_, field.type, 1)
    return value


@pytest.mark.slow
@pytest.mark.parametrize("plural", MANIFESTS)
def test_any_object(plural: str) -> None:
    resource, random_ = RESOURCES[plural], random.Random(plural)
    now = datetime(2026, 11, 23, tzinfo=UTC)
    old = stored(resource, MANIFESTS[plural])
    for _ in range(60):
        value, problems = creation(resource, _mixed(random_, resource))
        if not problems:
            resource.strategy.warnings(value, None)
            resource.strategy.selectable(value)
            assert None not in [column.cell(value, now) for column in resource.columns]
            update(resource, value, _mixed(random_, resource) | {"metadata": value["metadata"]})
        update(resource, old, _mixed(random_, resource) | {"metadata": old["metadata"]})
        if resource.strategy.status:
            status = _value(random_, resource.struct.fields["status"].type, 1)
            new = copy(old) | {"status": status}
            resource.strategy.drop(new, old, FeatureGates())
            resource.strategy.prepare_status(new, old)
            resource.strategy.validate_status(new, old, FieldErrors())
        if "scale" in resource.subresources and not problems:
            from_scale(value, to_scale(value), FieldErrors())
