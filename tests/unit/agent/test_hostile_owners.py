"""Giving a volume to a group or to root of the pod, when its content is an attacker's: many files, links, changes."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podkeep.agent.volumes import ownership
from podkeep.agent.volumes.ownership import Owners
from podkeep.kernel.files import openat
from podkeep.kernel.namespace.idmap import block
from support import unanswering
from support.beside import beside, exchanging
from unit.kernel.isolation import in_new_namespaces

FIRST = 100000
MAPPED = Owners(id_map=block(FIRST, 65536))
OWNERS = pytest.mark.parametrize(
    "owners", [Owners(group=7), MAPPED, Owners(id_map=block(FIRST, 65536), group=7)], ids=["group", "mapping", "both"]
)
_PROGRAM = Path(__file__).with_name("programs") / "changing_tree.py"


@contextmanager
def changing(root: Path, victim: Path) -> Iterator[None]:
    """Have another process change a tree as often as it can: what it has of links leads to ``victim``."""
    with beside(_PROGRAM, root, victim):
        yield


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory of the node that no volume has."""
    path = tmp_path / "victim"
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "0").touch(mode=0o600)
    (path / "0").touch(mode=0o600)
    return path


def facts(path: Path) -> dict[str, tuple[int, int, int]]:
    found = {str(item): item.lstat() for item in (path, *path.rglob("*"))}
    return {name: (status.st_uid, status.st_gid, status.st_mode) for name, status in found.items()}


@pytest.mark.slow
@OWNERS
def test_a_tree_that_changes_while_it_is_given_away_leads_nowhere_else(
    tmp_path: Path, victim: Path, owners: Owners
) -> None:
    """Links that come and go, a directory that is a link now and then: nothing fails, and nothing outside changes."""
    root, before = tmp_path / "root", facts(victim)
    (root / "tree").mkdir(parents=True)
    for number in range(200):
        (root / "tree" / str(number)).touch()
    with changing(root, victim):
        for _ in range(300):
            ownership.give(root, owners, writable=True)
    assert facts(victim) == before


@pytest.mark.slow
@pytest.mark.parametrize("what", ["file", "directory"])
def test_root_of_the_pod_is_never_given_what_a_link_leads_to(tmp_path: Path, victim: Path, what: str) -> None:
    root, before = tmp_path / "root", facts(victim)
    (root / "directory").mkdir(parents=True)
    (root / "file").touch()
    (root / "link").symlink_to(victim / "0" if what == "file" else victim)
    with exchanging(root / what, root / "link"):
        for _ in range(1000):
            ownership.give(root, MAPPED, writable=True)
    assert facts(victim) == before


@pytest.mark.slow
def test_very_many_files_links_and_pipes_are_all_given_away(tmp_path: Path) -> None:
    """100,000 of them, some with many names; as many descriptors are open afterwards as before."""
    for directory in range(100):
        inner = tmp_path / str(directory)
        inner.mkdir()
        fd = os.open(inner, os.O_RDONLY)
        for number in range(997):
            os.mknod(str(number), stat.S_IFREG | 0o600, dir_fd=fd)
        os.symlink("/etc", "link", dir_fd=fd)
        os.mkfifo("pipe", dir_fd=fd)
        os.link("0", "name", src_dir_fd=fd, dst_dir_fd=fd)
        os.close(fd)
    before = len(os.listdir("/proc/self/fd"))
    ownership.give(tmp_path, Owners(id_map=block(FIRST, 65536), group=7), writable=True)
    assert len(os.listdir("/proc/self/fd")) == before
    given = {(status[0], status[1]) for status in facts(tmp_path).values()}
    assert given == {(FIRST, 7)}
    assert (Path("/etc").stat().st_uid, Path("/etc").stat().st_gid) == (0, 0)


def owner_and_mode(path: Path) -> tuple[int, int, int]:
    """Not the time at which it was read: that changes with a walk, a moment after it was made."""
    status = path.stat()
    return status.st_uid, status.st_gid, status.st_mode


@OWNERS
def test_what_a_pod_made_unchangeable_keeps_nobody_from_the_volume(
    tmp_path: Path, owners: Owners, caplog: pytest.LogCaptureFixture
) -> None:
    """As a kubelet, which logs what it cannot change (volume_linux.go, changeFilePermission)."""
    root = tmp_path / "root"
    (root / "a/b").mkdir(parents=True)
    for name in ("a/b/file", "a/file", "file", "z"):
        (root / name).touch(mode=0o600)
    fixed = [root / "a", root / "file"]
    for path in fixed:
        subprocess.run(["chattr", "+i", path], check=True)
    try:
        before = [owner_and_mode(path) for path in fixed]
        ownership.give(root, owners, writable=True)
        assert [owner_and_mode(path) for path in fixed] == before
        for name in ("a/b", "a/b/file", "a/file", "z"):
            status = (root / name).stat()
            uid, gid = owners.root if owners.id_map is not None else (0, 0)
            assert (status.st_uid, status.st_gid) == (uid, gid if owners.group is None else owners.group), name
    finally:
        for path in fixed:
            subprocess.run(["chattr", "-i", path], check=True)
    (said,) = caplog.messages
    assert "2 files or directories of a volume keep their owners" in said
    assert "Operation not permitted" in said


@OWNERS
def test_more_than_a_walk_takes_keeps_nobody_from_the_volume(
    tmp_path: Path, owners: Owners, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories inside each other, and so many of them beside each other: one pod with the volume may make them."""
    monkeypatch.setattr(openat, "MAX_DEPTH", 3)
    root = tmp_path / "root"
    for name in ("a/b/c/d/e", "z"):
        (root / name).mkdir(parents=True)
    ownership.give(root, owners, writable=True)
    monkeypatch.setattr(openat, "_MAX_WAITING", 100)
    ownership.give(root, owners, writable=True)
    uid, gid = owners.root if owners.id_map is not None else (0, 0)
    for name in ("a/b/c/d", "z"):
        status = (root / name).stat()
        assert (status.st_uid, status.st_gid) == (uid, gid if owners.group is None else owners.group), name
    deep, wide = caplog.messages
    assert "too many directories inside each other" in deep
    assert "too many directories beside each other" in wide


@in_new_namespaces()
def test_what_a_pod_has_mounted_in_a_volume_keeps_nobody_from_it(tmp_path: Path) -> None:
    """A FUSE that a container mounts in a Bidirectional volume may not answer, and stays when its server has ended."""
    for name in ("hanging", "dead", "own"):
        (tmp_path / name).mkdir()
    hanging = unanswering.Hanging(tmp_path / "hanging")
    with unanswering.dead(tmp_path / "dead"):
        hanging.unasked(lambda: ownership.give(tmp_path, Owners(group=7), writable=True))
    assert [(tmp_path / name).stat().st_gid for name in ("hanging", "dead", "own")] == [0, 0, 7]
