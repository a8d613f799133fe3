"""Volumes that a pod fills with symbolic links before another of its containers is made."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.kernel.files.removal import remove_tree
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
@pytest.mark.parametrize(
    "link", ["/dev", "/dev/pts", "/proc", "/proc/sys", "../../proc/self/attr", "/sys/fs", "/", "../dev/../proc"]
)
def test_a_link_to_the_kernels_files_brings_no_volume_there(
    daemon: Daemon, pods: Pods, open_directory: Path, user: User, link: str
) -> None:
    """Nor to /dev: an OCI runtime makes the terminal's file in what is there by then, before it has left the machine's
    root.
    """
    outer, inner, outside = volume(open_directory), volume(open_directory), volume(open_directory)
    outside.rmdir()
    (outer / "x").symlink_to(link)
    for name in ("console", "null", "zero"):
        (inner / name).symlink_to(outside)
    before = daemon.mounts_elsewhere()
    sandbox = pods.run(pod(options=namespaces(user=user)))
    mounts = [bind(outer, "/data", *mapped(user)), bind(inner, "/data/x", *mapped(user))]
    message = error_of(lambda: pods.create(sandbox, mounts=mounts, tty=True), InvalidArgument)
    assert message.startswith("/data/x leads to /")
    assert message.endswith("by a link of the volume: nothing can be mounted there")
    assert not outside.exists()
    assert sorted(os.listdir(inner)) == ["console", "null", "zero"]
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
    """It is attached to a copy of the other; whether links of the image lead there makes no difference."""
    pods.pull(linked)
    outer, inner = volume(open_directory), volume(open_directory)
    (inner / "file").touch()
    source = inner if kind == "directory" else inner / "file"
    mounts = [bind(outer, "/data"), bind(source, place, readonly=True)]
    container = pods.launch(pods.run(), mounts=mounts, image=linked)
    config = json.loads((daemon.layout.bundle(container) / "config.json").read_text())
    sources = {item["destination"]: Path(item["source"]) for item in config["mounts"]}
    assert sources["/data"].parent == daemon.layout.staged_mounts(container)
    assert "/data/x" not in sources
    target = "/data/x/new" if kind == "directory" else "/data/x"
    assert b"Read-only file system" in pods.exec(container, "sh", "-c", f"echo > {target}").stderr


@WHERE
@pytest.mark.parametrize("kind", ["directory", "file"])
@pytest.mark.parametrize("made", ["made", "made/more"])
@pytest.mark.parametrize("where", ["/closed", "/etc/closed"])
@pytest.mark.parametrize("readonly", [True, False], ids=["read-only", "writable"])
def test_a_link_brings_no_mount_point_into_another_volume(
    pods: Pods, open_directory: Path, user: User, kind: str, made: str, where: str, readonly: bool
) -> None:
    """OCI runtimes make what something is mounted on, as root, wherever a link of a volume leads."""
    closed, outer, inner = (volume(open_directory) for _ in range(3))
    closed.chmod(0o755)
    (inner / "file").touch()
    (outer / "x").symlink_to(f"{where}/{made}")
    source = inner if kind == "directory" else inner / "file"
    mounts = [
        bind(closed, where, *mapped(user), readonly=readonly),
        bind(outer, "/data", *mapped(user)),
        bind(source, "/data/x", *mapped(user)),
    ]
    sandbox = pods.run(pod(options=namespaces(user=user)))
    with pytest.raises(FailedPrecondition, match=r"/data/x: nothing can be mounted there.*a link of the volume leads"):
        pods.create(sandbox, mounts=mounts)
    assert os.listdir(closed) == []


@WHERE
def test_links_of_a_volume_are_followed_to_what_is_there(pods: Pods, open_directory: Path, user: User) -> None:
    """In the volume, in another one, or in the image, as /var/run leads to /run in a directory of the machine."""
    outer, other, inner = (volume(open_directory) for _ in range(3))
    (inner / "mark").touch()
    for path in (outer / "there", other / "there"):
        path.mkdir()
    links = {"relative": "there", "absolute": "/other/there", "image": "/run", "chain": "./there/../absolute/."}
    for name, target in links.items():
        (outer / name).symlink_to(target)
    sandbox = pods.run(pod(options=namespaces(user=user)))
    ends = {"relative": "/data/there", "absolute": "/other/there", "image/x/y": "/run/x/y", "chain": "/other/there"}
    for name, end in ends.items():
        mounts = [
            bind(outer, "/data", *mapped(user)),
            bind(other, "/other", *mapped(user)),
            bind(inner, f"/data/{name}", *mapped(user)),
        ]
        container = pods.launch(sandbox, name=name.partition("/")[0], mounts=mounts)
        assert pods.exec(container, "test", "-e", f"{end}/mark").exit_code == 0, name
    assert sorted(os.listdir(outer)) == sorted([*links, "there"])
    assert os.listdir(other / "there") == []


@WHERE
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_mount_points_in_a_volume_are_the_pods(pods: Pods, open_directory: Path, user: User, kind: str) -> None:
    """They are made by the pod's root, who is root on disk; three volumes in each other."""
    outer, middle, inner = (volume(open_directory) for _ in range(3))
    (inner / "mark").write_text("inner")
    source, end = (inner, "/mark") if kind == "directory" else (inner / "mark", "")
    mounts = [
        bind(source, "/data/a/b/c", *mapped(user), readonly=True),
        bind(middle, "/data/a", *mapped(user)),
        bind(outer, "/data", *mapped(user)),
    ]
    container = pods.launch(pods.run(pod(options=namespaces(user=user))), mounts=mounts)
    assert pods.read(container, f"cat /data/a/b/c{end}") == "inner"
    assert b"Read-only" in pods.exec(container, "sh", "-c", f"echo > /data/a/b/c{end}").stderr
    assert pods.exec(container, "touch", "/data/new", "/data/a/new").exit_code == 0
    assert sorted(os.listdir(outer)) == ["a", "new"]
    assert sorted(os.listdir(middle)) == ["b", "new"]
    made = middle / "b" / "c"
    assert made.is_dir() == (kind == "directory")
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in (outer / "a", middle / "b", made)} == {(0, 0)}


