"""An image that stays because it is in use has an end to its names and its manifests, and keeps those that count."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from podkeep.base.config import ImagesConfig
from podkeep.base.ids import Digest, ImageID
from podkeep.images.store.database import MAX_DOCUMENT_BYTES, MAX_MANIFESTS, MAX_NAMES, ImageDatabase, NewImage
from podkeep.images.store.store import ImageStore
from support.images import OCI_INDEX, LayoutBuilder

ID = ImageID("sha256:" + "1" * 64)
PINNED, USED, UNUSED = (f"localhost/{name}:1" for name in ("pinned", "used", "unused"))


def _digest(number: int) -> Digest:
    return Digest(f"sha256:{number:064x}")


def _image(**more: object) -> NewImage:
    given = {"id": ID, "config": b"{}", "manifests": (), "layers": (), "tags": (), "digests": ()}
    return NewImage(**(given | more))  # type: ignore[arg-type]


@pytest.fixture
def database(tmp_path: Path) -> ImageDatabase:
    return ImageDatabase(tmp_path / "images.db")


def test_the_newest_names_are_kept(database: ImageDatabase) -> None:
    database.add([_image(tags=("first",), digests=("first@x",))], ())
    database.add([_image(tags=tuple(f"{number}" for number in range(MAX_NAMES)))], ())
    database.add([_image(tags=("7",), digests=("last@x",))], ())
    (image,) = database.images()
    assert len(image.tags) + len(image.digests) == MAX_NAMES
    assert image.digests == ("last@x",)
    assert "7" in image.tags
    assert "first" not in image.tags
    database.close()


def test_a_tenant_with_many_names_pushes_out_those_of_nobody_else(database: ImageDatabase) -> None:
    """What was loaded cannot be pulled again, and a pod that never pulls needs it."""
    database.add([_image(tags=("loaded",))], ())
    database.add([_image(tags=("other's",))], (), tenant="other")
    for number in range(2 * MAX_NAMES):
        database.add([_image(tags=(f"{number}",))], (), tenant="many")
    # Nor by pulling them once more, which makes them nobody's own.
    database.add([_image(tags=("loaded", "other's"))], (), tenant="many")
    database.add([_image(tags=tuple(f"more{number}" for number in range(MAX_NAMES - 2)))], (), tenant="many")
    (image,) = database.images()
    assert len(image.tags) == MAX_NAMES
    assert {"loaded", "other's", f"more{MAX_NAMES - 3}"} <= {*image.tags}
    database.close()


def test_a_name_that_leads_elsewhere_now_is_whose_pull_that_was(database: ImageDatabase) -> None:
    database.add([_image(id=ImageID(_digest(1)), tags=("moved",))], ())
    database.add([_image(tags=("moved",))], (), tenant="many")
    database.add([_image(tags=tuple(f"{number}" for number in range(MAX_NAMES)))], (), tenant="many")
    found = {image.id: image.tags for image in database.images()}
    assert len(found[ID]) == MAX_NAMES
    assert "moved" not in {*found[ID], *found[ImageID(_digest(1))]}
    database.close()


def test_of_tenants_with_as_many_names_the_one_that_was_quiet_loses_one(database: ImageDatabase) -> None:
    for number in range(MAX_NAMES):
        database.add([_image(tags=(f"{number}",))], (), tenant=f"tenant{number}")
    database.add([_image(tags=("last",))], (), tenant="last")
    (image,) = database.images()
    assert len(image.tags) == MAX_NAMES
    assert "last" in image.tags
    assert "0" not in image.tags
    database.close()


def test_other_images_keep_their_names(database: ImageDatabase) -> None:
    database.add([_image(id=ImageID(_digest(1)), tags=("other",))], ())
    database.add([_image(tags=tuple(f"{number}" for number in range(2 * MAX_NAMES)))], ())
    assert {image.id: len(image.tags) for image in database.images()} == {_digest(1): 1, ID: MAX_NAMES}
    database.close()


def test_the_newest_manifests_are_kept_and_that_which_led_here_last(database: ImageDatabase) -> None:
    """An index that leads to the same manifest is another one each time; the manifest itself came long ago."""
    for number in range(1, 3 * MAX_MANIFESTS):
        documents = ((_digest(0), b"manifest"), (_digest(number), b"index"))
        database.add([_image(manifests=documents, digests=(f"a@{_digest(number)}",))], ())
    kept = database.documents(ID)[1]
    assert len(kept) == MAX_MANIFESTS
    assert kept[_digest(0)] == b"manifest"
    assert _digest(3 * MAX_MANIFESTS - 1) in kept
    assert _digest(1) not in kept
    database.close()


def test_the_newest_manifests_are_kept_when_names_were_taken_away(database: ImageDatabase) -> None:
    for number in range(1, 61):
        database.add([_image(manifests=((_digest(number), b"old"),), tags=(f"{number}",))], ())
    for number in range(1, 61):
        database.remove_name(f"{number}")
    for number in range(61, 121):
        database.add([_image(manifests=((_digest(number), b"new"),), tags=(f"{number}",))], ())
    kept = database.documents(ID)[1]
    assert kept.keys() == {_digest(number) for number in range(121 - MAX_MANIFESTS, 121)}
    database.close()


@pytest.mark.slow
def test_manifests_of_megabytes_are_fewer(database: ImageDatabase) -> None:
    large = b" " * (MAX_DOCUMENT_BYTES // 4)
    for number in range(1, 10):
        documents = ((_digest(0), b"manifest"), (_digest(number), large))
        database.add([_image(manifests=documents, digests=(f"a@{_digest(number)}",))], ())
    kept = database.documents(ID)[1]
    assert sum(map(len, kept.values())) <= MAX_DOCUMENT_BYTES
    assert {_digest(0), _digest(9), _digest(8)} <= kept.keys()
    database.close()


@pytest.mark.slow
def test_what_one_pull_brings_is_kept_whole(database: ImageDatabase) -> None:
    documents = tuple((_digest(number), b" " * MAX_DOCUMENT_BYTES) for number in range(2))
    database.add([_image(manifests=documents)], ())
    assert len(database.documents(ID)[1]) == 2
    database.close()


def _layout(path: Path, names: list[str]) -> Path:
    """Write one image with many names."""
    builder = LayoutBuilder(path)
    image = builder.image([], config={"User": "app"})
    entries = [image | {"annotations": {"org.opencontainers.image.ref.name": name}} for name in names]
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}))
    return path


@pytest.mark.slow
def test_names_that_containers_asked_for_and_pinned_ones_stay(tmp_path: Path) -> None:
    store = ImageStore.open(
        tmp_path / "images",
        config=ImagesConfig(snapshot_driver="directories", pinned=("localhost/pinned:*",)),
        registries={},
        names_in_use=lambda: {USED, str(ID)},
    )
    asyncio.run(store.load(_layout(tmp_path / "first", [PINNED, USED, UNUSED])))
    for start in range(0, MAX_NAMES, 100):
        names = [f"localhost/a:{number}" for number in range(start, start + 100)]
        asyncio.run(store.load(_layout(tmp_path / f"{start}", names)))
    (image,) = store.images()
    assert len((*image.repo_tags, *image.repo_digests)) == MAX_NAMES + 2
    assert {PINNED, USED} <= {*image.repo_tags}
    assert store.find(UNUSED) is None
    assert store.find(USED) == image
    store.close()
