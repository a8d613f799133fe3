"""Which objects are kept decoded."""

from __future__ import annotations

import asyncio
from pathlib import Path

from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.storage.records import Key
from podkeep.apiserver.storage.store import Store


def test_what_is_read_once_is_not_kept_decoded(tmp_path: Path) -> None:
    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            lister = StoreLister(store, read_once=["events"])
            for resource in ("pods", "events"):
                await store.put(Key(resource, "default", "a"), {"metadata": {"name": "a"}}, None)
            assert lister.get("pods", "default", "a") is lister.get("pods", "default", "a")
            first, second = lister.get("events", "default", "a"), lister.get("events", "default", "a")
            assert first == second
            assert first is not second

    asyncio.run(steps())
