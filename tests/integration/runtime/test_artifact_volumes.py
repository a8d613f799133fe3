"""Artifacts over CRI: they are images for the image service and volumes for containers, and no root file systems."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_image_volumes import FAILED, images, mounted_at, volume

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from support.artifacts import Artifact, artifact, directory_part, file_part, seed, tar_part
from support.cri import BLOCK, OTHER_BLOCK, Pods, Triple, error_of, mappings, namespaces, pod
from support.daemon import Daemon
from support.images import OCI_CONFIG, directory, file, tar
from support.mortal import Mortal
from support.registry import Registry

MIB = 1 << 20
BYTES = "application/octet-stream"
QCOW2 = b"QFI\xfb\x00\x00\x00\x03" + bytes(range(256))
TREE = tar([directory("conf"), file("conf/a", "a"), file("owned", "o", 0o640, uid=1000, gid=1000)])
THING = artifact(
    [tar_part(TREE), directory_part("dir", tar([directory("dir"), file("dir/file", "in dir")])),
     file_part("disk.qcow2", QCOW2, BYTES), file_part("hi.txt", b"hello"), file_part("run.sh", b"#!/bin/sh\n", BYTES)]
)  # fmt: skip


@pytest.fixture
def thing(pods: Pods, registry: Registry) -> Iterator[str]:
    """An artifact of every kind of layer, pulled; afterwards it can be removed, and is."""
    yield from _pulled(pods, THING, registry, "artifact/thing:v1")


@pytest.fixture
def kep(pods: Pods, registry: Registry) -> Iterator[str]:
    """The artifact of KEP-4639's example, pulled."""
    yield from _pulled(pods, seed(), registry, "artifact/image:v1")


def _pulled(pods: Pods, wanted: Artifact, registry: Registry, name: str) -> Iterator[str]:
    reference = wanted.push(registry, name)
    assert pods.pull(reference) == wanted.digest
    yield reference
    for sandbox in pods.sandboxes():
        pods.remove(sandbox.id)
    pods.remove_image(reference)
    assert wanted.digest not in images(pods)


def _status(pods: Pods, reference: str, *, verbose: bool = False) -> api.ImageStatusResponse:
    request = api.ImageStatusRequest(image=api.ImageSpec(image=reference), verbose=verbose)
    response: api.ImageStatusResponse = pods.call("ImageStatus", request, service="images")
    return response


@pytest.mark.requirement("V53", "V54", "V59")
def test_the_artifact_of_the_kep_is_mounted(pods: Pods, kep: str) -> None:
    container = pods.launch(pods.run(), mounts=[volume(kep)])
    assert pods.read(container, "cd /volume; find . -type f | sort; cat dir/file file") == (
        "./dir/file\n./file\nlayer0\nlayer1"
    )


@pytest.mark.requirement("V53", "V57", "V58", "V64")
@pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])
def test_content_of_an_artifact_is_mounted(pods: Pods, thing: str, user: Triple | None) -> None:
    container = pods.launch(pods.run(pod(options=namespaces(user=user))), mounts=[volume(thing)])
    names = "./conf ./conf/a ./dir ./dir/file ./disk.qcow2 ./hi.txt ./owned ./run.sh"
    assert pods.read(container, "cd /volume; find . -mindepth 1 | sort").split() == names.split()
    assert pods.read(container, "cd /volume; cat conf/a dir/file hi.txt") == "ain dirhello"
    assert pods.exec(container, "cat", "/volume/disk.qcow2").stdout == QCOW2
    assert pods.read(container, "stat -c '%u %g %a' /volume /volume/owned /volume/hi.txt").split("\n") == [
        "0 0 755", "1000 1000 640", "0 0 644",
    ]  # fmt: skip
    entry = mounted_at(pods, container, "/volume")
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(entry.options)
    assert pods.exec(container, "touch", "/volume/new").exit_code != 0


@pytest.mark.requirement("V36", "V109")
def test_sub_paths_of_artifacts(pods: Pods, daemon: Daemon, thing: str) -> None:
    sandbox = pods.run()
    container = pods.launch(sandbox, mounts=[volume(thing, sub_path="dir")])
    assert pods.read(container, "ls /volume; cat /volume/file") == "file\nin dir"
    before = len(daemon.resources().mounts)
    for sub_path in ("hi.txt", "missing"):
        wanted = [volume(thing, sub_path=sub_path)]
        message = error_of(lambda: pods.create(sandbox, name="x", mounts=wanted), InvalidArgument)  # noqa: B023
        assert message.startswith(FAILED)
    assert len(daemon.resources().mounts) == before


