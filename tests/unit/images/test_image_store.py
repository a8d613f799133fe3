"""The store and callers who give up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from podkeep.base.config import ImagesConfig
from podkeep.base.errors import Internal
from podkeep.base.ids import Digest, ImageID
from podkeep.images.formats.openfile import describe
from podkeep.images.messages import FetchedImage
from podkeep.images.store import fetching
from podkeep.images.store.database import NewImage
from podkeep.images.store.maintenance import Maintenance
from podkeep.images.store.store import ImageStore
from support.held_threads import HeldThreads
from support.images import file, layers_layout

A, B = (Digest(f"sha256:{letter * 64}") for letter in "ab")


@pytest.mark.slow
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


def test_a_save_that_is_cancelled_twice_removes_what_it_was_to_write_and_nothing_else(tmp_path: Path) -> None:
    store = ImageStore.open(tmp_path / "images", config=ImagesConfig(snapshot_driver="directories"), registries={})
    new = NewImage(id=ImageID(A), config=b"{}", manifests=(), layers=(), tags=("localhost/x:1",), digests=())
    store._catalog.database.add([new], ())
    store._catalog.refresh()
    for name in ("saved", "innocent"):
        (tmp_path / name).mkdir()

    def opened(name: str) -> int:
        return os.open(tmp_path / name, os.O_RDONLY | os.O_DIRECTORY)

    async def run() -> None:
        threads, target = HeldThreads(), opened("saved")
        asyncio.get_running_loop().set_default_executor(threads)
        saving = Maintenance(store, dict).save(["localhost/x:1"], describe(target, "saved"), lambda _: None)
        caller = asyncio.ensure_future(saving)
        await threads.step()  # layers are held
        await threads.submitted()
        caller.cancel()  # while its documents are to be read
        for _ in range(2):
            await threads.step()  # of which the first is nobody's any more; then layers are released
        await threads.submitted()  # and now the directory is to be removed
        for _ in range(3):
            caller.cancel()
            await asyncio.sleep(0)
        others = [opened("innocent") for _ in range(3)]  # what is closed by now is one of these
        await threads.step()
        with pytest.raises(asyncio.CancelledError):
            await caller
        for fd in (*others, target):
            os.close(fd)

    asyncio.run(run())
    assert (tmp_path / "innocent").exists()
    assert not (tmp_path / "saved").exists()
    store.close()


@pytest.mark.slow
def test_what_cannot_be_recorded_leaves_no_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = layers_layout(tmp_path / "layout", [[file("a", "x")], [file("b/c", "x")]], name="localhost/x:1")
    store = ImageStore.open(tmp_path / "images", config=ImagesConfig(snapshot_driver="directories"), registries={})
    with monkeypatch.context() as failing:
        failing.setenv("PODKEEP_FAILPOINTS", "images-before-record=error")
        with pytest.raises(Internal, match="images-before-record"):
            asyncio.run(store.load(made.path))
    assert store.strays() == []
    for kept in ("layers", "headers", "implied", "trash", "staging"):
        assert os.listdir(tmp_path / "images" / kept) == []
    (image,) = asyncio.run(store.load(made.path))
    assert image.layers == made.diff_ids
    store.close()


@pytest.mark.parametrize(
    ("tags", "digests", "refused"),
    [
        (("r/x:1",), (f"r/x@{A}",), False),
        ((f"r/x@{B}?artifactType=a/b",), (f"r/x@{A}",), False),
        ((f"r/x@{A}",), (), True),
        ((), (f"r/x@{B}",), True),
    ],
)
def test_a_name_with_a_digest_is_of_what_has_it(tags: tuple[str, ...], digests: tuple[str, ...], refused: bool) -> None:
    image = FetchedImage(
        id=ImageID(A),
        kind="image",
        artifact_type="",
        config=b"{}",
        run=b"{}",
        manifests=((A, b"{}"),),
        layers=(),
        new=(),
        tags=tags,
        digests=digests,
    )
    check: Callable[[FetchedImage], None] = fetching._check_names
    if not refused:
        check(image)
        return
    with pytest.raises(Internal, match="another one's"):
        check(image)
