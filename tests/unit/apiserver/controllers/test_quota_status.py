"""The status of quotas follows what is there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podkeep.api.feature_gates import FeatureGates
from podkeep.apiserver.admission.quota.ledger import QuotaLedger
from podkeep.apiserver.controllers.controller import merge_patch
from podkeep.apiserver.controllers.quota_status import QuotaStatus
from podkeep.apiserver.controllers.runner import Runner
from podkeep.apiserver.kinds.served import Served
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.registry.registry import DeleteOptions, PatchType, Registry, Request, Target
from podkeep.apiserver.schema.table import Kind
from podkeep.apiserver.storage.store import Store

RESOURCES = Served().resources
QUOTAS, CONFIG_MAPS, PODS = (
    next(item for item in RESOURCES if item.kind == Kind("", "v1", kind))
    for kind in ("ResourceQuota", "ConfigMap", "Pod")
)
ME = Request(field_manager="me")


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {}, {}),
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1, "b": 2}, {"b": 3, "c": [1]}, {"a": None, "b": 3, "c": [1]}),
        ({"m": {"x": "1", "y": "2"}}, {"m": {"x": "1", "z": "3"}}, {"m": {"y": None, "z": "3"}}),
        ({"m": {"x": "1"}}, {"m": {"x": "1"}}, {}),
        ({"m": "1"}, {"m": {"x": "1"}}, {"m": {"x": "1"}}),
    ],
)
def test_merge_patches(old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]) -> None:
    assert merge_patch(old, new) == patch


CLASSES = [{"name": "rdt", "classes": ["bronze"]}]


def quota(*, classes: bool = False, **hard: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"hard": {name.replace("_", "."): limit for name, limit in hard.items()}}
    if classes:
        spec["containerClassResources"] = CLASSES
    return {"metadata": {"name": "q"}, "spec": spec}


def run(path: Path, steps: Any, gates: FeatureGates | None = None) -> None:
    async def within() -> None:
        async with Store(path / "db") as store:
            lister, registry = StoreLister(store), Registry(store)

            async def until(wanted: dict[str, Any]) -> None:
                watcher = store.watch("resourcequotas", store.revision)

                def status() -> Any:
                    stored = store.get(QUOTAS.key("shop", "q"))
                    return msgspec.json.decode(stored.value).get("status") if stored else None

                async with asyncio.timeout(10):
                    while status() != wanted:
                        await anext(watcher)
                watcher.end()

            def make() -> list[QuotaStatus]:
                return [QuotaStatus(QuotaLedger(lister), gates)]

            async with Runner(store, registry, lister, RESOURCES, make):
                await steps(registry, until)

    asyncio.run(within())


@pytest.mark.slow
@pytest.mark.requirement("Q71")
def test_the_status_of_a_quota_follows(tmp_path: Path) -> None:
    async def steps(registry: Registry, until: Any) -> None:
        await registry.create(Target(QUOTAS, "shop"), quota(configmaps="5", pods="2", requests_cpu="1"), ME)
        hard = {"configmaps": "5", "pods": "2", "requests.cpu": "1"}
        await until({"hard": hard, "used": {"configmaps": "0", "pods": "0", "requests.cpu": "0"}})
        for name in "abc":
            await registry.create(Target(CONFIG_MAPS, "shop"), {"metadata": {"name": name}}, ME)
        await registry.create(Target(CONFIG_MAPS, "elsewhere"), {"metadata": {"name": "a"}}, ME)
        container = {"name": "a", "image": "x", "resources": {"requests": {"cpu": "250m"}}}
        await registry.create(
            Target(PODS, "shop"), {"metadata": {"name": "p"}, "spec": {"containers": [container]}}, ME
        )
        await until({"hard": hard, "used": {"configmaps": "3", "pods": "1", "requests.cpu": "250m"}})
        await registry.delete(Target(CONFIG_MAPS, "shop", "a"), DeleteOptions(), ME)
        await registry.delete(Target(PODS, "shop", "p"), DeleteOptions(grace_period=0), ME)
        await until({"hard": hard, "used": {"configmaps": "2", "pods": "0", "requests.cpu": "0"}})
        patch = {"spec": {"hard": {"pods": None, "configmaps": "9"}, "containerClassResources": CLASSES}}
        await registry.patch(Target(QUOTAS, "shop", "q"), patch, PatchType.MERGE, ME)
        hard = {"configmaps": "9", "requests.cpu": "1"}
        await until(
            {"hard": hard, "used": {"configmaps": "2", "requests.cpu": "0"}, "containerClassResources": CLASSES}
        )

    run(tmp_path, steps)


def test_with_the_gate_off_no_classes_are_told(tmp_path: Path) -> None:
    async def steps(registry: Registry, until: Any) -> None:
        await registry.create(Target(QUOTAS, "shop"), quota(classes=True, configmaps="5"), ME)
        await until({"hard": {"configmaps": "5"}, "used": {"configmaps": "0"}})

    run(tmp_path, steps, FeatureGates(given={"ClassResources": False}))
