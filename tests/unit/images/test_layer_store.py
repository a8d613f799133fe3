"""The layers of the store: who keeps them, how they come into place, and what a start finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition
from podkeep.base.ids import Digest, ImageID
from podkeep.images.formats.image import LayerKind
from podkeep.images.messages import Available, AvailableLayer, NewLayer, StagedLayer, WantedLayer
from podkeep.images.snapshots.choice import open_drivers
from podkeep.images.store.catalog import Catalog
from podkeep.images.store.database import BlobRecord, ImageDatabase, LayerRecord, NewImage
from podkeep.images.store.layer_store import LayerStore

BOOT, EARLIER = "this-boot", "an-earlier-boot"
A, B, C = (Digest(f"sha256:{letter * 64}") for letter in "abc")
BLOB = Digest("sha256:" + "f" * 64)
IMAGE = ImageID("sha256:" + "1" * 64)


class Store:
    """A layer store with the drivers that it has, on an empty directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.database = ImageDatabase(root / "images.db")
        self.catalog = Catalog(self.database, ())
        self.drivers = open_drivers(root, root / "mounted")
        self.layers = LayerStore(root, self.catalog, self.drivers, "directories")

    def staged(self, layer: Digest, *, kind: LayerKind = "tar", title: str = "", content: str = "x") -> NewLayer:
        """Return what a worker reports of a layer that it unpacked."""
        path = self.layers.driver.stage() / "0"
        path.mkdir()
        (path / (title or "file")).write_text(content)
        sizes = {"bytes": 4096, "inodes": 2, "data_bytes": 0}
        made = StagedLayer(driver="directories", path=str(path), metadata="", implied="", **sizes)
        return NewLayer(layer=layer, kind=kind, title=title, digest=BLOB, compression="none", staged=made)

    def put(self, layer: Digest, boot_id: str = "", *, driver: str = "directories") -> LayerRecord:
        """Put a layer into place and record it, for no image."""
        reported = self.staged(layer)
        taken = self.layers.commit(reported, {}, directory_of(reported), boot_id)
        record = LayerRecord(id=layer, driver=driver, bytes=taken.bytes, inodes=taken.inodes, boot_id=boot_id)
        self.record(record)
        return record

    def record(self, *records: LayerRecord, blobs: tuple[BlobRecord, ...] = ()) -> None:
        """Record layers that are in place."""
        self.database.add([], records, blobs)
        self.catalog.refresh()

    def use(self, *layers: Digest) -> None:
        """Record an image that has these layers."""
        new = NewImage(id=IMAGE, config=b"{}", manifests=(), layers=layers, tags=("localhost/x:1",), digests=())
        self.database.add([new], ())
        self.catalog.refresh()

    def on_disk(self) -> set[Digest]:
        """Return the layers whose files are here."""
        return set(self.layers.driver.kept())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path)
    yield opened
    opened.layers.close()
    opened.database.close()


def directory_of(reported: NewLayer) -> Path:
    """Return the staging directory of the worker that reports a layer."""
    assert reported.staged is not None
    return Path(reported.staged.path).parent


def wanted(layer: Digest | None, kind: LayerKind = "tar", title: str = "") -> WantedLayer:
    """Return a layer as a worker asks for it."""
    return WantedLayer(layer=layer, kind=kind, digest=BLOB, compression="none", title=title)


def told(*layers: tuple[Digest | None, Digest | None]) -> Available:
    """Return the store's answer: each layer that is here, or the file with the same content under another title."""
    return Available(layers=tuple(AvailableLayer(layer=here, same_file=file) for here, file in layers))


# who keeps a layer


def test_a_layer_that_nobody_needs_goes_with_its_record(store: Store) -> None:
    store.put(A)
    store.put(B)
    store.use(B)
    store.layers.collect()
    assert store.on_disk() == set(store.catalog.layers) == {B}
    assert list((store.root / "trash").iterdir()) == []


def test_a_layer_that_was_told_to_a_worker_stays_until_that_is_over(store: Store) -> None:
    store.put(A)
    leased: list[Digest] = []
    assert store.layers.lease([wanted(A), wanted(B)], leased) == told((A, None), (None, None))
    store.layers.collect()
    assert store.on_disk() == {A}
    store.layers.release(leased)
    store.layers.collect()
    assert store.on_disk() == set()