@WHERE
@pytest.mark.parametrize("link", [".", "/data", "/other", "/run/../other/.", "/"])
def test_a_link_to_where_a_volume_is_mounted_is_followed_before_the_oci_runtime_comes(
    daemon: Daemon, pods: Pods, open_directory: Path, user: User, link: str
) -> None:
    """It gets the volume's own path: by the time that it follows the link, it may lead to a closed directory."""
    outer, other, inner = (volume(open_directory) for _ in range(3))
    (inner / "mark").touch()
    (outer / "x").symlink_to(link)
    below = "/data/x/other" if link == "/" else "/data/x"
    mounts = [
        bind(other, "/other", *mapped(user)),
        bind(outer, "/data", *mapped(user)),
        bind(inner, below, *mapped(user)),
    ]
    container = pods.launch(pods.run(pod(options=namespaces(user=user))), mounts=mounts)
    config = json.loads((daemon.layout.bundle(container) / "config.json").read_text())
    assert below not in {item["destination"] for item in config["mounts"]}
    end = "/data" if link in {".", "/data"} else "/other"
    assert pods.exec(container, "test", "-e", f"{end}/mark").exit_code == 0


def test_links_over_thousands_of_names_hold_nobody_up(pods: Pods, open_directory: Path) -> None:
    """For each name the kernel walks there from the top again: twenty such mounts kept a thread for minutes."""
    outer, inner = volume(open_directory), volume(open_directory)
    directory = os.open(outer, os.O_RDONLY)
    for _ in range(1900):
        os.mkdir("d", dir_fd=directory)
        below = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    for number in range(20):
        os.mkdir(str(number), dir_fd=directory)
    os.close(directory)
    (outer / "x").symlink_to("d/" * 1900)
    mounts = [bind(outer, "/data"), *(bind(inner, f"/data/x/{number}") for number in range(20))]
    sandbox = pods.run()
    try:
        with pytest.raises(InvalidArgument, match="characters of the paths to these"):
            pods.create(sandbox, mounts=mounts)
    finally:
        remove_tree(outer)
