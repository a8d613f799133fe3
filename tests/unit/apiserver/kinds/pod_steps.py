"""Pods for tests: a small one, changes of it by paths, and what becomes of it on its way into a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from podkeep.api.feature_gates import FeatureGates
from podkeep.apiserver.kinds.pods.pod import RESOURCES
from podkeep.apiserver.kinds.resources import Target
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.patch.values import copy
from podkeep.apiserver.registry.registry import Registry, Request
from podkeep.apiserver.schema.decode import decode
from podkeep.apiserver.storage.store import Store

(PODS,) = RESOURCES
STRATEGY = PODS.strategy
POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web", "tier": "front"}},
    "spec": {"containers": [{"name": "web", "image": "nginx:1.2"}]},
}
STORED = {"uid": "u", "creationTimestamp": "2026-11-23T06:00:00Z"}
"""What a stored pod's metadata have besides."""


def cases(name: str) -> list[dict[str, Any]]:
    """Return a table: texts of errors are what kube-apiserver 1.36 says, but that objects in them are shown as clients
    write them, and that of several texts about the name of a resource there is the first."""
    found: list[dict[str, Any]] = msgspec.json.decode(Path(__file__).with_name(f"{name}.json").read_bytes())
    return found


def changed(value: Object, changes: Mapping[str, Any]) -> Object:
    """Return a copy with other values at paths such as ``spec.containers.0.image``; None removes a field."""
    value = copy(value)
    for path, content in changes.items():
        *parents, last = path.split(".")
        place: Any = value
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
        if content is None:
            place.pop(last, None)
        else:
            place[last] = copy(content)
    return value


def pod(**spec: Any) -> Object:
    """Return the small pod with some fields of its spec."""
    return changed(POD, {f"spec.{name}": value for name, value in spec.items()})


def defaulted(value: Object) -> Object:
    """Return a pod as it is decoded and defaulted."""
    value = decode(value, PODS.struct).value
    STRATEGY.default(value)
    return value


def stored(value: Object) -> Object:
    """Return a pod as it could be stored."""
    value = defaulted(value)
    value["metadata"] |= STORED
    return value


def at(subresource: str = "", name: str = "web") -> Target:
    """Return where the pod is."""
    return Target(PODS, "default", name, subresource)


def run(
    path: Path, steps: Callable[[Registry, Store], Awaitable[None]], gates: Mapping[str, bool] | None = None
) -> None:
    """Run ``steps`` with a registry over a store in a directory."""

    async def within() -> None:
        async with Store(path / "db") as store:
            await steps(Registry(store, gates=FeatureGates(given=gates or {})), store)

    asyncio.run(within())


async def refusal(work: Awaitable[Any]) -> list[str]:
    """Return the errors of fields that a write is refused with; none if it is taken."""
    try:
        await work
    except StatusError as error:
        if error.code != 422:
            raise
        causes = [{name: text for name, text in cause.items() if text} for cause in error.details["causes"]]
        return [f"{cause['field']}: {cause['message']}" if "field" in cause else cause["message"] for cause in causes]
    return []


def tried(warnings: list[str] | None = None) -> Request:
    """Return a request that is only tried."""
    return Request(field_manager="me", dry_run=True, warnings=[] if warnings is None else warnings)
