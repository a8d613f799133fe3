"""Looking after a store in this process: what happens beside a verification."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from pathlib import Path

import pytest
from conftest import layer_directory

from podkeep.base.config import ImagesConfig
from podkeep.base.ids import Digest
from podkeep.images.formats.openfile import describe
from podkeep.images.layers.forms import metadata_digest
from podkeep.images.store.checking import Damage, Step, Summary
from podkeep.images.store.maintenance import Maintenance
from podkeep.images.store.store import ImageStore
from support.descriptors import open_descriptors
from support.images import file, layers_layout


def test_a_damaged_layer_goes_with_images_that_came_while_it_was_read(tmp_path: Path) -> None:
    shared, large = [file("a", os.urandom(1 << 20))], [file("b", os.urandom(128 << 20))]
    first = layers_layout(tmp_path / "first", [shared, large], name="localhost/first:1", compression="none")
    second = layers_layout(tmp_path / "second", [shared], name="localhost/second:1")
    config = ImagesConfig(snapshot_driver="directories")
    store = ImageStore.open(tmp_path / "images", config=config, registries={})
    maintenance = Maintenance(store, dict)
    damaged = Digest(first.diff_ids[0])

    async def run() -> list[Damage | Summary]:
        await store.load(first.path)
        content = tmp_path / "images/layers" / damaged.replace(":", "-") / "a"
        os.truncate(content, 1000)
        told: list[Damage | Summary] = []
        async for event in maintenance.verify(["localhost/first:1"], repair=True):
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


def verified(store: ImageStore, *, repair: bool = False) -> tuple[list[Damage], Summary]:
    async def run() -> list[Damage | Step | Summary]:
        return [event async for event in Maintenance(store, dict).verify([], repair=repair)]

    *events, summary = asyncio.run(run())
    assert isinstance(summary, Summary)
    return [event for event in events if isinstance(event, Damage)], summary


@pytest.mark.parametrize("snapshot_driver", ["erofs"])
def test_what_an_older_podkeep_made_of_a_layer_is_no_damage(tmp_path: Path, snapshot_driver: str) -> None:
    """One that makes other metadata of the same tar; and one that did not note the digest of what it made."""
    config = ImagesConfig(snapshot_driver=snapshot_driver)
    made = layers_layout(tmp_path / "layout", [[file("a", "x" * 5000)], [file("b", "y")]], name="localhost/old:1")
    root = tmp_path / "images"
    store = ImageStore.open(root, config=config, registries={})
    asyncio.run(store.load(made.path))
    damages, summary = verified(store)
    assert (damages, summary.layers, summary.unchecked) == ([], 2, 0)
    recorded = {layer.id: layer.metadata for layer in store.records()[1].values()}
    store.close()
    first, second = made.diff_ids
    other = root / "erofs" / first.replace(":", "-") / "meta.erofs"
    with other.open("r+b") as metadata:
        metadata.seek(1024 + 16)  # a time that nobody needs (erofs_fs.h, erofs_super_block.epoch)
        metadata.write(b"\x01")
    with sqlite3.connect(root / "images.db") as database:
        database.execute("UPDATE layers SET metadata = ? WHERE id = ?", (metadata_digest(other.parent), first))
        database.execute("UPDATE layers SET metadata = '' WHERE id = ?", (second,))
    database.close()
    store = ImageStore.open(root, config=config, registries={})
    assert store.records()[1][Digest(first)].metadata != recorded[Digest(first)]
    damages, summary = verified(store, repair=True)
    assert (damages, summary.layers, summary.unchecked) == ([], 1, 1)
    assert len(store.images()) == 1
    # What was not noted is not looked at; its content is.
    os.truncate(root / "erofs" / second.replace(":", "-") / "data", 512)
    damages, _ = verified(store)
    assert [damage.object for damage in damages] == [second]
    store.close()


@pytest.mark.parametrize("snapshot_driver", ["erofs", "directories"])
def test_a_list_of_directories_without_an_entry_is_looked_at(tmp_path: Path, snapshot_driver: str) -> None:
    config = ImagesConfig(snapshot_driver=snapshot_driver)
    made = layers_layout(tmp_path / "layout", [[file("a/b/c", "x")]], name="localhost/list:1")
    store = ImageStore.open(tmp_path / "images", config=config, registries={})
    asyncio.run(store.load(made.path))
    assert verified(store)[0] == []
    listed = tmp_path / "images/implied" / made.diff_ids[0].replace(":", "-")
    assert listed.stat().st_mode & 0o777 == 0o600
    listed.write_bytes(listed.read_bytes() + b"\0d")
    (damage,), _ = verified(store)
    assert damage.problem.startswith("its list of directories without an entry: expected digest sha256:")
    listed.unlink()
    (damage,), _ = verified(store, repair=True)
    assert damage.problem.endswith("the content has none")
    assert (damage.repaired, store.images()) == (True, [])
    store.close()


@pytest.mark.parametrize("snapshot_driver", ["erofs"])
def test_every_byte_of_a_superblock_may_be_damaged(tmp_path: Path, snapshot_driver: str) -> None:
    config = ImagesConfig(snapshot_driver=snapshot_driver)
    made = layers_layout(tmp_path / "layout", [[file("a", "x")], [file("b", "y")]], name="localhost/damaged:1")
    store = ImageStore.open(tmp_path / "images", config=config, registries={})
    asyncio.run(store.load(made.path))
    metadata = tmp_path / "images/erofs" / made.diff_ids[0].replace(":", "-") / "meta.erofs"
    whole = metadata.read_bytes()
    for noted in (True, False):
        for start in range(1024, 1152, 16):
            metadata.write_bytes(whole[:start] + b"\xff" * 16 + whole[start + 16 :])
            damages, summary = verified(store)
            assert {damage.object for damage in damages} <= {made.diff_ids[0]}
            assert damages or not noted
            assert summary.layers + summary.unchecked == 2
        metadata.write_bytes(whole)
        store.close()
        with sqlite3.connect(tmp_path / "images/images.db") as database:
            database.execute("UPDATE layers SET metadata = ''")
        database.close()
        store = ImageStore.open(tmp_path / "images", config=config, registries={})
    store.close()


def test_a_file_that_was_added_to_a_directory_is_seen(tmp_path: Path) -> None:
    config = ImagesConfig(snapshot_driver="directories")
    made = layers_layout(tmp_path / "layout", [[file("a/b", "x"), file("c", "")]], name="localhost/added:1")
    store = ImageStore.open(tmp_path / "images", config=config, registries={})
    asyncio.run(store.load(made.path))
    assert verified(store)[0] == []
    (tmp_path / "images/layers" / made.diff_ids[0].replace(":", "-") / "a/extra").touch()
    (damage,), _ = verified(store)
    assert damage.problem == "expected 5 files and directories, there are 6"
    store.close()


@pytest.mark.parametrize("what", ["verify", "save"])
def test_a_caller_that_leaves_while_layers_are_taken_hold_of_keeps_none(what: str, tmp_path: Path) -> None:
    made = layers_layout(tmp_path / "layout", [[file("a", "x" * 5000)]], name="localhost/one:1")
    config = ImagesConfig(snapshot_driver="directories")
    store = ImageStore.open(tmp_path / "images", config=config, registries={})
    maintenance = Maintenance(store, dict)
    target = tmp_path / "saved"
    target.mkdir()
    descriptors = 0

    async def verify() -> None:
        async for _ in maintenance.verify(["localhost/one:1"], repair=False):
            pass

    async def save() -> None:
        fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
        try:
            await maintenance.save(["localhost/one:1"], describe(fd, str(target)), lambda _: None)
        finally:
            os.close(fd)

    async def run() -> None:
        nonlocal descriptors
        await store.load(made.path)
        descriptors = len(open_descriptors())
        with store._catalog.changing:
            caller = asyncio.ensure_future({"verify": verify, "save": save}[what]())
            # A step that no thread has begun would be taken back, which is not what this is about.
            await asyncio.to_thread(_until_a_thread_is_in, "hold")
            caller.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert len(open_descriptors()) == descriptors

    asyncio.run(run())
    asyncio.run(maintenance.remove("localhost/one:1"))
    assert store.records()[1] == {}
    assert not layer_directory(tmp_path / "images", made.diff_ids[0]).exists()
    store.close()


def _until_a_thread_is_in(function: str) -> None:
    deadline = time.monotonic() + 20
    while not any(frame.f_code.co_name == function for frame in sys._current_frames().values()):
        assert time.monotonic() < deadline, f"no thread came to {function}"
        time.sleep(0.001)
