"""Loading images from files."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from conftest import OpenStore, children, layer_directory, workers

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.images.formats.image import PullProgress
from podkeep.images.worker import archive as archives
from support import tarmaker
from support.images import (
    BUSYBOX,
    OCI_CONFIG,
    OCI_INDEX,
    OCI_MANIFEST,
    Layout,
    LayoutBuilder,
    busybox_layout,
    compress,
    file,
    tar,
)


@pytest.mark.parametrize("kind", ["directory", "tar", "tar.gz", "tar.zst", "docker"])
def test_every_kind_of_archive_gives_the_same_image(
    kind: str, tmp_path: Path, root: Path, busybox: Layout, open_store: OpenStore
) -> None:
    path = {
        "directory": lambda: busybox.path,
        "tar": lambda: busybox.tar(tmp_path / "a.tar"),
        "tar.gz": lambda: _written(tmp_path / "a.tar.gz", gzip.compress(_bytes(busybox, tmp_path))),
        "tar.zst": lambda: _written(tmp_path / "a.tar.zst", compress(_bytes(busybox, tmp_path), "zstd")),
        "docker": lambda: busybox.docker_archive(tmp_path / "d.tar", ["busybox:latest"]),
    }[kind]()
    steps: list[PullProgress] = []
    (image,) = asyncio.run(open_store().load(path, progress=steps.append))
    assert image.id == busybox.image_id
    assert image.repo_tags == ("docker.io/library/busybox:latest",)
    digests = () if kind == "docker" else (f"docker.io/library/busybox@{busybox.manifest_digest}",)
    assert image.repo_digests == digests
    assert (layer_directory(root, image.layers[0]) / "bin/busybox").read_bytes() == BUSYBOX.read_bytes()
    assert steps[-1].phase == "done"


def _bytes(layout: Layout, tmp_path: Path) -> bytes:
    return layout.tar(tmp_path / "plain.tar").read_bytes()


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("annotation", "name", "tag"),
    [
        ("", "my-app_v2.tar", "docker.io/library/my-app-v2:latest"),
        ("v7", "App.oci.tar", "docker.io/library/app:v7"),
        ("registry.example:5000/team/app:v3", "x.tar", "registry.example:5000/team/app:v3"),
    ],
)
def test_an_image_is_named_by_its_annotation_or_its_file(
    annotation: str, name: str, tag: str, tmp_path: Path, open_store: OpenStore
) -> None:
    builder = LayoutBuilder(tmp_path / "layout")
    layout = builder.finish(builder.image([tar([file("a")])]), annotation)
    (image,) = asyncio.run(open_store().load(layout.tar(tmp_path / name)))
    assert image.repo_tags == (tag,)


def test_no_archive_gives_an_image_the_digest_of_another(
    tmp_path: Path, busybox: Layout, open_store: OpenStore
) -> None:
    """What is pinned by a digest has that digest, or is not here."""
    store = open_store()
    (pinned,) = asyncio.run(store.load(busybox.path))
    (name,) = pinned.repo_digests
    builder = LayoutBuilder(tmp_path / "layout")
    evil = builder.finish(builder.image([tar([file("evil")])]), name.replace("@", ":v1@"))
    (loaded,) = asyncio.run(store.load(evil.path))
    assert (found := store.find(name)) is not None
    assert (found.id, loaded.id) == (pinned.id, evil.image_id)
    assert loaded.repo_tags == (f"{name.partition('@')[0]}:v1",)
    assert loaded.repo_digests == (f"{name.partition('@')[0]}@{evil.manifest_digest}",)
    for tag in (name, name.replace("@", ":v1@")):
        with pytest.raises(InvalidArgument, match="is no tag"):
            asyncio.run(store.load(evil.docker_archive(tmp_path / "d.tar", [tag])))
    assert store.find(name) == found


def test_a_manifest_in_an_archive_that_is_an_index_as_well_is_refused(tmp_path: Path, open_store: OpenStore) -> None:
    """As one from a registry (GHSA-77vh-xpmg-72qh)."""
    builder = LayoutBuilder(tmp_path / "layout")
    top = builder.image([tar([file("a")])])
    document = json.loads((builder.path / "blobs" / top["digest"].replace(":", "/")).read_text())
    both = builder.json(document | {"manifests": [top]}, OCI_MANIFEST)
    store = open_store()
    with pytest.raises(InvalidArgument, match="a manifest and an index at the same time"):
        asyncio.run(store.load(builder.finish(both, "x:1").path))
    with pytest.raises(InvalidArgument, match="it came as"):
        asyncio.run(store.load(builder.finish(top | {"mediaType": OCI_INDEX}, "x:1").path))


def test_every_image_of_an_archive_is_loaded(tmp_path: Path, open_store: OpenStore) -> None:
    builder = LayoutBuilder(tmp_path / "layout")
    shared = tar([file("shared")])
    tops = [builder.image([shared, tar([file(name)])]) for name in "ab"]
    for top, name in zip(tops, ("a:1", "b:2"), strict=True):
        top["annotations"] = {"io.containerd.image.name": f"example.com/{name}"}
    (builder.path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": tops}))
    images = asyncio.run(open_store().load(builder.path))
    assert [image.repo_tags for image in images] == [("example.com/a:1",), ("example.com/b:2",)]
    assert images[0].layers[0] == images[1].layers[0]


def test_what_skopeo_writes_is_loaded(tmp_path: Path, busybox: Layout, open_store: OpenStore) -> None:
    store = open_store()
    for number, kind in enumerate(("oci-archive", "docker-archive")):
        target = tmp_path / f"{kind}.tar"
        subprocess.run(
            [
                "skopeo",
                "copy",
                "-q",
                f"oci:{busybox.path}:busybox:latest",
                f"{kind}:{target}:example.com/app:v{number}",
            ],
            check=True,
        )
        (image,) = asyncio.run(store.load(target))
        assert image.layers == busybox.diff_ids
        assert f"example.com/app:v{number}" in image.repo_tags


def test_an_image_is_loaded_twice_without_unpacking_again(busybox: Layout, root: Path, open_store: OpenStore) -> None:
    store = open_store()
    asyncio.run(store.load(busybox.path))
    inode = layer_directory(root, busybox.diff_ids[0]).stat().st_ino
    steps: list[PullProgress] = []
    asyncio.run(store.load(busybox.path, progress=steps.append))
    assert [step.phase for step in steps] == ["exists"]
    assert layer_directory(root, busybox.diff_ids[0]).stat().st_ino == inode


def test_archives_that_are_none(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store()
    empty = tmp_path / "empty"
    empty.mkdir()
    layout = busybox_layout(tmp_path / "layout")
    archive = layout.tar(tmp_path / "a.tar").read_bytes()
    cases = [
        (tmp_path / "missing", NotFound, "No such file"),
        (empty, InvalidArgument, "neither an OCI layout nor a docker archive"),
        (_written(tmp_path / "b.tar", tar([file("a")])), InvalidArgument, "neither an OCI layout nor"),
        (_written(tmp_path / "c.tar", b"no tar at all" * 100), InvalidArgument, "not a tar archive"),
        (_written(tmp_path / "d.tar", archive[: len(archive) // 2]), InvalidArgument, "the archive ends too early"),
        (_written(tmp_path / "e.tar.gz", gzip.compress(archive)[:-5000]), InvalidArgument, "ends too early"),
        (_written(tmp_path / "f.tar", b""), InvalidArgument, "neither an OCI layout"),
        (_written(tmp_path / "g.tar", tar([file("index.json", "{}")])), NotFound, "lists no image"),
        (_written(tmp_path / "h.tar", tar([file("manifest.json", "[3]")])), InvalidArgument, r"\[0\] is not an object"),
        (_written(tmp_path / "i.tar", tar([file("manifest.json", "x")])), InvalidArgument, "is not JSON"),
    ]
    for path, kind, text in cases:
        with pytest.raises(kind, match=text):
            asyncio.run(store.load(path))
    assert store.images() == []


def test_blobs_of_an_archive_are_verified_and_must_be_there(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store()
    for number, which in enumerate(("manifest", "config", "layer")):
        for missing in (False, True):
            layout = busybox_layout(tmp_path / f"{number}{missing}", layers=[[file("x", which)]])
            digests = {
                "manifest": layout.manifest_digest,
                "config": layout.image_id,
                "layer": layout.layer_digests[1],
            }
            blob = layout.blob_path(digests[which])
            data = blob.read_bytes()
            blob.unlink()
            if not missing:
                blob.write_bytes(data.replace(data[-20:-10], b"0123456789"))
            with pytest.raises(NotFound if missing else FailedPrecondition) as failure:
                asyncio.run(store.load(layout.path))
            assert digests[which][7:] in failure.value.message
    assert store.images() == []


def test_a_layout_cannot_read_files_outside_of_it(tmp_path: Path, open_store: OpenStore) -> None:
    secret = _written(tmp_path / "secret", b"{}")
    layout = busybox_layout(tmp_path / "layout")
    (layout.path / "index.json").unlink()
    (layout.path / "index.json").symlink_to(secret)
    with pytest.raises(InvalidArgument, match="neither an OCI layout"):
        asyncio.run(open_store().load(layout.path))


@pytest.mark.parametrize("kind", ["pipe", "directory"])
@pytest.mark.parametrize("which", ["index.json", "layer"])
def test_what_is_no_regular_file_in_a_layout_is_missing(
    which: str, kind: str, tmp_path: Path, open_store: OpenStore
) -> None:
    layout = busybox_layout(tmp_path / "layout")
    hostile = layout.path / "index.json" if which == "index.json" else layout.blob_path(layout.layer_digests[0])
    hostile.unlink()
    make = os.mkfifo if kind == "pipe" else os.mkdir
    make(hostile)
    with pytest.raises(InvalidArgument if which == "index.json" else NotFound):
        asyncio.run(asyncio.wait_for(open_store().load(layout.path), 60))


@pytest.mark.parametrize(("count", "allowed"), [(10, True), (13, False)])
def test_documents_of_all_images_of_an_archive_are_bounded(
    count: int, allowed: bool, tmp_path: Path, open_store: OpenStore
) -> None:
    builder = LayoutBuilder(tmp_path)
    entries = []
    for number in range(count):
        config = {"os": "linux", "history": [{"created_by": f"{number:02}" * 125_000} for _ in range(16)]}
        manifest = {"config": builder.json(config, OCI_CONFIG), "layers": [], "mediaType": OCI_MANIFEST}
        named = {"annotations": {"org.opencontainers.image.ref.name": f"localhost/large:{number}"}}
        entries.append(builder.json(manifest, OCI_MANIFEST) | named)
    (tmp_path / "index.json").write_text(json.dumps({"manifests": entries}))
    store = open_store()
    if allowed:
        assert len(asyncio.run(store.load(tmp_path))) == count
    else:
        with pytest.raises(InvalidArgument, match="together") as caught:
            asyncio.run(store.load(tmp_path))
        assert "several archives" in caught.value.hint
        assert store.images() == []


def test_the_name_in_the_archive_comes_first(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store()
    names = ("zz", "aa")
    archives = [busybox_layout(tmp_path / name, name=f"{name}:1").tar(tmp_path / f"{name}.tar") for name in names]
    for archive, name in zip([*archives, archives[0]], [*names, "zz"], strict=True):
        (image,) = asyncio.run(store.load(archive))
        assert image.repo_tags[0] == f"docker.io/library/{name}:1"
    assert len(image.repo_tags) == 2


def test_the_members_of_an_archive_are_bounded(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store()
    archive = tmp_path / "many.tar.zst"
    archive.write_bytes(compress(tarmaker.entry(b"%08d" % 1) * (archives.MAX_MEMBERS + 1) + tarmaker.END, "zstd"))
    with pytest.raises(InvalidArgument, match="the archive has more than 131072 members, or 16777216 bytes of their"):
        asyncio.run(store.load(archive))
    long = tarmaker.pax({b"path": b"n/" * 2000}) + tarmaker.entry(b"n")
    archive.write_bytes(compress(long * 4200 + tarmaker.END, "zstd"))
    with pytest.raises(InvalidArgument, match="the archive has more than 131072 members, or 16777216 bytes of their"):
        asyncio.run(store.load(archive))
    name = b"blobs/sha256/" + b"0" * 60
    with tempfile.TemporaryFile() as file:
        file.write(b"".join(tarmaker.entry(name + b"%08d" % number) for number in range(100_000)) + tarmaker.END)
        file.flush()
        assert archives.TarFiles(file).size(os.fsdecode(name + b"00099999")) == 0


def test_the_worker_has_bounded_memory(busybox: Layout, open_store: OpenStore) -> None:
    store, before, limits = open_store(), children(), ""

    def look(_step: object) -> None:
        nonlocal limits
        for pid in workers(before):
            limits = limits or Path(f"/proc/{pid}/limits").read_text()

    asyncio.run(store.load(busybox.path, progress=look))
    assert re.search(r"Max data size +2147483648 +2147483648 ", limits)


@pytest.mark.parametrize("link", [b"", b".", b"..", b"/", b"/index.json"])
@pytest.mark.parametrize("kind", [tarmaker.HARDLINK, tarmaker.SYMLINK])
def test_links_of_an_archive_that_lead_nowhere(kind: bytes, link: bytes, tmp_path: Path, open_store: OpenStore) -> None:
    archive = tmp_path / "archive.tar"
    archive.write_bytes(tarmaker.entry(b"index.json", kind, link=link) + tarmaker.END)
    with pytest.raises(
        InvalidArgument, match="no target" if not link else "neither an OCI layout nor a docker archive"
    ):
        asyncio.run(open_store().load(archive))


def test_links_of_an_archive_are_followed(tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar"
    entries = (
        tarmaker.entry(b"d/file", data=b"content"),
        tarmaker.hardlink(b"e/hard", b"./d/file"),
        tarmaker.symlink(b"e/symbolic", b"../e/hard"),
    )
    archive.write_bytes(b"".join(entries) + tarmaker.END)
    with archive.open("rb") as file:
        files = archives.TarFiles(file)
        assert [b"".join(files.pieces(name)) for name in ("d/file", "e/hard", "e/symbolic")] == [b"content"] * 3
