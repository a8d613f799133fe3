"""Images whose texts are hostile: refused when they come, and no harm to others where an older podkeep took them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, PodkeepError
from podkeep.cri.transport import MAX_MESSAGE_BYTES
from podkeep.cri.v1 import api_pb2 as api
from support.cri import Pods, pod
from support.daemon import Daemon
from support.images import Layout, LayoutBuilder, busybox_layout, digest, file, tar
from support.registry import HostileRegistry

HOSTILE: dict[str, dict[str, Any]] = {
    "5,000 digits": {"User": "1" * 5000},
    "superscript digits": {"User": "\u00b2\u00b3"},
    "half a surrogate pair": {"User": "\ud800"},
    "a zero byte": {"User": "a\0b"},
    "3.9 MiB": {"User": "x" * 4_089_446},
    "labels of half pairs": {"Labels": {"\udc00": "\ud800"}},
    "an environment of zero bytes": {"Env": ["\0=\0"]},
    "volumes everywhere": {"Volumes": {f"/{number}": {} for number in range(5000)}},
}
TAKEN = {"superscript digits"}
"""It is a name like any other; there just is no such account."""


def _config(run: dict[str, Any], diff_ids: list[str]) -> bytes:
    return json.dumps({"os": "linux", "config": run, "rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()


def _images(pods: Pods) -> dict[str, api.Image]:
    return {image.id: image for image in pods.images()}


def _record(database: sqlite3.Connection, image: str, config: bytes) -> None:
    database.execute("INSERT INTO images (id, config) VALUES (?, ?)", (image, config))
    database.execute(
        "INSERT INTO summaries (image_id, kind, artifact_type, pulled_at, config_bytes) VALUES (?, 'image', '', 0, ?)",
        (image, len(config)),
    )


@pytest.fixture
def with_old_images(own_daemon: Daemon, tmp_path: Path) -> Iterator[tuple[Daemon, str, dict[str, str]]]:
    """A daemon whose store has a good image and bad ones that an older podkeep took; its reference, and their IDs."""
    layout = busybox_layout(tmp_path / "good", name="localhost/good:1")
    own_daemon.start()
    own_daemon.run("image", "load", str(layout.path), check=True)
    assert own_daemon.stop() == 0
    bad = {}
    with sqlite3.connect(own_daemon.layout.root / "images/images.db") as database:
        for number, (name, run) in enumerate(HOSTILE.items()):
            config = _config(run, list(layout.diff_ids))
            bad[name] = digest(config)
            _record(database, bad[name], config)
            for position, layer in enumerate(layout.diff_ids):
                database.execute("INSERT INTO image_layers VALUES (?, ?, ?)", (bad[name], position, layer))
            database.execute(
                "INSERT INTO names (name, image_id, kind) VALUES (?, ?, 'tag')",
                (f"registry.example/bad:{number}", bad[name]),
            )
    database.close()
    own_daemon.start()
    yield own_daemon, "localhost/good:1", bad
    own_daemon.stop()


def test_images_that_an_older_podkeep_took_harm_no_other(
    with_old_images: tuple[Daemon, str, dict[str, str]],
) -> None:
    daemon, good, bad = with_old_images
    with Pods(daemon.socket, good) as pods:
        listed = _images(pods)
        assert set(bad.values()) < set(listed)
        assert len(listed) == len(bad) + 1
        for name, image in bad.items():
            found = listed[image]
            assert pods.image_status(image) == found
            verbose = api.ImageStatusRequest(image=api.ImageSpec(image=image), verbose=True)
            assert pods.call("ImageStatus", verbose, service="images").image == found
            assert (found.HasField("uid"), found.username) == (False, "\u00b2\u00b3" if name in TAKEN else "")
        assert (
            pods.call("ImageFsInfo", api.ImageFsInfoRequest(), service="images").image_filesystems[0].used_bytes.value
            > 0
        )
        sandbox = pods.run(pod())
        pods.launch(sandbox, "sleep", "60")
        for name, image in bad.items():
            expected = InvalidArgument if name in TAKEN else FailedPrecondition
            with pytest.raises(expected) as caught:
                pods.create(sandbox, "true", name="bad", image=image)
            assert len(str(caught.value)) < 500
    log = daemon.log.read_text()
    for name, image in bad.items():
        lines = [
            line for line in log.splitlines() if "WARNING" in line and image in line and "no container can" in line
        ]
        assert len(lines) == (0 if name in TAKEN else 1), name
        assert all(len(line) < 500 for line in lines)


def test_the_verbs_show_and_remove_images_that_an_older_podkeep_took(
    with_old_images: tuple[Daemon, str, dict[str, str]],
) -> None:
    daemon, _, bad = with_old_images
    shown = daemon.run("image", "ls", "-o", "json", check=True)
    assert {item["id"] for item in json.loads(shown.stdout)} > set(bad.values())
    for image in bad.values():
        assert image in daemon.run("image", "inspect", image, check=True).stdout
    verified = daemon.run("image", "verify")
    assert verified.returncode != 0
    assert "more than 511" in verified.stdout + verified.stderr
    assert daemon.run("image", "rm", bad["5,000 digits"]).returncode == 0
    pruned = daemon.run("image", "prune", "--all")
    assert pruned.returncode == 0, pruned.stderr
    assert json.loads(daemon.run("image", "ls", "-o", "json", check=True).stdout) == []


@pytest.fixture
def hostile(tmp_path: Path) -> dict[str, Layout]:
    """The same as new images."""
    found = {}
    for number, (name, run) in enumerate(HOSTILE.items()):
        builder = LayoutBuilder(tmp_path / str(number))
        layer = tar([file("a", "x")])
        found[name] = builder.finish(builder.image([layer], config=run), f"localhost/bad:{number}")
    return found


def test_images_with_hostile_texts_are_refused_when_they_come(own_daemon: Daemon, hostile: dict[str, Layout]) -> None:
    refused = {name: layout for name, layout in hostile.items() if name not in TAKEN}
    with HostileRegistry(hostile["a zero byte"]) as registry:
        own_daemon.extra += f'[registries."{registry.host}"]\ninsecure = true\n'
        own_daemon.write()
        own_daemon.start()
        with Pods(own_daemon.socket, "") as pods:
            with pytest.raises(PodkeepError, match="User has the character") as caught:
                pods.call(
                    "PullImage",
                    api.PullImageRequest(image=api.ImageSpec(image=f"{registry.host}/app:v1")),
                    service="images",
                )
            assert isinstance(caught.value, InvalidArgument)
            for name, layout in refused.items():
                loaded = own_daemon.run("image", "load", str(layout.path))
                assert loaded.returncode != 0, name
                assert len(loaded.stderr) < 700
                archive = layout.docker_archive(layout.path.with_suffix(".tar"), [f"localhost/{len(name)}:1"])
                assert own_daemon.run("image", "load", str(archive)).returncode != 0, name
            assert _images(pods) == {}


def test_a_list_of_large_legal_images_fits_into_a_message(own_daemon: Daemon, tmp_path: Path) -> None:
    """Names of 380 bytes, 52,000 for one image and one for each of 300 others: more than a message with all of them."""
    layout = busybox_layout(tmp_path / "good", name="localhost/good:1")
    own_daemon.start()
    own_daemon.run("image", "load", str(layout.path), check=True)
    assert own_daemon.stop() == 0
    prefix = "registry.example/" + "a" * 200
    with sqlite3.connect(own_daemon.layout.root / "images/images.db") as database:
        names = [(f"{prefix}:{'t' * 120}{number:05}", layout.image_id) for number in range(52_000)]
        for number in range(300):
            config = _config({"User": "u" * 511, "Labels": {"n": str(number)}}, [])
            _record(database, digest(config), config)
            names.append((f"{prefix}/b:{'t' * 120}{number:05}", digest(config)))
        database.executemany("INSERT INTO names (name, image_id, kind) VALUES (?, ?, 'tag')", names)
    database.close()
    own_daemon.start()
    with Pods(own_daemon.socket, "") as pods:
        answer = pods.call("ListImages", api.ListImagesRequest(), service="images")
        assert len(answer.images) == 301
        assert answer.ByteSize() < MAX_MESSAGE_BYTES
        assert all(image.repo_tags for image in answer.images)
        status = pods.call(
            "ImageStatus", api.ImageStatusRequest(image=api.ImageSpec(image=layout.image_id)), service="images"
        )
        assert status.ByteSize() < MAX_MESSAGE_BYTES
        assert len(status.image.repo_tags) > 10_000
    assert own_daemon.run("image", "ls", "-q", check=True).stdout.count("\n") >= 301
    assert own_daemon.log.read_text().count("ListImages: ") == 1
    assert own_daemon.stop() == 0
