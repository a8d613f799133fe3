"""`podkeep image` against a real daemon, a real registry, and skopeo."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support import erofs, forked
from support.artifacts import Artifact, artifact, file_part, tar_part
from support.cri import Pods
from support.daemon import Daemon
from support.images import Layout, busybox_layout, digest, directory, file, layers_layout, symlink, tar
from support.registry import Answer, HostileRegistry, Registry
from support.waiting import TIMEOUT_S, wait_for

BCRYPT_OF_SECRET = "$2b$04$HaBX7kZuW/ID3OJNAR4XPeVTxebPbJZm59xYFPz22L0pQ7GgCNVYW"


@pytest.fixture
def store(own_daemon: Daemon) -> Daemon:
    """A started daemon whose images are the test's own."""
    return own_daemon.start()


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """An image of two layers."""
    members = [file("data/a", "x" * 100_000), symlink("ln", "data/a")]
    return busybox_layout(tmp_path_factory.mktemp("two") / "layout", name="localhost/two:1", layers=[members])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """An image with a layer that does not shrink, large enough to be caught in the middle."""
    members = [file("random", os.urandom(64 << 20))]
    return layers_layout(
        tmp_path_factory.mktemp("large") / "layout", [members], name="localhost/large:1", compression="none"
    )


def listed(daemon: Daemon, *options: str) -> list[dict[str, Any]]:
    images: list[dict[str, Any]] = json.loads(daemon.run("image", "ls", "-o", "json", *options, check=True).stdout)
    return images


def load(daemon: Daemon, path: Path) -> None:
    done = daemon.run("image", "load", "-q", str(path))
    assert done.returncode == 0, done.stderr


def used_bytes(daemon: Daemon) -> int:
    """What du says that all but the records take."""
    command = ["du", "-s", "-B1", "--exclude=images.db*"]
    said = forked.run([*command, daemon.layout.images], capture_output=True, text=True, check=True)
    return int(said.stdout.split()[0])


def staged(daemon: Daemon) -> list[Path]:
    return list((daemon.layout.images / "staging").iterdir())


def wait_until_nothing_is_staged(daemon: Daemon) -> None:
    wait_for(lambda: not staged(daemon), lambda: f"nothing staged: {staged(daemon)}")


def content_files(daemon: Daemon) -> list[Path]:
    """The files that layers are kept in as EROFS images, largest first."""
    erofs.needed()
    found = [path for path in daemon.layout.images.rglob("*") if path.is_file() and path.name in ("data", "file")]
    assert found, "no layer is kept as an EROFS image"
    return sorted(found, key=lambda path: -path.stat().st_size)


def skopeo_inspect(*arguments: str) -> bytes:
    return subprocess.run(["skopeo", "inspect", *arguments], capture_output=True, check=True, timeout=60).stdout


def pushed(registry: Registry, name: str) -> Artifact:
    """An artifact of a file and an archive, in the registry."""
    made = artifact(
        [file_part("weights.bin", b"w" * 5000, "application/x-weights"), tar_part(tar([file("etc/a", "a")]))]
    )
    made.push(registry, name)
    return made


# Pulling


def test_several_images_are_pulled_and_what_fails_is_told(store: Daemon, registry: Registry, layout: Layout) -> None:
    names = [registry.push(layout, f"several:{tag}") for tag in ("a", "b")]
    done = store.run("image", "pull", names[0], f"{registry.host}/several:absent", names[1])
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].split() == ["IMAGE", "ID", "DIGEST"]
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        [name, layout.image_id, layout.manifest_digest] for name in names
    ]
    errors = [line for line in done.stderr.splitlines() if line.startswith(("podkeep:", "hint:"))]
    assert len(errors) == 2
    assert "several:absent" in errors[0]


def test_pull_says_what_it_got(store: Daemon, registry: Registry, layout: Layout) -> None:
    name = registry.push(layout, "said:1")
    done = store.run("image", "pull", "-o", "json", name, check=True)
    assert json.loads(done.stdout) == [{"reference": name, "id": layout.image_id, "digest": layout.manifest_digest}]
    assert f"{name}: done" in done.stderr
    quiet = store.run("image", "pull", "-q", name, check=True)
    assert (quiet.stdout, quiet.stderr) == (f"{layout.image_id}\n", "")


def test_a_connection_that_breaks_is_shown(own_daemon: Daemon, layout: Layout) -> None:
    blob = layout.layer_digests[0]
    cuts = iter([500_000, None])

    def decide(path: str, _headers: Mapping[str, str]) -> Answer | None:
        return Answer(body=layout.blob(blob), cut=next(cuts), part=False) if path.endswith(blob) else None

    with HostileRegistry(layout, decide) as registry:
        own_daemon.extra += f'[registries."{registry.host}"]\ninsecure = true\n'
        own_daemon.write()
        own_daemon.start()
        said = own_daemon.run("image", "pull", f"{registry.host}/broken:1", check=True).stderr
    lines = [line.partition(f" {blob[7:19]}: ")[2].split()[0] for line in said.splitlines() if blob[7:19] in line]
    phases = ["downloading", "resuming", "unpacking", "done"]
    assert [line for line in dict.fromkeys(lines) if line in phases] == phases


def test_credentials_come_from_standard_input(own_daemon: Daemon, tmp_path: Path, layout: Layout) -> None:
    with Registry(tmp_path / "closed", htpasswd=f"me:{BCRYPT_OF_SECRET}\n") as closed:
        headers = {"Authorization": "Basic bWU6c2VjcmV0"}
        name = closed.push(layout, "closed:1", headers=headers)
        own_daemon.extra += f'[registries."{closed.host}"]\ninsecure = true\n'
        own_daemon.write()
        own_daemon.start()
        assert own_daemon.run("image", "pull", name).returncode == 1
        command = own_daemon.command("image", "pull", "-q", "--creds", "me", "--password-stdin", name)
        done = forked.run(command, input="secret\n", capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, f"{layout.image_id}\n"), done.stderr
        own_daemon.run("image", "rm", name, check=True)
        assert own_daemon.run("image", "pull", "--creds", "me:wrong", name).returncode == 1
        assert own_daemon.run("image", "pull", "--creds", "me:secret", name).returncode == 0


# Listing and inspecting


@pytest.mark.requirement("V67")
def test_an_artifact_is_listed_inspected_and_removed(store: Daemon, registry: Registry) -> None:
    made = pushed(registry, "things/model:v1")
    name = f"{registry.host}/things/model:v1"
    store.run("image", "pull", "-q", name, check=True)
    (shown,) = listed(store, "-f", "kind=artifact")
    assert (shown["id"], shown["kind"], shown["repo_tags"]) == (made.digest, "artifact", [name])
    assert shown["pulled_at"]
    assert listed(store, "-f", "kind=image") == []
    (whole,) = json.loads(store.run("image", "inspect", name, check=True).stdout)
    assert [(layer["kind"], layer["title"]) for layer in whole["layers"]] == [("file", "weights.bin"), ("tar", "")]
    assert {document["role"]: document["digest"] for document in whole["documents"]}["manifest"] == made.digest
    assert "weights.bin" in store.run("image", "inspect", "-o", "table", name, check=True).stdout
    store.run("image", "rm", name, check=True)
    assert listed(store) == []


def test_inspect_of_what_is_not_there_says_so(store: Daemon) -> None:
    done = store.run("image", "inspect", "absent")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "podkeep: no image absent\nhint: `podkeep image ls` lists the images\n"


def test_a_moved_tag_leaves_a_dangling_image(
    store: Daemon, registry: Registry, layout: Layout, busybox: Layout
) -> None:
    name = registry.push(busybox, "moving:1")
    store.run("image", "pull", "-q", name, check=True)
    registry.push(layout, "moving:1")
    store.run("image", "pull", "-q", name, check=True)
    assert [image["id"] for image in listed(store, "-f", "dangling=true")] == [busybox.image_id]
    before = used_bytes(store)
    kept = json.loads(store.run("image", "prune", "--dry-run", "-o", "json", check=True).stdout)
    assert (used_bytes(store), kept["dry_run"]) == (before, True)
    done = json.loads(store.run("image", "prune", "-o", "json", check=True).stdout)
    assert [image["id"] for image in done["images"]] == [busybox.image_id]
    assert done["reclaimed_bytes"] == kept["reclaimed_bytes"] == before - used_bytes(store)
    assert [image["id"] for image in listed(store)] == [layout.image_id]


# Removing


def test_a_name_is_taken_away_and_the_image_goes_with_its_last(
    store: Daemon, registry: Registry, layout: Layout
) -> None:
    names = [registry.push(layout, f"named:{tag}") for tag in ("a", "b")]
    store.run("image", "pull", "-q", *names, check=True)
    before = used_bytes(store)
    assert store.run("image", "rm", names[0], check=True).stdout == f"untagged {names[0]}\n"
    assert listed(store)[0]["repo_tags"] == [names[1]]
    (gone,) = json.loads(store.run("image", "rm", "-o", "json", names[1], check=True).stdout)
    assert gone["removed"] == layout.image_id
    assert names[1] in gone["untagged"]
    assert gone["reclaimed_bytes"] == before - used_bytes(store)
    assert store.run("image", "rm", names[1]).returncode == 1


def test_what_helped_to_merge_layers_goes_with_them(store: Daemon, tmp_path: Path) -> None:
    layers = [[directory("kept", mode=0o711)], [file("kept/deep/x", "y" * 9000)]]
    made = busybox_layout(tmp_path / "layout", name="localhost/merged:1", layers=layers)
    load(store, made.path)
    with Pods(store.socket, "localhost/merged:1") as pods:
        pods.launch(pods.run(), "sleep", "60")
    assert list((store.layout.images / "parents").iterdir())
    before = used_bytes(store)
    would = json.loads(store.run("image", "prune", "-a", "--dry-run", "-o", "json", check=True).stdout)
    (gone,) = json.loads(store.run("image", "rm", "-o", "json", "localhost/merged:1", check=True).stdout)
    assert gone["reclaimed_bytes"] == would["reclaimed_bytes"] == before - used_bytes(store)


def test_an_id_means_the_image_with_all_its_names(store: Daemon, registry: Registry, layout: Layout) -> None:
    names = [registry.push(layout, f"whole:{tag}") for tag in ("a", "b")]
    store.run("image", "pull", "-q", *names, check=True)
    store.run("image", "rm", layout.image_id.partition(":")[2][:12], check=True)
    assert listed(store) == []


@pytest.mark.requirement("V46")
def test_an_image_in_use_stays_and_its_user_is_named(store: Daemon, registry: Registry, busybox: Layout) -> None:
    names = [registry.push(busybox, f"used:{tag}") for tag in ("a", "b")]
    store.run("image", "pull", "-q", *names, check=True)
    with Pods(store.socket, names[0]) as pods:
        pods.launch(pods.run(), "sleep", "60")
        done = store.run("image", "rm", busybox.image_id)
        assert done.returncode == 1
        assert "is in use by container" in done.stderr
        assert "of pod" in done.stderr
        assert json.loads(store.run("image", "prune", "-a", "-o", "json", check=True).stdout)["images"] == []
        assert len(listed(store)[0]["users"]) == 1
        # Without one of its names it is what it was.
        store.run("image", "rm", names[1], check=True)
        assert store.run("image", "rm", names[0]).returncode == 1
    store.run("image", "rm", names[0], check=True)


def test_pinned_images_are_not_pruned(own_daemon: Daemon, layout: Layout) -> None:
    own_daemon.extra += '[images]\npinned = ["localhost/two:*"]\n'
    own_daemon.write()
    own_daemon.start()
    load(own_daemon, layout.path)
    own_daemon.run("image", "prune", "--all", check=True)
    assert [image["pinned"] for image in listed(own_daemon)] == [True]


def test_only_what_is_old_is_pruned(store: Daemon, layout: Layout) -> None:
    load(store, layout.path)
    assert store.run("image", "prune", "-a", "--older-than", "1h", check=True).stdout == "0 images, 0 B reclaimed\n"
    assert len(listed(store)) == 1
    store.run("image", "prune", "-a", "--older-than", "0s", check=True)
    assert listed(store) == []


# Saving and loading


def test_a_saved_image_is_the_same_image_for_skopeo_and_for_us(store: Daemon, layout: Layout, tmp_path: Path) -> None:
    load(store, layout.path)
    archive = tmp_path / "saved.tar"
    store.run("image", "save", "-o", str(archive), "localhost/two:1", check=True)
    said = subprocess.run(["skopeo", "inspect", f"oci-archive:{archive}"], capture_output=True, text=True, check=True)
    assert json.loads(said.stdout)["Layers"] == list(layout.diff_ids)
    config = subprocess.run(
        ["skopeo", "inspect", "--config", "--raw", f"oci-archive:{archive}"], capture_output=True, check=True
    )
    assert digest(config.stdout) == layout.image_id
    subprocess.run(["skopeo", "inspect", f"docker-archive:{archive}"], capture_output=True, check=True)
    store.run("image", "rm", "localhost/two:1", check=True)
    load(store, archive)
    (image,) = listed(store)
    assert (image["id"], image["repo_tags"]) == (layout.image_id, ["localhost/two:1"])
    assert store.run("image", "verify", check=True).stdout.endswith("all well\n")
    again = tmp_path / "again.tar"
    store.run("image", "save", "-o", str(again), "localhost/two:1", check=True)
    assert again.read_bytes() == archive.read_bytes()


@pytest.mark.parametrize("driver", ["directories", "erofs"])
def test_the_driver_does_not_show_in_what_is_saved(
    driver: str, own_daemon: Daemon, registry: Registry, layout: Layout, tmp_path: Path
) -> None:
    own_daemon.extra += f'[images]\nsnapshot_driver = "{driver}"\n'
    own_daemon.write()
    own_daemon.start()
    made = pushed(registry, "driver/thing:v1")
    name = f"{registry.host}/driver/thing:v1"
    own_daemon.run("image", "pull", "-q", name, check=True)
    load(own_daemon, layout.path)
    archive = tmp_path / "saved.tar"
    own_daemon.run("image", "save", "-o", str(archive), name, "localhost/two:1", check=True)
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "-C", out, "-xf", archive], check=True)
    for diff_id in layout.diff_ids:
        assert digest((out / "blobs" / diff_id.replace(":", "/")).read_bytes()) == diff_id
    index = json.loads((out / "index.json").read_bytes())
    assert made.digest not in [entry["digest"] for entry in index["manifests"]]  # its archive was compressed
    weights = digest(b"w" * 5000)
    assert (out / "blobs" / weights.replace(":", "/")).read_bytes() == b"w" * 5000
    checked = own_daemon.run("image", "verify", check=True).stdout
    assert checked.startswith("checked 2 images, 4 layers,")
    assert checked.endswith(": all well\n")


def test_what_is_saved_is_the_same_wherever_it_goes(
    store: Daemon, layout: Layout, busybox: Layout, tmp_path: Path
) -> None:
    load(store, layout.path)
    load(store, busybox.path)
    names = ["localhost/two:1", "busybox"]
    archive = tmp_path / "saved.tar"
    store.run("image", "save", "-o", str(archive), *names, check=True)
    piped = forked.run(store.command("image", "save", "-q", *names), capture_output=True, check=True, timeout=60)
    assert piped.stdout == archive.read_bytes()
    with (tmp_path / "appended").open("wb") as out:
        out.write(b"before")
        out.flush()
        forked.run(store.command("image", "save", "-q", *names), stdout=out, check=True, timeout=60)
    assert (tmp_path / "appended").read_bytes() == b"before" + archive.read_bytes()
    directory = tmp_path / "layout"
    store.run("image", "save", "--format", "oci-dir", "-o", str(directory), *names, check=True)
    with_tar = subprocess.run(["tar", "-tf", archive], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()) == sorted(
        with_tar
    )
    store.run("image", "rm", *names, check=True)
    assert sorted(store.run("image", "load", "-q", str(directory), check=True).stdout.split()) == sorted(
        ["localhost/two:1", "docker.io/library/busybox:latest"]
    )
    assert store.run("image", "save", "--format", "oci-dir", "-o", str(directory), *names).returncode == 1


