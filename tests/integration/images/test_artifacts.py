"""Artifacts: what of them is mounted, how they are kept, and which are refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import OpenStore, du, layers_bytes, leftovers, require_du

from podkeep.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PodkeepError,
    ResourceExhausted,
    Unimplemented,
)
from podkeep.images.formats.image import Image, PullProgress
from podkeep.images.formats.manifest import node_architecture
from podkeep.images.store.store import ImageStore
from podkeep.kernel.mount import mounts
from support.artifacts import (
    SEED_CONFIG,
    TITLE,
    Artifact,
    Part,
    artifact,
    directory_part,
    file_part,
    index,
    seed,
    tar_part,
)
from support.images import OCI_CONFIG, OCI_LAYER, LayoutBuilder, busybox_layout, digest, directory, file, symlink, tar
from support.mounted import mounted
from support.registry import Answer, HostileRegistry, Registry

BYTES = "application/octet-stream"


@pytest.fixture(params=["directories", "erofs"])
def snapshot_driver(request: pytest.FixtureRequest) -> str:
    """Both ways to keep layers."""
    return str(request.param)


def content(store: ImageStore, image: Image, target: Path) -> dict[str, bytes | None]:
    """Return the files (and directories, None) of an image as they are when it is mounted."""
    with mounted(store, image, target) as top:
        return {
            str(path.relative_to(top)): None if path.is_dir() else path.read_bytes() for path in sorted(top.rglob("*"))
        }


def refused(
    open_store: OpenStore, registry: Registry, wanted: Artifact, kind: type[PodkeepError], **config: Any
) -> str:
    """Pull something that must be refused, and leaves nothing; return the message."""
    name = wanted.push(registry, "refused/it:v1")
    store = open_store(**config)
    with pytest.raises(kind) as failure:
        asyncio.run(store.pull(name))
    assert (store.images(), layers_bytes(store)) == ([], 0)
    return failure.value.message


@pytest.mark.requirement("V53", "V54", "V59")
def test_the_artifact_of_the_kep(tmp_path: Path, registry: Registry, open_store: OpenStore) -> None:
    wanted = seed()
    name = wanted.push(registry, "image:v1")
    store = open_store()
    image = asyncio.run(store.pull(name))
    assert (image.id, image.kind) == (wanted.digest, "artifact")
    assert image.artifact_type == OCI_CONFIG
    assert (image.repo_tags, image.repo_digests) == ((name,), (f"{name[:-3]}@{wanted.digest}",))
    assert content(store, image, tmp_path / "m") == {"dir": None, "dir/file": b"layer0\n", "file": b"layer1\n"}


@pytest.mark.requirement("V56", "V57", "V58", "V64")
def test_every_kind_of_layer(tmp_path: Path, registry: Registry, open_store: OpenStore) -> None:
    qcow2 = b"QFI\xfb\x00\x00\x00\x03" + bytes(range(256)) * 40
    gzipped = tar_part(tar([file("not-unpacked")])).data
    parts = [
        tar_part(tar([directory("a"), file("a/plain", "1"), file("over", "tar 0")]), "none"),
        tar_part(tar([file("gzip", "2"), file("over", "tar 1"), symlink("link", "a/plain")]), "gzip"),
        tar_part(tar([file("zstd", "3")]), "zstd"),
        directory_part("dir", tar([directory("dir"), file("dir/one", "4"), file("dir/two", "5")])),
        file_part("hi.txt", b"hello\n"),
        file_part("disk.qcow2", qcow2, "application/vnd.qemu.qcow2"),
        file_part("nested.tar.gz", gzipped, "application/gzip"),
        file_part("empty", b"", BYTES),
        file_part("over", b"file", BYTES),
        tar_part(tar([file("chart", "6")]), media_type="application/vnd.cncf.helm.chart.content.v1.tar+gzip"),
    ]
    store = open_store()
    image = asyncio.run(store.pull(artifact(parts).push(registry, "kinds:v1")))
    assert image.artifact_type == "application/vnd.example.thing"
    assert content(store, image, tmp_path / "m") == {
        "a": None, "a/plain": b"1", "gzip": b"2", "link": b"1", "zstd": b"3", "dir": None, "dir/one": b"4",
        "dir/two": b"5", "hi.txt": b"hello\n", "disk.qcow2": qcow2, "nested.tar.gz": gzipped, "empty": b"",
        "over": b"file", "chart": b"6",
    }  # fmt: skip
    with mounted(store, image, tmp_path / "m") as top:
        status = (top / "hi.txt").stat()
        assert (status.st_mode, status.st_uid, status.st_gid, status.st_mtime) == (0o100644, 0, 0, 0)
        assert (top.stat().st_mode & 0o7777, top.stat().st_uid) == (0o755, 0)


@pytest.mark.requirement("V57")
def test_what_oras_calls_an_oci_layer_is_looked_at(tmp_path: Path, registry: Registry, open_store: OpenStore) -> None:
    archive = tar([file("inside", "1")])
    parts = [file_part("hi.txt", b"hello\n"), file_part("a.tar", archive), file_part("short", b"x" * 511)]
    parts += [file_part("long", b"y" * 300_000), file_part("zeros", bytes(2048))]
    store = open_store()
    image = asyncio.run(store.pull(artifact(parts).push(registry, "default/type:v1")))
    expected = {"hi.txt": b"hello\n", "inside": b"1", "short": b"x" * 511, "long": b"y" * 300_000, "zeros": bytes(2048)}
    assert content(store, image, tmp_path / "m") == expected
    # Once more under other names: all of it is here, whatever it turned out to be.
    others = [Part(data=part.data, media_type=OCI_LAYER, annotations={TITLE: f"{n}"}) for n, part in enumerate(parts)]
    again = artifact(others).push(registry, "default/again:v1")
    steps: list[PullProgress] = []
    image = asyncio.run(store.pull(again, progress=steps.append))
    assert {step.phase for step in steps if step.digest} == {"exists"}
    assert set(content(store, image, tmp_path / "m")) == {"0", "inside", "2", "3", "4"}


def test_what_a_blob_was_before_does_not_say_what_it_is(
    tmp_path: Path, root: Path, registry: Registry, open_store: OpenStore
) -> None:
    archive, text = tar([file("inside", b"1" * 100_000)]), b"t" * 100_000
    store = open_store()

    def pulled(*parts: Part) -> dict[str, bytes | None]:
        image = asyncio.run(store.pull(artifact(parts).push(registry, "history:v1")))
        return content(store, image, tmp_path / "m")

    assert pulled(file_part("a", archive, BYTES), file_part("b", text, BYTES)) == {"a": archive, "b": text}
    assert pulled(file_part("a", archive), file_part("b", text)) == {"inside": b"1" * 100_000, "b": text}
    assert pulled(file_part("c", archive), file_part("d", text)) == {"inside": b"1" * 100_000, "d": text}
    assert pulled(tar_part(archive, "none")) == {"inside": b"1" * 100_000}
    assert pulled(file_part("e", archive, BYTES), file_part("f", text, BYTES)) == {"e": archive, "f": text}
    evil = artifact([Part(data=text, media_type=OCI_LAYER)]).push(registry, "history:evil")
    with pytest.raises(InvalidArgument):
        asyncio.run(store.pull(evil))
    gzip = artifact([Part(data=archive, media_type=f"{OCI_LAYER}+gzip")]).push(registry, "history:gzip")
    with pytest.raises(InvalidArgument):
        asyncio.run(store.pull(gzip))


def test_layers_of_both_drivers_make_one_volume(
    tmp_path: Path, root: Path, registry: Registry, snapshot_driver: str, open_store: OpenStore
) -> None:
    other = {"directories": "erofs", "erofs": "directories"}[snapshot_driver]
    old = [
        tar_part(tar([file("a", "old"), file("b", "old"), directory("d"), file("d/x")])),
        file_part("c", b"c", BYTES),
    ]
    new = [tar_part(tar([file("a", "new"), file("d/.wh.x")])), file_part("copy", b"c", BYTES)]
    store = open_store()
    first = asyncio.run(store.pull(artifact(old).push(registry, "mixed:old")))
    store.close()
    store = open_store(snapshot_driver=other)
    image = asyncio.run(store.pull(artifact([*old, *new]).push(registry, "mixed:new")))
    expected = {"a": b"new", "b": b"old", "c": b"c", "copy": b"c", "d": None}
    assert content(store, image, tmp_path / "m") == expected
    assert {store.records()[1][layer].driver for layer in image.layers} == {snapshot_driver, other}
    require_du(store, root)
    store.remove(first.id)
    store.close()
    store = open_store()
    assert content(store, image, tmp_path / "m") == expected
    store.remove(image.id)
    assert layers_bytes(store) == 0


def test_two_pulls_of_one_blob_at_the_same_time_keep_it_once(
    tmp_path: Path, root: Path, registry: Registry, open_store: OpenStore
) -> None:
    big = os.urandom(2 << 20)
    names = [artifact([file_part(f"f{n}", big, BYTES)]).push(registry, f"same/time:v{n}") for n in range(3)]
    store = open_store()
    before = du(root)[0]

    async def pull_all() -> list[Image]:
        return await asyncio.gather(*(store.pull(name) for name in names))

    for number, image in enumerate(asyncio.run(pull_all())):
        assert content(store, image, tmp_path / "m") == {f"f{number}": big}
    assert du(root)[0] - before < len(big) + 500_000
    require_du(store, root)


@pytest.mark.requirement("V54", "V55")
def test_layers_are_merged_in_order_and_whiteouts_hide(
    tmp_path: Path, registry: Registry, open_store: OpenStore
) -> None:
    parts = [
        file_part("model", b"old", BYTES),
        tar_part(tar([file("a", "0"), file("b", "0"), directory("d"), file("d/x", "0"), file("d/y", "0")])),
        tar_part(tar([file("a", "1"), file(".wh.b"), directory("d"), file("d/.wh.x"), file(".wh.model")])),
        file_part("b", b"2", BYTES),
    ]
    store = open_store()
    image = asyncio.run(store.pull(artifact(parts).push(registry, "merged:v1")))
    assert content(store, image, tmp_path / "m") == {"a": b"1", "b": b"2", "d": None, "d/y": b"0"}


@pytest.mark.requirement("V68")
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"config": b"{}", "config_type": OCI_CONFIG, "artifact_type": ""},
        {"config": SEED_CONFIG, "config_type": OCI_CONFIG, "artifact_type": ""},
        {"config": b"\x00 no JSON", "config_type": "application/vnd.example.config", "artifact_type": ""},
        {"config_more": {"data": "e30="}},
        {"config": b'{"a":1}', "config_type": "x/y", "config_more": {"data": "eyJhIjoxfQ=="}},
        {"more": {"subject": {"mediaType": "x/y", "digest": "sha256:" + "0" * 64, "size": 1}}},
    ],
    ids=["empty", "bare", "platform", "bytes", "inline empty", "inline", "subject"],
)
def test_configurations_of_artifacts(
    given: dict[str, Any], tmp_path: Path, registry: Registry, open_store: OpenStore
) -> None:
    wanted = artifact([file_part("a", b"1", BYTES)], **given)
    store = open_store()
    image = asyncio.run(store.pull(wanted.push(registry, "configurations:v1")))
    assert (image.id, image.kind) == (wanted.digest, "artifact")
    assert content(store, image, tmp_path / "m") == {"a": b"1"}
    store.close()
    assert open_store().find(wanted.digest) == image


def test_a_configuration_that_is_known_is_not_asked_for(tmp_path: Path, open_store: OpenStore) -> None:
    inline = artifact([], config=b'{"a":1}', config_type="x/y", config_more={"data": "eyJhIjoxfQ=="})
    for wanted in (artifact([]), inline):
        with _serving(wanted, {}) as registry:
            store = open_store(registry.host)
            image = asyncio.run(store.pull(f"{registry.host}/app:v1"))
            store.close()
            assert image.id == wanted.digest
            assert [path for path, _ in registry.requests if "/blobs/" in path] == []


def test_an_inline_configuration_is_verified(open_store: OpenStore) -> None:
    wrong = artifact([], config=b'{"a":1}', config_type="x/y", config_more={"data": "eyJhIjoyfQ=="})
    with _serving(wrong, {}) as registry, pytest.raises(FailedPrecondition, match="configuration: expected digest"):
        asyncio.run(open_store(registry.host).pull(f"{registry.host}/app:v1"))


@contextmanager
def _serving(wanted: Artifact, more: dict[str, bytes]) -> Iterator[HostileRegistry]:
    """Serve a manifest for every tag, and blobs."""

    def decide(path: str, _headers: object) -> Answer:
        target = path.rpartition("/")[2]
        if "/manifests/" in path:
            return Answer(body=wanted.manifest, headers={"Content-Type": wanted.media_type})
        found = (dict(wanted.blobs) | more).get(target)
        return Answer(status=404) if found is None else Answer(body=found)

    with HostileRegistry(None, decide) as registry:
        yield registry


@pytest.mark.requirement("V67")
def test_an_artifact_without_files_is_an_empty_directory(
    tmp_path: Path, registry: Registry, open_store: OpenStore
) -> None:
    empty = Part(data=b"{}", media_type="application/vnd.oci.empty.v1+json")
    store = open_store()
    for number, parts in enumerate(([], [empty])):
        image = asyncio.run(store.pull(artifact(parts).push(registry, f"nothing:v{number}")))
        assert (image.layers, content(store, image, tmp_path / "m")) == ((), {})


@pytest.mark.requirement("V67")
def test_artifacts_are_listed_found_and_removed_as_images_are(
    tmp_path: Path, root: Path, registry: Registry, open_store: OpenStore
) -> None:
    store = open_store()
    before = du(root)[1]
    shared = file_part("shared", b"s" * 10_000, BYTES)
    first = artifact([shared, tar_part(tar([file("a")]))])
    second = artifact([shared, file_part("b", b"b", BYTES)])
    names = [first.push(registry, "list/a:v1"), second.push(registry, "list/b:v1"), first.push(registry, "list/a:v2")]
    images = [asyncio.run(store.pull(name)) for name in names]
    assert images[0].id == images[2].id == first.digest
    assert images[2].repo_tags == (names[2], names[0])
    assert images[0].layers[0] == images[1].layers[0]
    for text in (names[0], first.digest, first.digest[7:20], f"{names[0][:-3]}@{first.digest}"):
        found = store.find(text)
        assert found is not None
        assert found.id == first.digest
    store.remove(names[2])
    assert len(store.images()) == 2
    store.remove(names[0])
    assert [image.id for image in store.images()] == [second.digest]
    assert content(store, store.images()[0], tmp_path / "m") == {"shared": b"s" * 10_000, "b": b"b"}
    store.remove(second.digest)
    assert store.images() == []
    assert du(root)[1] == before


@pytest.mark.requirement("V70")
def test_a_blob_is_stored_once_whatever_its_names(
    tmp_path: Path, root: Path, registry: Registry, open_store: OpenStore
) -> None:
    big = os.urandom(3 << 20)
    store = open_store()
    before = du(root)
    twice = artifact([file_part("one", big, BYTES), file_part("two", big, BYTES), file_part("two.txt", b"2", BYTES)])
    image = asyncio.run(store.pull(twice.push(registry, "once/twice:v1")))
    assert content(store, image, tmp_path / "m") == {"one": big, "two": big, "two.txt": b"2"}
    once = du(root)[0]
    assert len(big) <= once - before[0] < len(big) + 300_000
    assert image.size < len(big) + 100_000
    # Under a third name, in another artifact, from a registry that does not have the blob at all.
    third = artifact([file_part("three", big, BYTES)])
    with _serving(Artifact(manifest=third.manifest, blobs={}), {}) as other:
        store.close()
        store = open_store(other.host)
        steps: list[PullProgress] = []
        image = asyncio.run(store.pull(f"{other.host}/third:v1", progress=steps.append))
        assert [path for path, _ in other.requests if "/blobs/" in path] == []
    assert [step.phase for step in steps if step.digest] == ["exists"]
    assert du(root)[0] - once < 300_000
    require_du(store, root)
    # The content stays with the last who has it.
    store.remove(twice.digest)
    assert content(store, image, tmp_path / "m") == {"three": big}
    require_du(store, root)
    store.remove(third.digest)
    assert layers_bytes(store) == 0


@pytest.mark.requirement("V67", "V70")
def test_layers_are_shared_between_images_and_artifacts(
    tmp_path: Path, registry: Registry, open_store: OpenStore
) -> None:
    layout = busybox_layout(tmp_path / "layout", layers=[[file("etc/motd", "m")]])
    store = open_store()
    image = asyncio.run(store.pull(registry.push(layout, "shared/image:v1")))
    document = json.loads(layout.blob(layout.manifest_digest))
    parts = [Part(data=layout.blob(layer["digest"]), media_type=layer["mediaType"]) for layer in document["layers"]]
    wanted = artifact(parts)
    steps: list[PullProgress] = []
    found = asyncio.run(store.pull(wanted.push(registry, "shared/artifact:v1"), progress=steps.append))
    assert (found.kind, found.layers) == ("artifact", image.layers)
    assert {step.phase for step in steps if step.digest} == {"exists"}


@pytest.mark.requirement("V70")
def test_a_directory_of_oras_that_is_here_is_not_fetched_again(registry: Registry, open_store: OpenStore) -> None:
    plain = tar([directory("d"), file("d/a", "1")])
    store = open_store()
    asyncio.run(store.pull(artifact([tar_part(plain, "zstd")]).push(registry, "oras/tar:v1")))
    steps: list[PullProgress] = []
    image = asyncio.run(
        store.pull(artifact([directory_part("d", plain)]).push(registry, "oras/dir:v1"), progress=steps.append)
    )
    assert image.layers == (digest(plain),)
    assert [step.phase for step in steps if step.digest] == ["exists"]


def test_the_digest_that_oras_gives_a_directory_is_compared(registry: Registry, open_store: OpenStore) -> None:
    right = directory_part("d", tar([file("d/a")]))
    lie = directory_part("d", tar([file("d/b")]))
    wrong = Part(data=right.data, media_type=right.media_type, annotations=lie.annotations)
    store = open_store()
    with pytest.raises(FailedPrecondition, match="expected diff ID"):
        asyncio.run(store.pull(artifact([wrong]).push(registry, "oras/lie:v1")))
    assert store.images() == []


@pytest.mark.requirement("V65")
def test_an_index_is_resolved_by_architecture_only(tmp_path: Path, registry: Registry, open_store: OpenStore) -> None:
    mine, other, anything = (
        artifact([file_part("which", which.encode(), BYTES)]) for which in ("mine", "other", "any")
    )
    for wanted in (mine, other, anything):
        wanted.push(registry, "index", by_digest=True)
    entries = [
        anything.descriptor(artifactType="application/vnd.example.thing"),
        other.descriptor(platform={"os": "linux", "architecture": "sparc"}),
        mine.descriptor(platform={"os": "linux", "architecture": node_architecture()}),
    ]
    store = open_store()
    image = asyncio.run(store.pull(index(entries).push(registry, "index:all")))
    assert image.id == mine.digest
    assert image.repo_digests == (f"{registry.host}/index@{index(entries).digest}",)
    image = asyncio.run(store.pull(index(entries[:2]).push(registry, "index:any")))
    assert content(store, image, tmp_path / "m") == {"which": b"any"}
    with pytest.raises(NotFound, match=f"no image for linux/{node_architecture()}; there is linux/sparc"):
        asyncio.run(store.pull(index(entries[1:2]).push(registry, "index:none")))


@pytest.mark.requirement("V60", "V71")
@pytest.mark.parametrize(
    ("title", "why"),
    [
        *((title, "layers[1]: its title") for title in ("..", "../x", "/etc/passwd", ".wh.a")),
        ("a\0b", "layers[1]: annotations['org.opencontainers.image.title'] has the character '\\x00'"),
        ("\udc80", "is not JSON in UTF-8"),
    ],
)
def test_a_title_that_is_no_name_of_a_file(title: str, why: str, registry: Registry, open_store: OpenStore) -> None:
    parts = [file_part("fine", b"fine", BYTES), file_part(title, b"evil", BYTES)]
    message = refused(open_store, registry, artifact(parts), InvalidArgument)
    assert why in message
    assert len(message) < 400


@pytest.mark.requirement("V60")
def test_two_files_of_one_name(registry: Registry, open_store: OpenStore) -> None:
    parts = [file_part("a", b"1", BYTES), file_part("b", b"2", BYTES), file_part("a", b"3")]
    assert "two of its layers have the title 'a'" in refused(open_store, registry, artifact(parts), InvalidArgument)


@pytest.mark.requirement("V60")
def test_names_that_only_look_dangerous_are_files(tmp_path: Path, registry: Registry, open_store: OpenStore) -> None:
    titles = ["...", "-rf", "CON", "null", "a\\b", "~", "$(x)", " ", "x" * 255, "ü", "sda", "wh.x"]
    store = open_store()
    parts = [file_part(title, title.encode(), BYTES) for title in titles]
    image = asyncio.run(store.pull(artifact(parts).push(registry, "odd:v1")))
    assert content(store, image, tmp_path / "m") == {title: title.encode() for title in titles}


@pytest.mark.requirement("V63")
def test_a_type_that_is_not_known_fails_clearly(registry: Registry, open_store: OpenStore) -> None:
    parts = [tar_part(tar([file("a")])), Part(data=b"?", media_type="application/vnd.acme.blob")]
    message = refused(open_store, registry, artifact(parts), Unimplemented)
    assert "layers[1]: its type 'application/vnd.acme.blob' is no archive" in message


@pytest.mark.requirement("V63", "V69")
def test_policy_is_configured(tmp_path: Path, registry: Registry, open_store: OpenStore) -> None:
    acme = tar_part(tar([file("inside", "1")]), title="acme.tgz", media_type="application/vnd.acme.layer")
    wanted = artifact([acme], artifact_type="application/vnd.acme.thing")
    name = wanted.push(registry, "policy:v1")
    for config, expected in (
        ({}, {"acme.tgz": acme.data}),
        ({"media_types": {"application/vnd.acme.*": "tar+gzip"}}, {"inside": b"1"}),
        ({"artifact_types": {"application/vnd.acme.*": "allow", "*": "deny"}}, {"acme.tgz": acme.data}),
    ):
        store = open_store(**config)
        image = asyncio.run(store.pull(name))
        assert content(store, image, tmp_path / "m") == expected
        store.remove(image.id)
        store.close()
    tgz = artifact([tar_part(tar([file("inside")]), title="l.tgz")], artifact_type="application/vnd.acme.raw")
    store = open_store(artifact_types={"application/vnd.acme.raw": "files"})
    image = asyncio.run(store.pull(tgz.push(registry, "policy:raw")))
    assert list(content(store, image, tmp_path / "m")) == ["l.tgz"]


@pytest.mark.requirement("V63", "V69", "V71")
@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"media_types": {"*": "deny"}}, "layers[0]: layers of type 'application/vnd.acme.layer' are not allowed"),
        ({"artifact_types": {"*acme*": "deny"}}, "artifacts of type 'application/vnd.acme.thing' are not allowed"),
        ({"media_types": {"*": "tar+zstd"}}, "zstd stream is damaged"),
    ],
)
def test_policy_refuses(config: dict[str, Any], told: str, registry: Registry, open_store: OpenStore) -> None:
    acme = tar_part(tar([file("inside", "1")]), title="acme.tgz", media_type="application/vnd.acme.layer")
    wanted = artifact([acme], artifact_type="application/vnd.acme.thing")
    assert told in refused(open_store, registry, wanted, PodkeepError, **config)


def test_an_image_that_is_here_keeps_its_layers_when_the_policy_changes(
    tmp_path: Path, root: Path, registry: Registry, open_store: OpenStore
) -> None:
    name = artifact([tar_part(tar([file("a", "1")]), title="l.tgz")]).push(registry, "policy/kept:v1")
    store = open_store()
    image = asyncio.run(store.pull(name))
    before = du(root)[1]
    store.close()
    store = open_store(media_types={"*": "file"})
    again = asyncio.run(store.pull(name))
    assert again.layers == image.layers
    assert du(root)[1] == before
    assert content(store, again, tmp_path / "m") == {"a": b"1"}


@pytest.mark.requirement("V71")
def test_hostile_archives_in_artifacts(registry: Registry, open_store: OpenStore) -> None:
    evil = [tar_part(tar([file("../x")])), tar_part(tar([symlink("l", "/../../etc"), file("l/../../x")]))]
    evil.append(Part(data=b"no gzip", media_type=f"{OCI_LAYER}+gzip"))
    store = open_store()
    for number, part in enumerate(evil):
        with pytest.raises(InvalidArgument, match=digest(part.data)):
            asyncio.run(store.pull(artifact([part]).push(registry, f"evil:v{number}")))
    assert (store.images(), layers_bytes(store)) == ([], 0)


@pytest.mark.requirement("V71")
@pytest.mark.parametrize("size", [0, 10, 5000])
def test_a_file_that_is_not_what_the_manifest_says(size: int, open_store: OpenStore) -> None:
    wanted = artifact([file_part("a", b"a" * 3000, BYTES)])
    with _serving(Artifact(manifest=wanted.manifest, blobs={}), {digest(b"a" * 3000): b"b" * size}) as registry:
        store = open_store(registry.host)
        with pytest.raises(PodkeepError):
            asyncio.run(store.pull(f"{registry.host}/lies:v1"))
        assert (store.images(), layers_bytes(store)) == ([], 0)


@pytest.mark.parametrize("archive", [False, True], ids=["file", "archive"])
def test_a_full_disk_is_no_fault_of_the_artifact(
    archive: bool, tmp_path: Path, root: Path, registry: Registry, open_store: OpenStore
) -> None:
    data = os.urandom(20 << 20)
    part = tar_part(tar([file("a", data)]), "none") if archive else file_part("a", data, BYTES)
    name = artifact([part]).push(registry, f"full:v{archive:d}")
    root.mkdir()
    # Not a tmpfs: EROFS images on one cannot be mounted.
    subprocess.run(["mkfs.ext4", "-q", tmp_path / "disk", "16m"], check=True)
    subprocess.run(["mount", "-o", "loop", tmp_path / "disk", root], check=True)
    try:
        store = open_store()
        with pytest.raises(ResourceExhausted, match="No space left on device"):
            asyncio.run(store.pull(name))
        assert (store.images(), layers_bytes(store), leftovers(root)) == ([], 0, [])
        store.close()
    finally:
        mounts.unmount(root)


def test_files_have_the_limits_of_layers(registry: Registry, open_store: OpenStore) -> None:
    name = artifact([file_part("a", b"a" * 3000, BYTES)]).push(registry, "limits:v1")
    store = open_store(max_layer_bytes=2999)
    with pytest.raises(InvalidArgument, match=r"more than 2999 bytes .*\(images.max_layer_bytes\)"):
        asyncio.run(store.pull(name))
    assert layers_bytes(store) == 0


@pytest.mark.requirement("V71")
def test_manifests_have_bounds(open_store: OpenStore) -> None:
    many = artifact([file_part(f"f{number}", str(number).encode(), BYTES) for number in range(10_000)])
    huge = artifact([file_part("a", b"a", BYTES)], more={"annotations": {"a": "x" * (5 << 20)}})
    config = artifact([], config=b"x" * (9 << 20), config_type="x/y")
    for wanted, said in ((many, "10000 layers, more than 500"), (huge, "4194304 bytes"), (config, "9437184 bytes")):
        with _serving(wanted, {}) as registry:
            store = open_store(registry.host)
            with pytest.raises(PodkeepError, match=said):
                asyncio.run(store.pull(f"{registry.host}/bounds:v1"))
            assert layers_bytes(store) == 0
            assert [path for path, _ in registry.requests if "/blobs/" in path] == []
            store.close()


def test_five_hundred_files_are_one_directory(tmp_path: Path, registry: Registry, open_store: OpenStore) -> None:
    parts = [file_part(f"f{number}", str(number).encode(), BYTES) for number in range(400)]
    with _serving(artifact(parts), {}) as served:
        store = open_store(served.host)
        image = asyncio.run(store.pull(f"{served.host}/many:v1"))
        assert len(content(store, image, tmp_path / "m")) == 400


def _loaded_layout(wanted: Artifact, tmp_path: Path) -> Path:
    return wanted.layout(tmp_path / "layout", "thing:v1")


def _loaded_tar(wanted: Artifact, tmp_path: Path) -> Path:
    layout = _loaded_layout(wanted, tmp_path)
    subprocess.run(["tar", "-C", layout, "-cf", tmp_path / "a.tar", "."], check=True)
    return tmp_path / "a.tar"


def _loaded_skopeo(wanted: Artifact, tmp_path: Path) -> Path:
    layout = _loaded_layout(wanted, tmp_path)
    target = tmp_path / "copied"
    subprocess.run(["skopeo", "copy", "-q", f"oci:{layout}:thing:v1", f"oci:{target}:thing:v1"], check=True)
    return target


@pytest.mark.requirement("V67", "V70")
@pytest.mark.parametrize("archive", [_loaded_layout, _loaded_tar, _loaded_skopeo])
def test_an_artifact_is_loaded_from_a_layout(
    archive: Callable[[Artifact, Path], Path], tmp_path: Path, registry: Registry, open_store: OpenStore
) -> None:
    parts = [tar_part(tar([file("a", "1")])), file_part("b", b"2", BYTES), file_part("c", b"3")]
    wanted = artifact(parts)
    store = open_store()
    (image,) = asyncio.run(store.load(archive(wanted, tmp_path)))
    assert (image.id, image.kind) == (wanted.digest, "artifact")
    assert image.repo_tags == ("docker.io/library/thing:v1",)
    assert content(store, image, tmp_path / "m") == {"a": b"1", "b": b"2", "c": b"3"}
    steps: list[PullProgress] = []
    pulled = asyncio.run(store.pull(wanted.push(registry, "loaded:v1"), progress=steps.append))
    assert pulled.layers == image.layers
    assert {step.phase for step in steps if step.digest} == {"exists"}


def test_what_skopeo_copies_from_a_registry_is_loaded(
    tmp_path: Path, registry: Registry, open_store: OpenStore
) -> None:
    name = seed().push(registry, "skopeo:v1")
    target = tmp_path / "copied"
    command = ["skopeo", "copy", "-q", "--src-tls-verify=false", f"docker://{name}", f"oci:{target}:seed:v1"]
    subprocess.run(command, check=True)
    store = open_store()
    (image,) = asyncio.run(store.load(target))
    assert image.id == seed().digest
    assert content(store, image, tmp_path / "m") == {"dir": None, "dir/file": b"layer0\n", "file": b"layer1\n"}


def test_a_title_in_a_layout_is_checked_as_well(tmp_path: Path, open_store: OpenStore) -> None:
    layout = artifact([file_part("../x", b"", BYTES)]).layout(tmp_path / "layout")
    store = open_store()
    with pytest.raises(InvalidArgument, match=r"layers\[0\]: its title '../x' has a '/'"):
        asyncio.run(store.load(layout))
    assert layers_bytes(store) == 0


def test_a_store_that_is_opened_again_has_what_it_had(
    tmp_path: Path, root: Path, registry: Registry, open_store: OpenStore
) -> None:
    parts = [tar_part(tar([file("a", "1")])), file_part("b", b"2", BYTES), file_part("c", b"2", BYTES)]
    store = open_store()
    image = asyncio.run(store.pull(artifact(parts).push(registry, "reopened:v1")))
    assert image.pulled_at > 0
    store.close()
    store = open_store()
    assert store.images() == [image]
    assert content(store, image, tmp_path / "m") == {"a": b"1", "b": b"2", "c": b"2"}
    require_du(store, root)


OWNER = Path(__file__).with_name("programs") / "image_owner.py"


@pytest.mark.parametrize("point", ["images-before-commit", "images-before-record"])
def test_an_owner_killed_while_it_takes_an_artifact_leaves_nothing(
    point: str, tmp_path: Path, root: Path, registry: Registry, snapshot_driver: str, open_store: OpenStore
) -> None:
    data = os.urandom(100_000)
    parts = [file_part("one", data, BYTES), file_part("two", data, BYTES), tar_part(tar([file("a")]))]
    name = artifact(parts).push(registry, "killed:v1")
    store = open_store()
    asyncio.run(store.pull(artifact(parts[:1]).push(registry, "killed:first")))
    before = len(list(root.glob("*/sha256-*")))
    store.close()
    command = [sys.executable, OWNER, root, tmp_path / "mounted", snapshot_driver, name, "ends"]
    environment = os.environ | {"PODKEEP_FAILPOINTS": f"{point}=kill"}
    assert subprocess.run(command, env=environment, check=False, timeout=60).returncode == -signal.SIGKILL
    store = open_store()
    assert leftovers(root) == []
    assert len(list(root.glob("*/sha256-*"))) == before
    image = asyncio.run(store.pull(name))
    assert content(store, image, tmp_path / "m") == {"one": data, "two": data, "a": b""}
    require_du(store, root)


def test_images_that_say_they_are_artifacts_are(tmp_path: Path, open_store: OpenStore) -> None:
    builder = LayoutBuilder(tmp_path / "layout")
    top = builder.image([tar([file("a", "1")])])
    document = json.loads((builder.path / "blobs/sha256" / top["digest"][7:]).read_bytes())
    typed = builder.json(document | {"artifactType": "application/vnd.acme.thing"}, document["mediaType"])
    (builder.path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [typed]}))
    store = open_store()
    (image,) = asyncio.run(store.load(builder.path))
    assert (image.kind, image.id) == ("artifact", typed["digest"])
    assert content(store, image, tmp_path / "m") == {"a": b"1"}
