"""Writes records of images on a file system that is full.

full_disk.py records|sync|removal|inodes|upgrade DIRECTORY
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import sys
import threading
from pathlib import Path

from podkeep.base.config import ImagesConfig
from podkeep.base.errors import ResourceExhausted
from podkeep.base.ids import Digest, ImageID
from podkeep.images.store import database as records_of
from podkeep.images.store import durability
from podkeep.images.store import store as stores
from podkeep.images.store.database import ImageDatabase, LayerRecord, NewImage


def layers(count: int, boot_id: str) -> list[LayerRecord]:
    return [LayerRecord(id=Digest(f"sha256:{i:064x}"), bytes=1, inodes=1, boot_id=boot_id) for i in range(count)]


def fill(root: Path) -> None:
    """Write until there is no space left."""
    with (root / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def records(root: Path) -> None:
    """Records that do not fit are refused, and no damage is left."""
    database = ImageDatabase(root / "images.db")
    database.add([], layers(1, "b"))
    fill(root)
    for _ in range(2):
        refused = None
        try:
            database.add([], layers(5000, "b"))
        except ResourceExhausted as error:
            refused = error
        assert refused is not None, "the disk was not full"
        assert str(root) in refused.message, refused
        assert "free space" in refused.hint, refused
        assert "move" not in refused.hint, refused
        assert len(database.layers()) == 1
    os.unlink(root / "filler")
    database.add([], layers(2000, "b"))
    assert len(database.layers()) == 2000


def sync(root: Path) -> None:
    """The thread that syncs layers cannot note it; a later sync does."""
    durability._DELAY = 0.0
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    records = layers(300, boot_id)
    store = stores.ImageStore.open(root, config=ImagesConfig(), registries={})
    for record in records:
        store._layers.driver.path(record.id).mkdir()
        store._layers._leases[record.id] += 1
    store._catalog.database.add([], records)
    store._catalog.refresh()
    fill(root)
    store._durability.sync_later()
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()
    assert store._durability._timer is None
    assert all(layer.boot_id for layer in store._catalog.layers.values())
    os.unlink(root / "filler")
    store.sync()
    assert not any(layer.boot_id for layer in store._catalog.layers.values())
    store.close()


def removal(root: Path) -> None:
    """Images can be removed."""
    store = stores.ImageStore.open(root, config=ImagesConfig(snapshot_driver="directories"), registries={})
    (record,) = layers(1, "")
    kept = store._layers.driver.path(record.id)
    kept.mkdir()
    (kept / "file").write_bytes(bytes(4 << 20))
    image = NewImage(
        id=ImageID("sha256:" + "1" * 64),
        kind="artifact",
        config=bytes(4000),
        manifests=(),
        layers=(record.id,),
        tags=("docker.io/library/a:1", "docker.io/library/a:2"),
        digests=(),
    )
    store._catalog.database.add([image], [record])
    store._catalog.refresh()
    reserve = root / "images.db-reserve"
    assert reserve.stat().st_blocks * 512 == 512 << 10
    store._catalog.database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # a journal with room would do
    fill(root)
    store.forget("a:1")
    assert not reserve.exists()
    assert [image.repo_tags for image in store.images()] == [("docker.io/library/a:2",)]
    store.remove("a:2")
    assert not kept.exists()
    assert not store.images()
    assert reserve.stat().st_blocks * 512 == 512 << 10
    store.close()


def inodes(root: Path) -> None:
    """Images can be removed where no file can be made any more."""
    store = stores.ImageStore.open(root, config=ImagesConfig(snapshot_driver="directories"), registries={})
    (record,) = layers(1, "")
    kept, top = store._layers.driver.path(record.id), store._layers._merging._tree((record.id,))
    kept.mkdir()
    top.mkdir()
    number = 0
    try:
        while True:
            (kept / str(number)).touch()
            number += 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    image = NewImage(
        id=ImageID("sha256:" + "1" * 64),
        config=b"{}",
        manifests=(),
        layers=(record.id,),
        tags=("docker.io/library/a:1",),
        digests=(),
    )
    store._catalog.database.add([image], [record])
    store._catalog.refresh()
    store.remove("a:1")
    assert not kept.exists()
    assert not top.exists()
    assert not store.images()
    assert os.listdir(root / "trash") == []
    store.close()


def upgrade(root: Path) -> None:
    """Images that an older podkeep recorded are taken over."""
    count = 8
    connection = sqlite3.connect(root / "images.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript("".join(records_of._MIGRATIONS[:3]) + "PRAGMA user_version = 3;")
    for number in range(count):
        config = json.dumps({"config": {"User": f"user{number}"}, "passed over": "x" * (1 << 20)}).encode()
        connection.execute("INSERT INTO images (id, config) VALUES (?, ?)", (f"sha256:{number:064x}", config))
    connection.commit()
    connection.close()
    reserve = root / "images.db-reserve"
    with reserve.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 512 << 10)
    fill(root)
    for _ in range(2):
        store = stores.ImageStore.open(root, config=ImagesConfig(snapshot_driver="directories"), registries={})
        assert [image.user for image in store.images()] == [f"user{number}" for number in range(count)]
        assert [store.run_config(image).user for image in store.images()] == [
            f"user{number}" for number in range(count)
        ]
        store.close()
        (root / "filler").unlink(missing_ok=True)
    assert reserve.stat().st_blocks * 512 == 512 << 10


{"records": records, "sync": sync, "removal": removal, "inodes": inodes, "upgrade": upgrade}[sys.argv[1]](
    Path(sys.argv[2])
)