@pytest.mark.requirement("V67")
def test_an_artifact_survives_save_and_load(store: Daemon, registry: Registry, tmp_path: Path) -> None:
    made = artifact([file_part("a.bin", os.urandom(5000), "application/x-a"), file_part("b.txt", b"b", "text/plain")])
    made.push(registry, "round/trip:v1")
    name = f"{registry.host}/round/trip:v1"
    store.run("image", "pull", "-q", name, check=True)
    archive = tmp_path / "artifact.tar"
    store.run("image", "save", "-o", str(archive), name, check=True)
    store.run("image", "rm", name, check=True)
    load(store, archive)
    (image,) = listed(store)
    assert (image["id"], image["kind"], image["repo_tags"]) == (made.digest, "artifact", [name])


def test_an_image_without_a_tag_keeps_its_repository(store: Daemon, registry: Registry, layout: Layout) -> None:
    registry.push(layout, "untagged:1")
    name = f"{registry.host}/untagged@{layout.manifest_digest}"
    store.run("image", "pull", "-q", name, check=True)
    saved = forked.run(store.command("image", "save", "-q", name), capture_output=True, check=True, timeout=60)
    store.run("image", "rm", name, check=True)
    forked.run(store.command("image", "load", "-q"), input=saved.stdout, check=True, timeout=60)
    (image,) = listed(store, f"{registry.host}/untagged")
    assert (image["id"], image["repo_tags"], len(image["repo_digests"])) == (layout.image_id, [], 1)


def test_standard_output_that_is_full_is_told(store: Daemon, layout: Layout) -> None:
    load(store, layout.path)
    with Path("/dev/full").open("wb") as full:
        command = store.command("image", "save", "-q", "localhost/two:1")
        done = forked.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "podkeep: standard output cannot be written: No space left on device\n",
    )
    script = f"{shlex.join(command)} | head -c 10 >&2; echo ${{PIPESTATUS[0]}}"
    piped = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, check=True)
    assert piped.stdout == b"1\n"
    assert b"Broken pipe" in piped.stderr


@pytest.mark.parametrize("kind", ["file", "pipe", "gzip", "socket", "offset"])
def test_standard_input_is_loaded_whatever_it_is(kind: str, store: Daemon, layout: Layout, tmp_path: Path) -> None:
    data = layout.tar(tmp_path / "image.tar").read_bytes()
    command = store.command("image", "load", "-q")
    if kind in ("pipe", "gzip"):
        sent = gzip.compress(data) if kind == "gzip" else data
        done = forked.run(command, input=sent, capture_output=True, timeout=60, check=False)
    elif kind == "socket":
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = forked.Popen(command, stdin=theirs, stdout=subprocess.PIPE)
            theirs.close()
            ours.sendall(data)
            ours.shutdown(socket.SHUT_WR)
            out, _ = process.communicate(timeout=60)
        done = subprocess.CompletedProcess(command, process.returncode, out)
    else:
        (tmp_path / "junk").write_bytes(b"before" + data)
        with (tmp_path / "junk").open("rb") as junk, (tmp_path / "image.tar").open("rb") as whole:
            junk.seek(6)
            source = junk if kind == "offset" else whole
            os.lseek(junk.fileno(), 6, os.SEEK_SET)
            done = forked.run(command, stdin=source, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"localhost/two:1\n")
    wait_until_nothing_is_staged(store)


def test_what_is_no_archive_is_not_loaded(store: Daemon, tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 1000)
    done = store.run("image", "load", str(tmp_path / "junk"))
    assert done.returncode == 1
    assert str(tmp_path / "junk") in done.stderr
    absent = store.run("image", "load", str(tmp_path / "absent"))
    assert (absent.returncode, absent.stderr) == (1, f"podkeep: {tmp_path / 'absent'}: No such file or directory\n")