def test_of_two_who_hold_a_layer_the_last_lets_it_go(store: Store) -> None:
    store.put(A)
    first, second = store.layers.hold([A, A, B]), store.layers.hold([A])
    assert first == second == [A]
    store.layers.release(first)
    store.layers.collect()
    assert store.on_disk() == {A}
    store.layers.release(second)
    store.layers.collect()
    assert store.on_disk() == set()


# how it comes into place


def test_a_layer_that_is_here_is_not_put_into_place_again(store: Store) -> None:
    before = store.put(A)
    reported = store.staged(A, content="another")
    assert store.layers.commit(reported, {}, directory_of(reported), BOOT) == before
    assert (store.root / "layers" / A.replace(":", "-") / "file").read_text() == "x"


def test_a_file_that_is_here_under_another_name_is_linked(store: Store) -> None:
    first = store.staged(A, kind="file", title="one", content="content")
    staging = directory_of(first)
    one = store.layers.commit(first, {}, staging, BOOT)
    assert (one.kind, one.title, one.blob, one.boot_id) == ("file", "one", BLOB, BOOT)
    two = store.layers.commit(store.staged(B, kind="file", title="two"), {A: one}, staging, BOOT)
    paths = [store.root / "layers" / layer.replace(":", "-") / name for layer, name in ((A, "one"), (B, "two"))]
    assert paths[0].samefile(paths[1])
    assert paths[1].read_text() == "content"
    assert (two.id, two.title, two.blob) == (B, "two", BLOB)


def test_a_worker_is_told_of_a_file_under_another_name(store: Store) -> None:
    reported = store.staged(A, kind="file", title="one")
    record = store.layers.commit(reported, {}, directory_of(reported), "")
    store.record(record, blobs=(BlobRecord(digest=BLOB, compression="none", layer=A),))
    leased: list[Digest] = []
    asked = wanted(None, "file", title="two")
    assert store.layers.lease([asked], leased) == told((None, A))
    assert leased == [A]


# what a start finds


def test_a_layer_of_an_earlier_boot_that_was_not_synced_goes_with_its_images(store: Store) -> None:
    store.put(A, EARLIER)
    store.put(B)
    store.use(A, B)
    store.layers.recover(BOOT)
    assert (store.on_disk(), set(store.catalog.layers), dict(store.catalog.images)) == (set(), set(), {})


def test_a_layer_of_this_boot_or_one_that_was_synced_stays(store: Store) -> None:
    store.put(A, BOOT)
    store.put(B)
    store.use(A, B)
    store.layers.recover(BOOT)
    assert store.on_disk() == set(store.catalog.layers) == {A, B}


def test_files_without_a_record_and_records_without_files_go(store: Store) -> None:
    reported = store.staged(A)
    store.layers.commit(reported, {}, directory_of(reported), BOOT)
    store.record(LayerRecord(id=B, bytes=1, inodes=1, boot_id=""))
    store.use(B)
    store.layers.recover(BOOT)
    assert (store.on_disk(), set(store.catalog.layers), dict(store.catalog.images)) == (set(), set(), {})
    assert list((store.root / "staging").iterdir()) == []


def test_a_layer_of_a_driver_that_is_not_known_stops_the_start(store: Store) -> None:
    store.put(A, driver="squashfs")
    with pytest.raises(FailedPrecondition, match="squashfs") as refused:
        store.layers.recover(BOOT)
    assert "move the directory away" in refused.value.hint
    assert store.on_disk() == {A}


# what is in no record


def test_strays_are_told_and_removed_only_if_that_is_asked_for(store: Store) -> None:
    store.put(A)
    reported = store.staged(C)
    store.layers.commit(reported, {}, directory_of(reported), BOOT)
    assert store.layers.strays(remove=False) == [f"directories: {C}"]
    assert store.on_disk() == {A, C}
    assert store.layers.strays(remove=True) == [f"directories: {C}"]
    assert store.on_disk() == {A}


def test_usage_grows_by_what_the_records_say(store: Store) -> None:
    store.use()
    before = store.layers.usage()
    store.record(LayerRecord(id=A, bytes=10_000_000, inodes=70, boot_id=""))
    after = store.layers.usage()
    assert after.mountpoint == str(store.root)
    assert after.used_bytes - before.used_bytes >= 10_000_000
    assert after.inodes_used - before.inodes_used == 70
