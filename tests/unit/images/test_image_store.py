"""The store and callers who give up."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from podkeep.base.config import ImagesConfig
from podkeep.images.store.store import ImageStore


@pytest.mark.parametrize("turns", range(4))
def test_a_load_that_is_cancelled_leaves_no_staging_directory(tmp_path: Path, turns: int) -> None:
    (tmp_path / "archive").mkdir()
    store = ImageStore.open(tmp_path / "images", config=ImagesConfig(), registries={})

    async def run() -> None:
        loading = asyncio.ensure_future(store.load(tmp_path / "archive"))
        for _ in range(turns):
            await asyncio.sleep(0)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading

    asyncio.run(run())
    assert os.listdir(tmp_path / "images/staging") == []
    store.close()
