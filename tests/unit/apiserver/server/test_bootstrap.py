"""What is there from the start."""

from __future__ import annotations

import asyncio
from pathlib import Path

from podkeep.api.feature_gates import FeatureGates
from podkeep.apiserver.admission import limits
from podkeep.apiserver.admission.chain import chain
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.registry.registry import Registry
from podkeep.apiserver.server import bootstrap
from podkeep.apiserver.storage.store import Store


def test_the_systems_priority_classes_are_made_once(tmp_path: Path) -> None:
    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            lister = StoreLister(store)
            registry = Registry(store, chain(limits.plugins(lister, FeatureGates())))
            for _ in range(2):
                await bootstrap.make_priority_classes(registry)
            found = {
                item["metadata"]["name"]: item["value"] for item in lister.list("scheduling.k8s.io/priorityclasses")
            }
            assert found == {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
            assert store.revision == 2

    asyncio.run(steps())
