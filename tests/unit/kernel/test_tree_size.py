"""Sizes of trees that somebody else fills."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kernel.isolation import in_new_namespaces
from podkeep.kernel.files import openat, tree_size
from podkeep.kernel.files.removal import remove_tree
from podkeep.kernel.mount import mounts
from support import unanswering
from support.filesystems import KINDS, make_subvolume

BLOCK = 4096


def fill(root: Path) -> None:
    root.mkdir()
    (root / "dir").mkdir()
    (root / "dir/large").write_bytes(b"x" * 100_000)
    os.link(root / "dir/large", root / "same")
    (root / "link").symlink_to("/")
    (root / "sparse").touch()
    os.truncate(root / "sparse", 1 << 40)
    os.mkfifo(root / "pipe")
    (root / b"\xff\n".decode("utf-8", "surrogateescape")).write_text("odd name")


def test_it_counts_as_du_does(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    fill(root)
    size = tree_size.measure(str(root))
    assert size is not None
    du = subprocess.run(["du", "-s", "-x", "-B1", root], capture_output=True, text=True, check=True)
    assert size.used_bytes == int(du.stdout.split()[0])
    du = subprocess.run(["du", "-s", "-x", "--inodes", root], capture_output=True, text=True, check=True)
    assert size.inodes == int(du.stdout.split()[0])


def test_what_is_gone_has_no_size(tmp_path: Path) -> None:
    assert tree_size.measure(str(tmp_path / "missing")) is None
    (tmp_path / "file").touch()
    assert tree_size.measure(str(tmp_path / "file")) is None
    (tmp_path / "link").symlink_to(tmp_path)
    assert tree_size.measure(str(tmp_path / "link")) is None, "a link is not followed"


def test_it_stops_when_told_and_leaves_nothing_open(tmp_path: Path) -> None:
    fill(tmp_path / "tree")
    descriptors = len(os.listdir("/proc/self/fd"))
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) == 2

    assert tree_size.measure(str(tmp_path / "tree"), stop=stop) is None
    assert len(asked) == 2
    assert tree_size.measure(str(tmp_path / "tree")) is not None
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_tree_deeper_than_a_path_can_be_long(tmp_path: Path) -> None:
    root = tmp_path / "deep"
    root.mkdir()
    fd = os.open(root, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 200, dir_fd=fd)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    size = tree_size.measure(str(root))
    assert size is not None
    assert 20 <= size.inodes <= 41
    subprocess.run(["rm", "-rf", root], check=True)


def test_what_is_too_deep_to_be_counted_hides_nothing_else_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One directory more than a walk takes, and what was beside the first of them."""
    monkeypatch.setattr(openat, "MAX_DEPTH", 50)
    root = tmp_path / "tree"
    root.mkdir()
    fd = os.open(root, os.O_RDONLY)
    for _ in range(openat.MAX_DEPTH + 2):
        os.mkdir("d", dir_fd=fd)
        deeper = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(os.open("hidden", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)
    for name in ("a", "z"):  # whichever is listed first
        (root / name).mkdir()
        (root / name / "file").write_bytes(b"x" * 100_000)
    try:
        size = tree_size.measure(str(root))
    finally:
        remove_tree(root)
    assert size is not None
    assert size.hidden
    assert size.used_bytes > 200_000
    assert size.inodes > openat.MAX_DEPTH


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "most"),
    [("podkeep.kernel.files.tree_size.MAX_INODES", 50), ("podkeep.kernel.files.openat._MAX_WAITING", 4000)],
)
def test_what_comes_after_more_than_a_walk_takes_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    """Of files, or of directories beside each other: a pod could put anything after them."""
    for number in range(most):
        (tmp_path / f"{number}").mkdir()
    before = tree_size.measure(str(tmp_path))
    assert before is not None
    assert not before.hidden
    monkeypatch.setattr(limit, most // 2)
    size = tree_size.measure(str(tmp_path))
    assert size is not None
    assert size.hidden


def test_a_tree_that_takes_too_long_is_counted_as_far_as_it_was_seen(tmp_path: Path) -> None:
    fill(tmp_path / "tree")
    size = tree_size.measure(str(tmp_path / "tree"), stop=lambda: True, partly=True)
    assert size is not None
    assert size.inodes >= 1


@in_new_namespaces()
def test_other_file_systems_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    fill(root)
    before = tree_size.measure(str(root))
    mounts.tmpfs(root / "dir", "mode=755")
    (root / "dir/in-memory").write_bytes(b"x" * 1_000_000)
    after = tree_size.measure(str(root))
    assert before is not None
    assert after is not None
    assert after.used_bytes <= before.used_bytes
    assert after.inodes == before.inodes - 1, "not the directory; its file has another name"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["directory", "tmpfs", "hanging", "dead", "bind", "link", "file", "nothing"])
@in_new_namespaces()
def test_only_what_the_node_made_for_a_volume_is_measured(tmp_path: Path, what: str) -> None:
    """What a container has mounted over it (Bidirectional) is not even asked for its name."""
    path = tmp_path / "volume"
    if what == "file":
        path.touch()
    elif what == "link":
        path.symlink_to(tmp_path)
    elif what != "nothing":
        path.mkdir()
    if what == "tmpfs":
        mounts.tmpfs(path)
    if what == "bind":
        mounts.bind(tmp_path, path)
    with ExitStack() as closing:
        if what == "hanging":
            opened = unanswering.Hanging(path).unasked(lambda: tree_size.open_volume(path))
        else:
            if what == "dead":
                closing.enter_context(unanswering.dead(path))
            opened = tree_size.open_volume(path)
        if opened is not None:
            closing.callback(os.close, opened.fd)
        assert (opened is not None) == (what in {"directory", "tmpfs"})
        if opened is not None:
            assert opened.apart == (what == "tmpfs")
            assert tree_size.count(opened.fd) == tree_size.measure(str(path))


@pytest.mark.slow
@in_new_namespaces()
def test_what_is_in_subvolumes_is_counted(tmp_path: Path) -> None:
    """Everybody may make one where they may make a directory (btrfs); each has the same inode numbers."""
    with contextmanager(KINDS["btrfs"])(tmp_path) as disk:
        for name in ("one", "two"):
            make_subvolume(disk / name)
            (disk / name / "file").write_bytes(b"x" * 1_000_000)
            os.link(disk / name / "file", disk / name / "same")
        with openat.closing(openat.open_directory(disk)) as fd:
            openat.syncfs(fd)  # blocks that are not on the disk yet do not count
        size = tree_size.measure(str(disk))
    assert size is not None
    assert 2_000_000 <= size.used_bytes < 3_000_000
    assert size.inodes == 5
