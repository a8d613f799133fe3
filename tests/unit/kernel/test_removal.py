"""Removing trees nobody can vouch for."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernel.isolation import in_new_namespaces
from kernel.tables import tables_read
from podkeep.base.errors import FailedPrecondition
from podkeep.kernel import libc
from podkeep.kernel.files import openat, removal
from podkeep.kernel.files.removal import SMALL_DEPTH, SMALL_ENTRIES, remove_entry, remove_tree, unmount_below
from podkeep.kernel.mount import mountinfo, mounts
from support import unanswering
from support.filesystems import KINDS, make_subvolume
from support.loopdev import MIB, loop_device


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/.lifted-0").mkdir()
    (tree / "a/link").symlink_to(outside)
    (tree / "link").symlink_to(outside)
    os.mkfifo(tree / "a/b/pipe")
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "kept").read_text() == "x"
    remove_tree(tree)
    (tmp_path / "alone").symlink_to(outside)
    remove_tree(tmp_path / "alone")
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


@pytest.mark.slow
def test_depth_is_no_limit(tmp_path: Path) -> None:
    top = os.open(tmp_path, os.O_RDONLY)
    at = os.dup(top)
    for _ in range(5000):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    os.close(top)
    remove_tree(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.slow
def test_millions_of_directories_would_not_be_in_memory(tmp_path: Path, depth: int) -> None:
    above = tmp_path.joinpath("tree", *["d"] * (depth - 1))
    above.mkdir(parents=True)
    fd = os.open(above, os.O_RDONLY)
    for number in range(3000):
        os.mkdir(f"{number:0250}", dir_fd=fd)
    os.close(fd)
    tracemalloc.start()
    remove_tree(tmp_path / "tree")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not (tmp_path / "tree").exists()
    assert peak < 700_000


def _volume(tmp_path: Path) -> tuple[Path, Path]:
    """Return a directory with user data, and a tree in which it is mounted (a bind mount: the same file system)."""
    data = tmp_path / "data"
    (data / "inner").mkdir(parents=True)
    (data / "inner/precious").write_text("x")
    target = tmp_path / "tree/a/mounted"
    target.mkdir(parents=True)
    (tmp_path / "tree/file").write_text("x")
    mounts.bind(data, target)
    return data, tmp_path / "tree"


def set_flag(path: Path, flag: int) -> None:
    with openat.closing(os.open(path, os.O_RDONLY)) as fd:
        before = int.from_bytes(fcntl.ioctl(fd, 0x80086601, bytes(8)), sys.byteorder)  # FS_IOC_GETFLAGS
        fcntl.ioctl(fd, 0x40086602, (before | flag).to_bytes(8, sys.byteorder))  # FS_IOC_SETFLAGS


@pytest.mark.parametrize("flag", [0x10, 0x20], ids=["immutable", "append"])
def test_what_a_container_made_unchangeable_is_removed(tmp_path: Path, flag: int) -> None:
    """CAP_LINUX_IMMUTABLE lets a container forbid that its files and directories are changed or removed."""
    tree = tmp_path / "tree"
    (tree / "a/b/c").mkdir(parents=True)
    (tree / "a/file").write_text("x")
    (tree / "a/b/file").write_text("x")
    (tree / "a/link").symlink_to("file")
    for path in (tree / "a/file", tree / "a/b/c", tree / "a/b", tree / "a", tree):
        set_flag(path, flag)
    alone = tmp_path / "alone"
    alone.write_text("x")
    set_flag(alone, flag)
    remove_tree(tree)
    remove_tree(alone)
    assert list(tmp_path.iterdir()) == []


def _subvolumes(top: Path) -> None:
    for path in (top / "a", top / "a/b/c", top / "a/b/c/d"):
        path.parent.mkdir(parents=True, exist_ok=True)
        make_subvolume(path)
        (path / "deep/er").mkdir(parents=True)
        (path / "deep/er/file").write_text("x")
    for path in (top / "a", top / "a/b/c"):
        with openat.closing(openat.open_directory(path)) as fd:
            fcntl.ioctl(fd, 0x4008941A, struct.pack("=Q", 2))  # BTRFS_IOC_SUBVOL_SETFLAGS, BTRFS_SUBVOL_RDONLY


def _projects(top: Path) -> None:
    """Give directories project IDs to hand on, as every owner may (FS_IOC_FSSETXATTR, FS_XFLAG_PROJINHERIT)."""
    (top / "a/b/c").mkdir(parents=True)
    for number, path in enumerate((top, top / "a")):
        with openat.closing(openat.open_directory(path)) as fd:
            fcntl.ioctl(fd, 0x401C5820, struct.pack("=IIIII8s", 0x200, 0, 0, 7 + number, 0, b""))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fill"), [("btrfs", _subvolumes), ("xfs", _projects)])
@in_new_namespaces()
def test_what_cannot_be_renamed_is_removed(tmp_path: Path, kind: str, fill: Callable[[Path], None]) -> None:
    with contextmanager(KINDS[kind])(tmp_path) as disk:
        (disk / "tree").mkdir()
        fill(disk / "tree")
        remove_tree(disk / "tree")
        assert list(disk.iterdir()) == []


def test_what_is_not_remembered_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "_REMEMBERED", 3)
    monkeypatch.setattr(removal, "_AT_ONCE", 2)
    for name in "abc":
        for depth in range(1, 7):
            place = tmp_path.joinpath("tree", *[name] * depth)
            place.mkdir(parents=True)
            for beside in range(3):
                (place / f"{beside}/x/y").mkdir(parents=True)
                (place / f"{beside}/x/file").touch()
    remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_no_directory_is_read_again_for_each_that_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "_AT_ONCE", 50)
    for number in range(200):
        for beside in range(3):
            (tmp_path / f"tree/{number}/{beside}").mkdir(parents=True)
    with openat.closing(openat.open_directory(tmp_path)) as parent:
        removal.remove_entry(parent, "tree", most=4 * 800)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_moved_away_meanwhile_leads_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "elsewhere/kept").mkdir(parents=True)
    inner = tmp_path / "tree/a/b"
    inner.mkdir(parents=True)
    (inner / "file").touch()

    def moved() -> Iterator[None]:
        yield from (None, None)  # of a and b
        os.rename(inner, tmp_path / "elsewhere/b")
        yield None

    with (
        openat.closing(openat.open_directory(tmp_path / "tree")) as top,
        pytest.raises(FailedPrecondition, match="elsewhere/b was moved while it was being removed"),
    ):
        removal._empty(top, moved())
    assert (tmp_path / "elsewhere/kept").exists()


@in_new_namespaces()
def test_what_is_mounted_inside_stops_the_removal_before_it_starts(tmp_path: Path) -> None:
    data, tree = _volume(tmp_path)
    for path in (tree, tree / "a/mounted"):
        with pytest.raises(FailedPrecondition, match=f"{tree}/a/mounted is a mount point"):
            remove_tree(path)
    assert (data / "inner/precious").read_text() == "x"
    assert (tree / "file").exists()
    mounts.unmount(tree / "a/mounted")
    remove_tree(tree)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@in_new_namespaces()
def test_a_link_above_does_not_hide_the_mount(tmp_path: Path) -> None:
    data, tree = _volume(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(FailedPrecondition, match=f"{tree}/a/mounted is a mount point"):
        remove_tree(tmp_path / "link/tree")
    assert (data / "inner/precious").exists()


@in_new_namespaces()
def test_a_mount_that_no_table_shows_is_not_entered(tmp_path: Path) -> None:
    data, tree = _volume(tmp_path)
    parent = os.open(tmp_path, os.O_PATH)
    with pytest.raises(FailedPrecondition, match="tree/a/mounted is a mount point"):
        remove_entry(parent, tree.name)
    assert (data / "inner/precious").exists()
    assert libc.mount_id(parent) == libc.mount_id(os.open(data, os.O_PATH))


@in_new_namespaces()
def test_what_is_mounted_in_a_tree_is_asked_nothing_when_it_is_found(tmp_path: Path) -> None:
    """Between the look for mounts and the removal a container of another pod may mount a FUSE that does not answer."""
    (tmp_path / "tree/mounted").mkdir(parents=True)
    hanging = unanswering.Hanging(tmp_path / "tree/mounted")

    def refused() -> str:
        with openat.closing(openat.open_directory(tmp_path)) as parent:
            with pytest.raises(FailedPrecondition) as raised:
                remove_entry(parent, "tree")
            with openat.closing(openat.open_directory(tmp_path / "tree")) as above, pytest.raises(FailedPrecondition):
                remove_entry(above, "mounted")
        return raised.value.message

    assert f"{tmp_path}/tree/mounted is a mount point" in hanging.unasked(refused)


@pytest.mark.slow
@in_new_namespaces()
def test_what_is_mounted_is_asked_nothing_where_listings_do_not_say_what_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with loop_device(tmp_path, size=8 * MIB) as device:
        subprocess.run(["mkfs.ext4", "-q", "-O", "^filetype", device.path], check=True, capture_output=True)
        mounts.mount(device.path, tmp_path / "disk", fstype="ext4")
        try:
            tree = tmp_path / "disk/tree"
            (tree / "mounted").mkdir(parents=True)
            (tree / "file").touch()
            hanging = unanswering.Hanging(tree / "mounted")

            def refused() -> None:
                said = pytest.raises(FailedPrecondition, match="tree/mounted is a mount point")
                with openat.closing(openat.open_directory(tmp_path / "disk")) as parent, said:
                    remove_entry(parent, "tree")

            hanging.unasked(refused)
            assert not (tree / "file").exists()
            (tree / "mounted/inner").mkdir()
            remove_tree(tree)
            assert not tree.exists()
        finally:
            mounts.unmount(tmp_path / "disk")


def test_a_mount_that_refuses_root_is_not_removed(open_dir: Path, userns: int) -> None:
    tree, device = open_dir / "tree", open_dir / "fuse"
    (tree / "mounted").mkdir(parents=True)
    os.mknod(device, stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)
    device.chmod(0o666)
    said = pytest.raises(FailedPrecondition, match="tree/mounted is a mount point")
    with (
        unanswering.refusing(tree / "mounted", userns, device),
        openat.closing(os.open(tree, os.O_PATH)) as parent,
        said,
    ):
        remove_entry(parent, "mounted")


@in_new_namespaces()
def test_what_is_mounted_deeper_than_a_path_can_be_long_is_unmounted(tmp_path: Path) -> None:
    """A container gets there step by step, and mounts it right where it is."""
    tree = tmp_path / "tree"
    tree.mkdir()
    os.chdir(tree)
    for _ in range(30):
        os.mkdir("d" * 250)
        os.chdir("d" * 250)
    mounts.tmpfs(Path())
    os.chdir("/")
    assert len(mountinfo.under(tree)) == 1
    unmount_below(tree)
    assert mountinfo.under(tree) == []
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == []


@in_new_namespaces()
def test_a_file_that_is_a_mount_point_stays(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").touch()
    mounts.bind(tmp_path / "data", tmp_path / "tree/file")
    with pytest.raises(FailedPrecondition, match="tree/file is a mount point"):
        remove_tree(tmp_path / "tree")
    parent = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="busy"):
        remove_entry(parent, "tree")
    assert (tmp_path / "data").read_text() == "x"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("above", "beside"), [("a", SMALL_ENTRIES + 10), ("/".join("d" * SMALL_DEPTH), 0)], ids=["large", "deep"]
)
@in_new_namespaces()
def test_a_tree_too_large_to_look_at(tmp_path: Path, above: str, beside: int) -> None:
    target = tmp_path / "tree" / above / "z"
    target.mkdir(parents=True)
    for number in range(beside):
        (tmp_path / "tree" / str(number)).touch()
    mounts.tmpfs(target)
    (target / "kept").touch()
    with pytest.raises(FailedPrecondition, match=f"{target} is a mount point"):
        remove_tree(tmp_path / "tree")
    assert len(list((tmp_path / "tree").iterdir())) == beside + 1
    assert (target / "kept").exists()
    mounts.unmount(target)
    with tables_read() as read:
        remove_tree(tmp_path / "tree")
    assert len(read) == 1
    assert list(tmp_path.iterdir()) == []


@in_new_namespaces()
def test_the_table_of_mounts_is_not_read_for_a_small_tree(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/file").touch()
    (tree / "dangling").symlink_to("nowhere")
    (tree / "link").symlink_to("/proc")
    os.mkfifo(tree / "pipe")
    for mounted in (tree / "a/b", tree / "a/file"):
        mounts.bind(mounted, mounted)
        with tables_read() as read, pytest.raises(FailedPrecondition, match=f"{mounted} is a mount point"):
            remove_tree(tree)
        assert read == []
        mounts.unmount(mounted)
    with tables_read() as read:
        remove_tree(tree)
    assert read == []
    assert list(tmp_path.iterdir()) == []
