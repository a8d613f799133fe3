"""Volumes that a pod fills with symbolic links before another of its containers is made."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, Internal
from podkeep.cri.v1 import api_pb2 as api
from support.cri import BLOCK, Pods, bind, error_of, namespaces, pod
from support.daemon import Daemon
from support.images import busybox_layout, symlink
from support.registry import Registry

WHERE = pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])
User = tuple[int, int, int] | None


def volume(open_directory: Path) -> Path:
    path = open_directory / os.urandom(4).hex()
    path.mkdir()
    path.chmod(0o777)
    return path


def mapped(user: User) -> tuple[tuple[int, int, int], ...]:
    return () if user is None else (user,)


@WHERE
def test_a_link_to_dev_does_not_have_files_made_on_the_machine(
    daemon: Daemon, pods: Pods, open_directory: Path, user: User
) -> None:
    """An OCI runtime makes the terminal's file in what is at /dev by then, before it has left the machine's root."""
    outer, inner, outside = volume(open_directory), volume(open_directory), volume(open_directory)
    outside.rmdir()
    (outer / "x").symlink_to("/dev")
    for name in ("console", "null", "zero"):
        (inner / name).symlink_to(outside)
    before = daemon.mounts_elsewhere()
    sandbox = pods.run(pod(options=namespaces(user=user)))
    mounts = [bind(outer, "/data", *mapped(user)), bind(inner, "/data/x", *mapped(user))]
    container = pods.launch(sandbox, mounts=mounts, tty=True)
    assert pods.read(container, "readlink /dev/fd") == "/proc/self/fd"
    assert pods.exec(container, "test", "-c", "/dev/null").exit_code == 0
    assert not outside.exists()
    assert sorted(os.listdir(inner)) == ["console", "null", "zero"]
    assert daemon.mounts_elsewhere() == before


@WHERE
@pytest.mark.parametrize("link", ["/proc", "/proc/sys", "../../proc/self/attr", "/sys/fs", "/"])
def test_a_link_to_the_kernels_files_brings_no_volume_there(
    daemon: Daemon, pods: Pods, open_directory: Path, user: User, link: str
) -> None:
    outer, inner = volume(open_directory), volume(open_directory)
    (outer / "x").symlink_to(link)
    (inner / "mark").touch()
    before = daemon.mounts_elsewhere()
    sandbox = pods.run(pod(options=namespaces(user=user)))
    mounts = [bind(outer, "/data", *mapped(user)), bind(inner, "/data/x", *mapped(user))]
    if link != "/proc":
        # Where the image has nothing at all, a link leads to nothing.
        message = error_of(lambda: pods.create(sandbox, mounts=mounts), Internal)
        assert "OCI runtime create failed" in message
    else:
        container = pods.launch(sandbox, mounts=mounts)
        assert pods.exec(container, "test", "-e", "/proc/mark").exit_code == 1
        assert pods.exec(container, "test", "-d", "/proc/1").exit_code == 0
    assert daemon.mounts_elsewhere() == before


def test_read_only_volume_in_another_comes_read_only(pods: Pods, open_directory: Path) -> None:
    """The OCI runtime has nothing to set, so that nobody can lead it astray meanwhile; what lies below is writable."""
    outer, inner = volume(open_directory), volume(open_directory)
    mounts = [bind(outer, "/data"), bind(inner, "/data/x", readonly=True)]
    container = pods.create(pods.run(), mounts=mounts)
    pods.start(container)
    assert b"Read-only file system" in pods.exec(container, "touch", "/data/x/new").stderr
    assert pods.exec(container, "touch", "/data/new").exit_code == 0
    assert os.listdir(inner) == []


@pytest.fixture(scope="module")
def linked(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with links to where volumes are mounted."""
    layout = busybox_layout(
        tmp_path_factory.mktemp("linked"), layers=[[symlink("link", "data"), symlink("far", "link")]]
    )
    return registry.push(layout, "linked:1")


@pytest.mark.parametrize("place", ["/data/x", "/link/x", "/far/x"])
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_a_read_only_volume_in_another_has_its_flags_before_the_oci_runtime_comes(
    daemon: Daemon, pods: Pods, open_directory: Path, linked: str, place: str, kind: str
) -> None:
    """It is made of a copy that has them; whether links of the image lead there makes no difference."""
    pods.call("PullImage", api.PullImageRequest(image=api.ImageSpec(image=linked)), service="images")
    outer, inner = volume(open_directory), volume(open_directory)
    (inner / "file").touch()
    source = inner if kind == "directory" else inner / "file"
    mounts = [bind(outer, "/data"), bind(source, place, readonly=True)]
    container = pods.launch(pods.run(), mounts=mounts, image=linked)
    config = json.loads((daemon.layout.bundle(container) / "config.json").read_text())
    sources = {item["destination"]: Path(item["source"]) for item in config["mounts"]}
    assert sources["/data/x"].parent == daemon.layout.staged_mounts(container)
    assert sources["/data"] == outer
    target = "/data/x/new" if kind == "directory" else "/data/x"
    assert b"Read-only file system" in pods.exec(container, "sh", "-c", f"echo > {target}").stderr


@WHERE
@pytest.mark.parametrize("kind", ["directory", "file"])
@pytest.mark.parametrize("made", ["made", "made/more"])
@pytest.mark.parametrize("where", ["/read-only", "/etc/read-only"])
def test_a_link_brings_no_mount_point_into_a_read_only_volume(
    pods: Pods, open_directory: Path, user: User, kind: str, made: str, where: str
) -> None:
    """The OCI runtime makes what something is mounted on, as root, wherever a link of a volume leads."""
    protected, outer, inner = (volume(open_directory) for _ in range(3))
    (inner / "file").touch()
    (outer / "x").symlink_to(f"{where}/{made}")
    source = inner if kind == "directory" else inner / "file"
    mounts = [
        bind(protected, where, *mapped(user), readonly=True),
        bind(outer, "/data", *mapped(user)),
        bind(source, "/data/x", *mapped(user)),
    ]
    sandbox = pods.run(pod(options=namespaces(user=user)))
    with pytest.raises((FailedPrecondition, Internal), match="OCI runtime create failed"):
        pods.create(sandbox, mounts=mounts)
    assert os.listdir(protected) == []
