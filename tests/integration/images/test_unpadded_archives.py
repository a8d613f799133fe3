"""Archives that end within a block, as umoci writes them, are mounted, kept and given back as they came."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from conftest import OpenStore

from podkeep.images.store.checking import stored_layer
from podkeep.images.worker.stored import StoredLayers
from support.artifacts import artifact, tar_part
from support.images import digest, file, tar
from support.mounted import content_of
from support.registry import Registry


@pytest.fixture(params=["directories", "erofs"])
def snapshot_driver(request: pytest.FixtureRequest) -> str:
    """Both ways to keep layers."""
    return str(request.param)


@pytest.mark.parametrize("kept", [0, 100, 511])
def test_the_last_block_may_be_short(
    registry: Registry, open_store: OpenStore, root: Path, snapshot_driver: str, tmp_path: Path, kept: int
) -> None:
    whole = tar([file("first", b"1" * 600), file("last", b"x" * 4097)])
    plain = whole[: 512 + 1024 + 512 + 4097 + kept]
    image_name = artifact([tar_part(plain)]).push(registry, f"unpadded/tar:{kept}")
    store = open_store()
    image = asyncio.run(store.pull(image_name))
    assert image.layers == (digest(plain),)
    assert content_of(store, image, tmp_path / "m") == {"first": b"1" * 600, "last": b"x" * 4097}
    if snapshot_driver == "erofs":  # which keeps the archive itself
        _, layers = store.records()
        stored = StoredLayers(root).pieces(stored_layer(layers[image.layers[0]]))
        assert b"".join(stored) == plain