@pytest.mark.requirement("V49")
def test_status_of_a_container_names_the_artifact(pods: Pods, thing: str) -> None:
    repository = thing.rpartition(":")[0]
    for asked in (thing, THING.digest, f"{repository}@{THING.digest}"):
        mount = api.Mount(container_path="/volume", readonly=True, image=api.ImageSpec(image=asked))
        container = pods.create(pods.run(), mounts=[mount])
        (echoed,) = pods.status(container).mounts
        assert (echoed.image.image, echoed.image.image_ref) == (THING.digest, THING.digest)
        pods.remove_container(container)


@pytest.mark.requirement("V68")
def test_an_artifact_is_no_root_file_system(pods: Pods, daemon: Daemon, thing: str, kep: str) -> None:
    sandbox = pods.run()
    before = daemon.resources()
    for reference, said in ((thing, "application/vnd.example.thing"), (kep, OCI_CONFIG)):
        message = error_of(lambda: pods.create(sandbox, image=reference), FailedPrecondition)  # noqa: B023
        assert message.startswith(
            f"{reference!r} is an artifact of type {said!r}, and no image that containers can run"
        )
        assert "image volume" in message
    assert pods.containers() == []
    assert daemon.resources() == before


@pytest.mark.requirement("V67")
def test_the_image_service_shows_artifacts(pods: Pods, thing: str) -> None:
    status = _status(pods, thing, verbose=True)
    image = status.image
    assert (image.id, list(image.repo_tags)) == (THING.digest, [thing])
    assert list(image.repo_digests) == [f"{thing.rpartition(':')[0]}@{THING.digest}"]
    assert image.size >= len(TREE)
    assert not image.pinned
    info, layers = json.loads(status.info["info"]), json.loads(status.info["layers"])
    assert (info["kind"], info["artifact_type"]) == ("artifact", "application/vnd.example.thing")
    assert [layer["id"] for layer in layers] == info["layers"]
    assert [(layer["kind"], layer["title"]) for layer in layers] == [
        ("tar", ""), ("tar", ""), ("file", "disk.qcow2"), ("file", "hi.txt"), ("file", "run.sh"),
    ]  # fmt: skip
    (listed,) = [found for found in pods.call("ListImages", api.ListImagesRequest(), service="images").images
                 if found.id == THING.digest]  # fmt: skip
    assert listed == image


@pytest.mark.requirement("V46", "V67")
def test_an_artifact_in_use_is_not_removed(pods: Pods, thing: str) -> None:
    container = pods.launch(pods.run(), mounts=[volume(thing)])
    message = error_of(lambda: pods.remove_image(thing), FailedPrecondition)
    assert container in message
    pods.remove_container(container)
    pods.remove_image(thing)
    assert THING.digest not in images(pods)
    assert not _status(pods, thing).HasField("image")


def _du(path: Path) -> int:
    """Return the bytes that a tree takes on its own file system."""
    said = subprocess.run(["du", "-xs", "--block-size=1", path], check=True, capture_output=True, text=True).stdout
    return int(said.split()[0])


@pytest.mark.requirement("V67", "V70")
def test_image_fs_info_is_what_du_says(pods: Pods, daemon: Daemon, thing: str) -> None:
    (usage,) = pods.call("ImageFsInfo", api.ImageFsInfoRequest(), service="images").image_filesystems
    assert Path(usage.fs_id.mountpoint) == daemon.layout.images
    found = list(daemon.layout.images.rglob("*"))
    # Layers are measured when they are kept. When ext4 writes out a large file it may add a block for its extents.
    large = sum(1 for path in found if path.lstat().st_size >= MIB)
    assert 0 <= _du(daemon.layout.images) - usage.used_bytes.value <= max(large, 4) * 4096
    assert usage.inodes_used.value == len(found) + 1


