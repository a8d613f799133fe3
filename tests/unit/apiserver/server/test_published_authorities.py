"""The authorities that components of the cluster verify their clients against."""

from __future__ import annotations

import asyncio
from pathlib import Path

from podkeep.apiserver.admission.attributes import AdmitAll
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.registry.registry import Registry
from podkeep.apiserver.server import bootstrap
from podkeep.apiserver.storage.store import Store


def test_authorities_are_published_and_follow_the_server_s(tmp_path: Path) -> None:
    async def run() -> None:
        async with Store(tmp_path / "api.db") as store:
            registry, lister = Registry(store, AdmitAll()), StoreLister(store)
            await bootstrap.make_namespaces(registry)
            revisions = []
            for authorities in ("one", "one", "two"):
                await bootstrap.publish_authorities(registry, lister, authorities)
                found = lister.get("configmaps", "kube-system", bootstrap.AUTHENTICATION)
                assert found is not None
                assert found["data"] == {"client-ca-file": authorities}
                revisions.append(found["metadata"]["resourceVersion"])
            assert revisions[0] == revisions[1] != revisions[2]

    asyncio.run(run())
