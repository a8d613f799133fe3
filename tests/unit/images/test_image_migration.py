"""Records of images: files that older versions wrote, and what is kept when something comes twice."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from podkeep.base.config import ImagesConfig
from podkeep.base.errors import FailedPrecondition
from podkeep.base.ids import Digest, ImageID
from podkeep.images.store.catalog import disk_usage
from podkeep.images.store.database import MAX_BLOBS, BlobRecord, ImageDatabase, LayerRecord, NewImage
from podkeep.images.store.store import ImageStore

VERSION_1 = """
CREATE TABLE layers (diff_id TEXT PRIMARY KEY, bytes INTEGER NOT NULL, inodes INTEGER NOT NULL,
                     boot_id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE images (id TEXT PRIMARY KEY, config BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE image_layers (image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE, position INTEGER NOT NULL,
                           diff_id TEXT NOT NULL REFERENCES layers(diff_id),
                           PRIMARY KEY (image_id, position)) WITHOUT ROWID;
CREATE INDEX image_layers_by_layer ON image_layers (diff_id);
CREATE TABLE manifests (digest TEXT NOT NULL, image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
                        data BLOB NOT NULL, PRIMARY KEY (digest, image_id)) WITHOUT ROWID;
CREATE TABLE names (name TEXT PRIMARY KEY, image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
                    kind TEXT NOT NULL CHECK (kind IN ('tag', 'digest'))) WITHOUT ROWID;
PRAGMA user_version = 1;
"""
ID = ImageID("sha256:" + "1" * 64)
LAYERS = tuple(Digest(f"sha256:{number:064x}") for number in range(4))
TAG = "docker.io/library/a:1"


def _old(root: Path) -> None:
    """Write what version 1 left: an image of two layers, in directories."""
    root.mkdir()
    config = json.dumps({"config": {"User": "app"}, "rootfs": {"diff_ids": LAYERS[:2]}}).encode()
    with sqlite3.connect(root / "images.db") as database:
        database.executescript(VERSION_1)
        database.execute("INSERT INTO images VALUES (?, ?)", (ID, config))
        for number, layer in enumerate(LAYERS[:2]):
            database.execute("INSERT INTO layers VALUES (?, 8192, 2, '')", (layer,))
            database.execute("INSERT INTO image_layers VALUES (?, ?, ?)", (ID, number, layer))
            (root / "layers" / layer.replace(":", "-")).mkdir(parents=True)
        database.execute("INSERT INTO manifests VALUES (?, ?, ?)", (LAYERS[3], ID, b"{}"))
        database.execute("INSERT INTO names VALUES (?, ?, 'tag')", (TAG, ID))
    database.close()


def test_images_of_version_1_are_still_there(tmp_path: Path) -> None:
    root = tmp_path / "images"
    _old(root)
    for _ in range(2):
        store = ImageStore.open(root, config=ImagesConfig(), registries={})
        (image,) = store.images()
        assert (image.id, image.kind, image.artifact_type, image.pulled_at) == (ID, "image", "", 0)
        assert (image.layers, image.repo_tags, image.user) == (LAYERS[:2], (TAG,), "app")
        assert store.run_config(image).user == "app"
        store.close()
    database = ImageDatabase(root / "images.db")
    assert database.layers()[LAYERS[0]] == LayerRecord(
        id=LAYERS[0], kind="tar", title="", blob=None, driver="directories", bytes=8192, inodes=2, boot_id=""
    )
    assert database.documents(ID)[1] == {LAYERS[3]: b"{}"}
    assert database.blobs() == []
    database.close()


def test_a_migrated_file_is_like_a_new_one(tmp_path: Path) -> None:
    _old(tmp_path / "old")
    (tmp_path / "new").mkdir()
    schemas = []
    for name in ("old", "new"):
        path = tmp_path / name / "images.db"
        ImageDatabase(path).close()
        with sqlite3.connect(path) as database:
            schemas.append(sorted(database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()))
        database.close()
    assert schemas[0] == schemas[1]


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "images.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(FailedPrecondition, match="has version 99, this podkeep reads version"):
        ImageDatabase(tmp_path / "images.db")


def test_a_layer_of_a_driver_that_is_not_here_is_no_reason_to_remove_it(tmp_path: Path) -> None:
    root = tmp_path / "images"
    _old(root)
    ImageDatabase(root / "images.db").close()
    with sqlite3.connect(root / "images.db") as database:
        database.execute("UPDATE layers SET driver = 'zfs'")
    database.close()
    with pytest.raises(FailedPrecondition, match="drivers this podkeep lacks: zfs"):
        ImageStore.open(root, config=ImagesConfig(), registries={})
    assert len(list((root / "layers").iterdir())) == 2


def _layer(number: int, **more: object) -> LayerRecord:
    return LayerRecord(**{"id": LAYERS[number], "bytes": 10, "inodes": 2, "boot_id": "", **more})  # type: ignore[arg-type]


def _image(**more: object) -> NewImage:
    given = {"id": ID, "config": b"{}", "manifests": (), "layers": LAYERS[:1], "tags": (TAG,), "digests": ()}
    return NewImage(**(given | more))  # type: ignore[arg-type]


def test_an_image_that_comes_again_keeps_its_layers(tmp_path: Path) -> None:
    database = ImageDatabase(tmp_path / "images.db")
    database.add([_image(pulled_at=1)], [_layer(0)])
    database.add([_image(pulled_at=2, layers=LAYERS[1:3], tags=("other",))], [_layer(1), _layer(2)])
    (image,) = database.images()
    assert (image.layers, image.tags, image.pulled_at) == (LAYERS[:1], (TAG, "other"), 2)
    assert database.unused_layers() == {LAYERS[1], LAYERS[2]}
    database.close()


def test_blobs_go_with_their_layers(tmp_path: Path) -> None:
    database = ImageDatabase(tmp_path / "images.db")
    blobs = [
        BlobRecord(digest=LAYERS[3], compression=kind, layer=LAYERS[n]) for n in (0, 1) for kind in ("none", "gzip")
    ]
    database.add([], [_layer(0), _layer(1)], [*blobs, *blobs])
    assert sorted(database.blobs(), key=str) == sorted(blobs, key=str)
    database.remove_layers([LAYERS[0]])
    assert sorted(database.blobs(), key=str) == sorted(blobs[2:], key=str)
    database.close()


def test_a_layer_has_few_blobs_however_often_it_was_compressed(tmp_path: Path) -> None:
    """An artifact may have hundreds that become one layer, which stays if an image that is in use has it, too."""
    database = ImageDatabase(tmp_path / "images.db")
    for start in range(0, 300, 100):
        digests = [Digest(f"sha256:{start + number:064x}") for number in range(100)]
        blobs = [BlobRecord(digest=digest, compression="gzip", layer=LAYERS[0]) for digest in digests]
        other = BlobRecord(digest=digests[0], compression="zstd", layer=LAYERS[1])
        database.add([], [_layer(0), _layer(1)], [*blobs, other])
    kept = [blob.layer for blob in database.blobs()]
    assert (kept.count(LAYERS[0]), kept.count(LAYERS[1])) == (MAX_BLOBS, 3)
    database.close()


@pytest.mark.requirement("V70")
def test_what_files_share_counts_once() -> None:
    file = {"kind": "file", "bytes": 108, "data_bytes": 100, "inodes": 2}
    tar, one, two = _layer(0), _layer(1, **file, blob=LAYERS[3], title="a"), _layer(2, **file, blob=LAYERS[3])
    other = _layer(3, **file, blob=LAYERS[0])
    assert disk_usage([]) == (0, 0)
    assert disk_usage([tar, one]) == (118, 4)
    assert disk_usage([tar, one, two]) == (126, 5)
    assert disk_usage([two, tar, other, one]) == (234, 7)


@pytest.mark.requirement("V67")
def test_pinned_images_are_those_whose_name_a_pattern_matches(tmp_path: Path) -> None:
    root = tmp_path / "images"
    _old(root)
    store = ImageStore.open(root, config=ImagesConfig(), registries={})
    for patterns, pinned in (
        ((), False),
        ((TAG,), True),
        (("docker.io/library/*",), True),
        (("*",), True),
        (("a:1", "docker.io/library/A:1", "quay.io/*"), False),
        (("quay.io/*", "*/a:[0-9]"), True),
    ):
        store.reconfigure(ImagesConfig(pinned=patterns), {})
        assert [image.pinned for image in store.images()] == [pinned], patterns
    store.close()