def test_nothing_is_left_of_a_save_that_cannot_be_finished(store: Daemon, large: Layout, tmp_path: Path) -> None:
    load(store, large.path)
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", small], check=True)
    try:
        target = small / "saved.tar"
        target.write_text("what was here before")
        done = store.run("image", "save", "-o", str(target), "localhost/large:1")
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
        assert target.read_text() == "what was here before"
        done = store.run("image", "save", "--format", "oci-dir", "-o", str(small / "layout"), "localhost/large:1")
        assert done.returncode == 1
        assert [path.name for path in small.iterdir()] == ["saved.tar"]
    finally:
        subprocess.run(["umount", small], check=True)
    done = store.run("image", "save", "-o", str(tmp_path / "absent/saved.tar"), "localhost/large:1")
    assert (done.returncode, "cannot be written: No such file" in done.stderr) == (1, True)


@pytest.mark.parametrize("form", ["oci-archive", "oci-dir"])
def test_nothing_is_left_of_a_save_that_is_killed(form: str, store: Daemon, large: Layout, tmp_path: Path) -> None:
    load(store, large.path)
    target = tmp_path / "out"
    target.mkdir()
    command = store.command("image", "save", "--format", form, "-o", str(target / "saved"), "localhost/large:1")
    process = forked.Popen(command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert b"saving" in process.stderr.readline()
    process.kill()
    process.wait()
    process.stderr.close()
    wait_until_nothing_is_staged(store)
    wait_for(lambda: not list(target.iterdir()), lambda: f"nothing saved: {list(target.iterdir())}")
    assert store.run("image", "rm", "localhost/large:1").returncode == 0


def test_nothing_is_left_of_a_load_that_is_killed(store: Daemon, large: Layout, tmp_path: Path) -> None:
    process = forked.Popen(store.command("image", "load"), stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(large.tar(tmp_path / "large.tar").read_bytes()[: 8 << 20])
    process.stdin.flush()
    wait_for(lambda: staged(store), "something staged")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until_nothing_is_staged(store)
    assert listed(store) == []


def test_a_killed_runtime_ends_a_save_and_leaves_nothing(store: Daemon, large: Layout, tmp_path: Path) -> None:
    load(store, large.path)
    target = tmp_path / "out"
    target.mkdir()
    command = store.command("image", "save", "-o", str(target / "saved"), "localhost/large:1")
    process = forked.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "saving" in process.stderr.readline()
    store.kill()
    _, said = process.communicate(timeout=TIMEOUT_S)
    if process.returncode == 0:  # it was faster
        assert (target / "saved").exists()
    else:
        assert said.startswith("podkeep: ")
        assert list(target.iterdir()) == []
    store.start()
    assert [image["id"] for image in listed(store)] == [large.image_id]


# Verifying


def test_damages_are_found_and_repaired(store: Daemon, registry: Registry, layout: Layout, tmp_path: Path) -> None:
    name = registry.push(layout, "damaged:1")
    store.run("image", "pull", "-q", name, check=True)
    archive = tmp_path / "whole.tar"
    store.run("image", "save", "-o", str(archive), name, check=True)
    assert store.run("image", "verify", check=True).stdout.endswith("all well\n")
    data = content_files(store)[0]
    with data.open("r+b") as layer:
        layer.seek(1 << 20)
        byte = layer.read(1)
        layer.seek(1 << 20)
        layer.write(bytes([byte[0] ^ 1]))
    found = store.run("image", "verify", name)
    assert found.returncode == 1
    assert f"damaged: {layout.diff_ids[0]}: expected digest" in found.stdout
    assert f"podkeep image verify --repair {name} && podkeep image pull {name}" in found.stdout
    target = tmp_path / "damaged.tar"
    assert store.run("image", "save", "-o", str(target), name).returncode == 1
    assert not target.exists()
    repaired = store.run("image", "verify", "--repair", "-o", "json")
    assert (repaired.returncode, json.loads(repaired.stdout)["damages"][0]["repaired"]) == (0, True)
    assert listed(store) == []
    store.run("image", "pull", "-q", name, check=True)
    assert store.run("image", "verify").returncode == 0


def test_metadata_and_files_without_an_image_are_looked_at(store: Daemon, layout: Layout) -> None:
    load(store, layout.path)
    kept = content_files(store)[0].parent
    (kept.parent / ("sha256-" + "0" * 64)).mkdir()
    with (kept / "meta.erofs").open("r+b") as metadata:
        metadata.seek(-1, os.SEEK_END)
        byte = metadata.read(1)
        metadata.seek(-1, os.SEEK_END)
        metadata.write(bytes([byte[0] ^ 1]))
    problems = {
        damage["problem"] for damage in json.loads(store.run("image", "verify", "-o", "json").stdout)["damages"]
    }
    assert {problem[:29] for problem in problems} == {"its metadata: expected digest", "no image has it"}
    (kept / "meta.erofs").unlink()
    done = store.run("image", "verify", "-o", "json")
    assert "gone" in json.loads(done.stdout)["damages"][0]["problem"]
    assert store.run("image", "verify", "--repair").returncode == 0
    assert store.run("image", "verify").stdout.startswith("checked 0 images")


def test_what_a_container_uses_is_not_repaired_away(store: Daemon, registry: Registry, busybox: Layout) -> None:
    name = registry.push(busybox, "held:1")
    store.run("image", "pull", "-q", name, check=True)
    with Pods(store.socket, name) as pods:
        pods.launch(pods.run(), "sleep", "60")
        data = content_files(store)[0]
        os.truncate(data, data.stat().st_size - 512)
        done = store.run("image", "verify", "--repair", "-o", "json")
        (damage,) = json.loads(done.stdout)["damages"]
        assert (done.returncode, damage["repaired"]) == (1, False)
        assert "in use by container" in damage["kept"]
        assert len(listed(store)) == 1


def test_verify_goes_on_beside_pulls_and_removals(
    store: Daemon, registry: Registry, large: Layout, layout: Layout
) -> None:
    load(store, large.path)
    name = registry.push(layout, "beside:1")
    verifying = forked.Popen(
        store.command("image", "verify"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert verifying.stderr is not None
        assert "verifying" in verifying.stderr.readline()
        started = time.monotonic()
        store.run("image", "pull", "-q", name, check=True)
        store.run("image", "rm", "localhost/large:1", name, check=True)
        assert time.monotonic() - started < 30
        out, _ = verifying.communicate(timeout=60)
        assert (verifying.returncode, out.endswith("all well\n")) == (0, True)
    finally:
        verifying.kill()
        verifying.communicate()
    assert listed(store) == []
    assert used_bytes(store) < 1 << 20


def test_a_verify_that_is_given_up_leaves_nothing(store: Daemon, large: Layout) -> None:
    load(store, large.path)
    verifying = forked.Popen(store.command("image", "verify"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert verifying.stderr is not None
    assert b"verifying" in verifying.stderr.readline()
    verifying.kill()
    verifying.communicate()
    wait_until_nothing_is_staged(store)
    store.run("image", "rm", "localhost/large:1", check=True)
    assert used_bytes(store) < 1 << 20


def test_prune_beside_pulls_leaves_only_whole_images(store: Daemon, registry: Registry, tmp_path: Path) -> None:
    names = []
    for number in range(4):
        members = [[file("shared", "s" * 50_000)], [file("own", str(number) * 50_000)]]
        names.append(registry.push(layers_layout(tmp_path / str(number), members), f"beside:{number}"))
    pulls = [
        forked.Popen(store.command("image", "pull", "-q", *order), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for order in (names, names[::-1])
    ]
    while any(pull.poll() is None for pull in pulls):
        assert store.run("image", "prune", "-a").returncode == 0
        store.run("image", "rm", names[0])
    for pull in pulls:
        _, said = pull.communicate()
        # An image may be gone between its pull and the look at its names.
        assert b"Traceback" not in said
    assert store.run("image", "verify").returncode == 0
    store.run("image", "prune", "-a", check=True)
    assert listed(store) == []
    assert used_bytes(store) < 100_000


# Completion


def test_the_shell_completes_names_of_images(store: Daemon, layout: Layout) -> None:
    load(store, layout.path)
    environment = {
        **os.environ,
        "_PODKEEP_COMPLETE": "bash_complete",
        "COMP_WORDS": f"podkeep --config {store.config} image rm local",
        "COMP_CWORD": "5",
    }
    done = forked.run(store.command(), capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.stdout.splitlines() == ["plain,localhost/two:1"]
