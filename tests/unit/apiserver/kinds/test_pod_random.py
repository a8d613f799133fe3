"""Pods that nobody would write: any shape that the table takes gets an answer, and the same one twice."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.pods import gates as pod_gates
from podkeep.apiserver.kinds.pods.template import default_pod_template, validate_pod_template
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.patch.values import copy
from podkeep.apiserver.schema.decode import decode
from podkeep.apiserver.schema.table import kubernetes
from podkeep.apiserver.schema.types import Format, List, Map, Scalar, Struct, Type
from unit.apiserver.kinds.pod_steps import POD, PODS, STRATEGY

SPEC = kubernetes().struct("io.k8s.api.core.v1.PodSpec")
TEXTS = (
    "",
    "a",
    "b",
    "A",
    "a.b",
    "a/b",
    "/a",
    "a/../b",
    "..a",
    "x y",
    "Always",
    "Never",
    "Exists",
    "In",
    "localhost/x",
)
QUANTITIES = ("0", "1", "-1", "500m", "100u", "1.5", "4Mi", "1e3")
NUMBERS = (0, 1, -1, 80, 300, 70_000, (1 << 31) - 1)
KEYS = ("a", "a b", "b/c", "cpu", "memory", "hugepages-2Mi", "hugepages-x", "example.com/x")
_NOW = datetime(2026, 11, 23, 7, tzinfo=UTC)
EVERYTHING_ON = FeatureGates(given={fields.gate.name: True for fields in pod_gates.GATED})


def _any(kind: Type, chance: random.Random, depth: int = 0) -> Any:
    if isinstance(kind, Scalar):
        return _scalar(kind.format, chance)
    if isinstance(kind, List):
        return [_any(kind.items, chance, depth + 1) for _ in range(chance.choice((0, 1, 1, 2)))]
    if isinstance(kind, Map):
        return {key: _any(kind.values, chance, depth + 1) for key in chance.sample(KEYS, 2)}
    if isinstance(kind, Struct):
        often = 0.5 if depth > 2 else 0.25
        return {
            name: _any(field.type, chance, depth + 1)
            for name, field in kind.fields.items()
            if name in kind.required or chance.random() < often
        }
    return {}


def _scalar(form: Format, chance: random.Random) -> Any:
    if form is Format.BOOLEAN:
        return chance.random() < 0.5
    if form in (Format.INT32, Format.INT64):
        return chance.choice(NUMBERS)
    if form is Format.QUANTITY:
        return chance.choice(QUANTITIES)
    if form is Format.INT_OR_STRING:
        return chance.choice((0, 80, "web", "Web", ""))
    if form in (Format.TIME, Format.MICROTIME):
        return "2026-11-23T06:00:00Z"
    return chance.choice(TEXTS) if form is Format.STRING else ""


def _pod(chance: random.Random) -> Object:
    status = _any(kubernetes().struct("io.k8s.api.core.v1.PodStatus"), chance, 1)
    given = {**POD, "metadata": {**POD["metadata"], "creationTimestamp": "2026-11-23T06:00:00Z"}}
    return decode({**given, "spec": {"containers": [], **_any(SPEC, chance)}, "status": status}, PODS.struct).value


def _errors(pod: Object) -> list[str]:
    errors = FieldErrors()
    STRATEGY.validate(pod, errors)
    STRATEGY.validate_create(pod, errors)
    return list(map(str, errors.found))


@pytest.mark.parametrize("seed", range(8))
def test_creations(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(8):
        pod = _pod(chance)
        template = copy({"metadata": pod["metadata"], "spec": pod["spec"]})
        STRATEGY.default(pod)
        STRATEGY.drop(pod, None, EVERYTHING_ON)
        again = copy(pod)
        STRATEGY.default(again)
        assert again == pod
        STRATEGY.prepare_create(pod)
        assert _errors(pod) == _errors(pod)
        STRATEGY.warnings(pod, None)
        default_pod_template(template)
        validate_pod_template(template, "template", FieldErrors())


@pytest.mark.parametrize("seed", range(8))
def test_updates(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        old, new = _pod(chance), _pod(chance)
        if chance.random() < 0.5:
            new["spec"]["containers"] = copy(old["spec"]["containers"])
            new["spec"]["initContainers"] = copy(old["spec"].get("initContainers", []))
        STRATEGY.default(old)
        STRATEGY.default(new)
        before = copy(old)
        errors = FieldErrors()
        STRATEGY.validate_update(copy(new), old, errors)
        assert errors.found
        for part in STRATEGY.parts.values():
            changed = copy(new)
            part.prepare(changed, old)
            part.validate(changed, old, FieldErrors())
        changed = copy(new)
        STRATEGY.prepare_status(changed, old)
        STRATEGY.validate_status(changed, old, FieldErrors())
        assert old == before
        assert all(column.cell(new, _NOW) is not None for column in PODS.columns)
        STRATEGY.selectable(new)
