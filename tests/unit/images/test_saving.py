"""What a saved layout consists of, and what happens when a layer or the target is not as it should be."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import DataLoss, FailedPrecondition, ResourceExhausted
from podkeep.base.ids import Digest, ImageID
from podkeep.images.formats.image import ImageKind
from podkeep.images.formats.manifest import blob_name
from podkeep.images.messages import StoredImage, StoredLayer
from podkeep.images.worker import saving

CONFIG = b'{"architecture":"amd64","os":"linux"}'
SIZES: dict[Digest, int] = {}
"""Bytes of the layers of :func:`image`."""


def digest(data: bytes) -> Digest:
    return Digest(f"sha256:{hashlib.sha256(data).hexdigest()}")


def layer(data: bytes) -> StoredLayer:
    key = digest(data)
    return StoredLayer(id=key, driver="directories", digest=key, metadata="", implied="", bytes=4096, inodes=2)


def image(
    *contents: bytes, manifest: object = None, tags: tuple[str, ...] = ("r:1",), kind: ImageKind = "image"
) -> StoredImage:
    for data in contents:
        SIZES[digest(data)] = len(data)
    return StoredImage(
        id=ImageID(digest(CONFIG)),
        kind=kind,
        config=CONFIG,
        manifest=json.dumps(manifest).encode() if manifest else b"",
        layers=tuple(map(layer, contents)),
        tags=tags,
        digests=("r@sha256:" + "0" * 64,),
    )


def planned(images: list[StoredImage]) -> saving.Plan:
    return saving.plan(images, SIZES)


def manifest(*layers: dict[str, object], **more: object) -> dict[str, object]:
    config = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(CONFIG), "size": len(CONFIG)}
    return {"schemaVersion": 2, "config": config, "layers": list(layers), **more}


def index_of(plan: saving.Plan) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = json.loads(plan.documents["index.json"])["manifests"]
    return entries


def manifest_of(plan: saving.Plan) -> dict[str, object]:
    found: dict[str, object] = json.loads(plan.documents[blob_name(str(index_of(plan)[0]["digest"]))])
    return found


def test_compressed_layers_get_a_new_manifest_and_the_configuration_stays() -> None:
    packed = {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": "sha256:" + "1" * 64, "size": 1}
    plan = planned([image(b"plain", manifest=manifest(packed, annotations={"a": "b"}))])
    assert plan.documents[blob_name(digest(CONFIG))] == CONFIG
    written = manifest_of(plan)
    assert written["annotations"] == {"a": "b"}
    assert written["layers"] == [
        {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest(b"plain"), "size": 5}
    ]
    assert list(plan.layers) == [blob_name(digest(b"plain"))]


def test_what_holds_the_compressed_layer_does_not_go_with_the_plain_one() -> None:
    packed = {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": "sha256:" + "1" * 64, "size": 1}
    more = {"data": "eA==", "urls": ["https://r.example/x"], "annotations": {"a": "b"}}
    written = manifest_of(planned([image(b"plain", manifest=manifest(packed | more))]))
    plain = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest(b"plain"), "size": 5}
    assert written["layers"] == [plain | {"annotations": {"a": "b"}}]


def test_a_manifest_of_plain_layers_stays_byte_for_byte() -> None:
    plain = {"mediaType": "text/plain", "digest": digest(b"plain"), "size": 5}
    document = manifest(plain, artifactType="a/b")
    plan = planned([image(b"plain", manifest=document, kind="artifact")])
    data = json.dumps(document).encode()
    assert plan.documents[blob_name(digest(data))] == data
    assert index_of(plan)[0]["artifactType"] == "a/b"
    assert "manifest.json" not in plan.documents


def test_an_image_without_a_manifest_gets_one() -> None:
    written = manifest_of(planned([image(b"one", b"two")]))
    assert written["config"] == {
        "mediaType": "application/vnd.oci.image.config.v1+json",
        "digest": digest(CONFIG),
        "size": len(CONFIG),
    }


def test_every_name_has_an_entry() -> None:
    entries = index_of(planned([image(b"x", tags=("r:1", "r:2"))]))
    assert [entry["annotations"] for entry in entries] == [
        {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name} for name in ("r:1", "r:2")
    ]
    (entry,) = index_of(planned([image(b"x", tags=())]))
    assert entry["annotations"] == {"io.containerd.image.name": "r@sha256:" + "0" * 64}


def test_layers_that_were_never_kept_cannot_be_saved() -> None:
    with pytest.raises(FailedPrecondition, match="1 layers in its manifest, but 2"):
        planned([image(b"one", b"two", manifest=manifest({"digest": digest(b"one")}))])


def written(tmp_path: Path, images: list[StoredImage], contents: dict[Digest, bytes]) -> bytes:
    path = tmp_path / os.urandom(4).hex()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        saving.write(planned(images), saving.target_of(fd, "out"), lambda item: iter((contents[item.digest],)))
    finally:
        os.close(fd)
    return path.read_bytes()


def test_the_same_images_give_the_same_tar(tmp_path: Path) -> None:
    contents = {digest(data): data for data in (b"one" * 1000, b"two")}
    images = [image(*contents.values())]
    data = written(tmp_path, images, contents)
    assert data == written(tmp_path, images, contents)
    assert len(data) % 10240 == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = {member.name: member for member in archive}
        assert {member.mtime for member in members.values()} == {0}
        blob = archive.extractfile(members[blob_name(digest(b"two"))])
        assert blob is not None
        assert blob.read() == b"two"


@pytest.mark.parametrize("content", [b"twa", b"tw", b"twoo", b""])
def test_a_layer_that_is_not_what_it_should_be_is_not_saved(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataLoss, match="is damaged"):
        written(tmp_path, [image(b"two")], {digest(b"two"): content})


def test_a_full_target_is_told() -> None:
    def endless(_: StoredLayer) -> Iterator[bytes]:
        while True:
            yield bytes(1 << 20)

    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(ResourceExhausted, match="out: cannot be written: No space left"):
            saving.write(planned([image(b"x")]), saving.TarTarget(fd, "out"), endless)
    finally:
        os.close(fd)


def test_a_layout_is_written_below_its_directory(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        target = saving.target_of(fd, "out")
        saving.write(planned([image(b"x")]), target, lambda _: iter((b"x",)))
        with pytest.raises(FailedPrecondition, match="out/oci-layout: cannot be made: File exists"):
            saving.write(planned([image(b"x")]), target, lambda _: iter((b"x",)))
    finally:
        os.close(fd)
    assert (tmp_path / blob_name(digest(b"x"))).read_bytes() == b"x"