@pytest.mark.requirement("V85")
def test_an_artifact_counts_for_the_file_system_of_images(pods: Pods, registry: Registry) -> None:
    """By which an agent judges pressure of its disk: its bytes are there when it is, and gone when it is."""

    def used() -> int:
        (usage,) = pods.call("ImageFsInfo", api.ImageFsInfoRequest(), service="images").image_filesystems
        return int(usage.used_bytes.value)

    before = used()
    bulk = artifact([file_part("bulk", os.urandom(3 * MIB), BYTES)])
    reference = bulk.push(registry, "artifact/bulk:v1")
    assert pods.pull(reference) == bulk.digest
    assert 3 * MIB <= used() - before < 3 * MIB + MIB
    pods.remove_image(reference)
    assert used() - before < MIB


@pytest.mark.requirement("V43", "V70", "V103")
def test_a_large_artifact_is_there_once_for_all_pods(pods: Pods, daemon: Daemon, registry: Registry) -> None:
    block = os.urandom(1 << 20)
    big = b"".join(block[number:] + block[:number] for number in range(192))
    wanted = artifact([file_part("model.bin", big, BYTES), file_part("copy.bin", big, BYTES)])
    before = _du(daemon.layout.root)
    for reference in _pulled(pods, wanted, registry, "artifact/large:v1"):
        held = _du(daemon.layout.root)
        assert len(big) <= held - before < len(big) + (8 << 20)
        users = (None, BLOCK, OTHER_BLOCK, None)
        sandboxes = [pods.run(pod(f"p{n}", options=namespaces(user=user))) for n, user in enumerate(users)]
        fields = [{"uidMappings": mappings(user), "gidMappings": mappings(user)} if user else {} for user in users]
        containers = [
            pods.launch(sandbox, mounts=[volume(reference, **more)])
            for sandbox, more in zip(sandboxes, fields, strict=True)
        ]
        seen = {pods.read(item, "cd /volume; tail -c 100 model.bin | sha256sum; stat -c %s *") for item in containers}
        assert len(seen) == 1
        assert seen.pop().endswith(f"{len(big)}\n{len(big)}")
        assert _du(daemon.layout.root) - held < 4 << 20


@pytest.mark.requirement("V103")
def test_five_gibibytes_are_mounted_in_a_second_pod_without_a_copy(
    pods: Pods, daemon: Daemon, registry: Registry, tmp_path: Path
) -> None:
    size = 5 << 30
    with (tmp_path / "weights").open("wb") as weights:
        weights.write(b"start")
        weights.seek(size - 3)
        weights.write(b"end")
    command = ["tar", "-C", tmp_path, "--sparse", "--format=pax", "-cf", tmp_path / "weights.tar", "weights"]
    subprocess.run(command, check=True)
    wanted = artifact([tar_part((tmp_path / "weights.tar").read_bytes())])
    before = _du(daemon.layout.root)
    for reference in _pulled(pods, wanted, registry, "artifact/sparse:v1"):
        users = (None, BLOCK)
        sandboxes = [pods.run(pod(f"p{n}", options=namespaces(user=user))) for n, user in enumerate(users)]
        for sandbox in sandboxes:
            container = pods.launch(sandbox, mounts=[volume(reference)])
            script = "cd /volume; stat -c %s weights; head -c 5 weights; tail -c 3 weights"
            assert pods.read(container, script) == f"{size}\nstartend"
        assert _du(daemon.layout.root) - before < 4 << 20


@pytest.mark.requirement("V48")
def test_artifacts_outlive_a_killed_daemon(mortal: Mortal, registry: Registry) -> None:
    reference = THING.push(registry, "artifact/killed:v1")
    pods = mortal.start()
    pods.pull(reference)
    container = pods.launch(pods.run(), mounts=[volume(reference)])
    mortal.daemon.kill()
    pods = mortal.start()
    assert pods.read(container, "cat /volume/hi.txt") == "hello"
    error_of(lambda: pods.remove_image(reference), FailedPrecondition)
    other = pods.launch(pods.run(pod("other")), mounts=[volume(reference)])
    assert pods.read(other, "cat /volume/hi.txt /volume/conf/a") == "helloa"
    for sandbox in pods.sandboxes():
        pods.remove(sandbox.id)
    pods.remove_image(reference)
    assert THING.digest not in images(pods)
