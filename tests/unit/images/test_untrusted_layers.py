"""What a process made that was taken over by the layer it looked into: nothing of the host becomes part of a layer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from podkeep.base.errors import Internal
from podkeep.base.ids import Digest
from podkeep.images.layers.erofs import keeping, layout
from podkeep.images.snapshots import merging
from podkeep.images.snapshots.directories import DirectoriesDriver
from podkeep.images.snapshots.erofs import ErofsDriver
from podkeep.images.worker.layers import mark_opaque

LAYER = Digest(f"sha256:{'1' * 64}")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A directory of the host."""
    directory = tmp_path / "host"
    directory.mkdir()
    (directory / "secret").write_bytes(b"s" * 1024)
    return directory


def staged(driver: ErofsDriver) -> Path:
    """Return a directory with what is made of a file."""
    directory = driver.stage() / "1"
    directory.mkdir()
    content = iter((b"x" * 1000, b""))
    keeping.keep_file(str(directory), "name", lambda: next(content))
    return directory


def link_data(directory: Path, host: Path) -> None:
    (directory / "file").unlink()
    (directory / "file").symlink_to(host / "secret")


def link_metadata(directory: Path, host: Path) -> None:
    (directory / "meta.erofs").rename(host / "meta")
    (directory / "meta.erofs").symlink_to(host / "meta")


def make_device(directory: Path, _host: Path) -> None:
    (directory / "file").unlink()
    os.mknod(directory / "file", 0o600 | 0o010000)


def make_data_longer(directory: Path, _host: Path) -> None:
    os.truncate(directory / "file", 4096)


def make_metadata_longer(directory: Path, _host: Path) -> None:
    os.truncate(directory / "meta.erofs", 1 << 20)


def cut_metadata(directory: Path, _host: Path) -> None:
    os.truncate(directory / "meta.erofs", 512)


def remove_data(directory: Path, _host: Path) -> None:
    (directory / "file").unlink()


@pytest.mark.requirement("V61")
@pytest.mark.parametrize(
    "spoil",
    [link_data, link_metadata, make_device, make_data_longer, make_metadata_longer, cut_metadata, remove_data],
)
def test_an_image_of_something_else_is_refused(spoil: Callable[[Path, Path], None], tmp_path: Path, host: Path) -> None:
    driver = ErofsDriver(tmp_path / "root")
    directory = staged(driver)
    spoil(directory, host)
    with pytest.raises(Internal, match=f"layer {LAYER}: what was made of it is no layer: "):
        driver.commit(directory, LAYER)
    assert not driver.has(LAYER)
    assert (host / "secret").read_bytes() == b"s" * 1024


@pytest.mark.parametrize("name", ["file", "data"])
def test_an_image_of_a_layer_is_taken(name: str, tmp_path: Path) -> None:
    driver = ErofsDriver(tmp_path / "root")
    directory = staged(driver)
    (directory / "file").rename(directory / name)
    driver.commit(directory, LAYER)
    assert driver.has(LAYER)


def test_a_superblock_says_nothing_that_is_not_said_here() -> None:
    good = layout.superblock(root=1, inodes=3, blocks=8, metadata_block=3, data_bytes=1000)
    layout.check_superblock(good, image_bytes=4096, data_bytes=1024)
    # The root's number, how many inodes there are, and how many bytes fill the last block, are the image's to say.
    free = {*range(1024 + 14, 1024 + 24), *range(1024 + 64, 1024 + 80)}
    for place in set(range(len(good))) - free:
        changed = bytearray(good)
        changed[place] ^= 0x31
        with pytest.raises(ValueError, match="superblock"):
            layout.check_superblock(bytes(changed), image_bytes=4096, data_bytes=1024)
    for filler in (b"512", b"-1", b"0", b"024", b" 24", b"x", b"2\x004"):
        changed = bytearray(good)
        changed[1024 + 64 : 1024 + 80] = filler.ljust(16, b"\0")
        with pytest.raises(ValueError, match=r"superblock|invalid literal"):
            layout.check_superblock(bytes(changed), image_bytes=4096, data_bytes=1024)


@pytest.mark.requirement("V61")
def test_a_link_is_no_tree(tmp_path: Path, host: Path) -> None:
    driver = DirectoriesDriver(tmp_path / "root")
    tree = driver.stage() / "1"
    tree.symlink_to(host)
    with pytest.raises(Internal, match="no directory"):
        driver.commit(tree, LAYER)
    with pytest.raises(NotADirectoryError):
        mark_opaque(tree, [b"."])
    assert not driver.has(LAYER)
    assert os.listxattr(host) == []


@pytest.mark.requirement("V61")
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_record_that_is_no_file_is_refused(kind: str, tmp_path: Path, host: Path) -> None:
    driver = DirectoriesDriver(tmp_path / "root")
    tree = driver.stage() / "tree"
    tree.mkdir()
    record = tree.with_name("tree.headers")
    if kind == "link":
        record.symlink_to(host / "secret")
    else:
        os.mkfifo(record)
    with pytest.raises(Internal, match="no file"):
        driver.commit(tree, LAYER)
    assert not driver.has(LAYER)
    assert list((tmp_path / "root/headers").iterdir()) == []


@pytest.mark.requirement("V61")
def test_a_list_goes_into_a_file_of_its_own(tmp_path: Path, host: Path) -> None:
    (tmp_path / "tree.implied").symlink_to(host / "secret")
    with pytest.raises(FileExistsError):
        merging.write_list(tmp_path / "tree", [b"a"])
    assert (host / "secret").read_bytes() == b"s" * 1024
