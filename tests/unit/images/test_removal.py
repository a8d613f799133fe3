"""Removing trees nobody can vouch for."""

from __future__ import annotations

import os
from pathlib import Path

from podkeep.images.removal import remove_path


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
    remove_path(tree)
    assert not tree.exists()
    assert (outside / "kept").read_text() == "x"
    remove_path(tree)
    (tmp_path / "alone").symlink_to(outside)
    remove_path(tmp_path / "alone")
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


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
    remove_path(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []
