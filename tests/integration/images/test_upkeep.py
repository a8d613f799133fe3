"""Looking after a store in this process: what happens beside a verification."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from podkeep.base.config import ImagesConfig
from podkeep.base.ids import Digest
from podkeep.images.checking import Damage, Step, Summary
from podkeep.images.store import ImageStore
from podkeep.images.upkeep import Upkeep
from support.images import file, layers_layout


def test_a_damaged_layer_goes_with_images_that_came_while_it_was_read(tmp_path: Path) -> None:
    shared, large = [file("a", os.urandom(1 << 20))], [file("b", os.urandom(128 << 20))]
    first = layers_layout(tmp_path / "first", [shared, large], name="localhost/first:1", compression="none")
    second = layers_layout(tmp_path / "second", [shared], name="localhost/second:1")
    config = ImagesConfig(snapshot_driver="directories")
    store = ImageStore.open(tmp_path / "images", config=config, registries={})
    upkeep = Upkeep(store, dict)
    damaged = Digest(first.diff_ids[0])

    async def run() -> list[Damage | Summary]:
        await store.load(first.path)
        content = tmp_path / "images/layers" / damaged.replace(":", "-") / "a"
        os.truncate(content, 1000)
        told: list[Damage | Summary] = []
        async for event in upkeep.verify(["localhost/first:1"], repair=True):
            if not isinstance(event, Step):
                told.append(event)
            elif event.done > 1 << 21 and store.find("localhost/second:1") is None:
                await store.load(second.path)
                assert store.find("localhost/second:1") is not None
        return told

    damage, summary = asyncio.run(run())
    assert isinstance(damage, Damage)
    assert isinstance(summary, Summary)
    assert (damage.object, damage.repaired) == (damaged, True)
    assert damaged not in store.records()[1]
    assert store.images() == []
    store.close()
