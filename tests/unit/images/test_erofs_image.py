"""EROFS images that the kernel mounts: sizes and numbers at their limits, and bytes that depend on the tree alone."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podkeep.images.layers.erofs import image, layout
from podkeep.images.layers.erofs.tree import TooLarge, Tree
from podkeep.images.layers.rules import TreeError
from podkeep.images.layers.tarstream import Entry, EntryKind
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.erofs import mount_erofs
from support import erofs

LARGE = 5 << 30


def entry(kind: EntryKind, name: str, size: int = 0, link: str = "", xattrs: dict[str, bytes] | None = None) -> Entry:
    """Return an entry as the tar reader does."""
    made = Entry(kind, os.fsencode(name))
    made.mode, made.size, made.link, made.xattrs = 0o755, size, os.fsencode(link), xattrs or {}
    made.mtime = 1_700_000_000_123_456_789
    return made


def file(name: str, size: int = 0, **more: dict[str, bytes]) -> Entry:
    return entry(EntryKind.FILE, name, size, **more)  # type: ignore[arg-type]


def tree_of(entries: Iterable[tuple[Entry, int]], max_memory: int = 1 << 30) -> Tree:
    """Return a tree of entries with the places of their content."""
    tree = Tree(max_inodes=5_000_000, max_memory=max_memory)
    for each, position in entries:
        tree.apply(each, position)
    return tree


def written(tree: Tree, data_bytes: int) -> bytes:
    """Return the image of a tree."""
    output = io.BytesIO()
    image.write(tree, output, data_bytes=data_bytes)
    return output.getvalue()


@contextmanager
def mounted(tree: Tree, data: Path, at: Path) -> Iterator[Path]:
    """Mount the image of a tree over its data."""
    erofs.needed()
    metadata = at / "meta.erofs"
    metadata.write_bytes(written(tree, data.stat().st_size))
    top = at / "top"
    top.mkdir()
    fd = mount_erofs(metadata, [data])
    try:
        mounts.attach(fd, top)
    finally:
        os.close(fd)
    try:
        yield top
    finally:
        mounts.unmount(top)
        assert not mountinfo.is_mount_point(top)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data file of more than 5 GiB, most of it a hole, with marks in some places."""
    path = tmp_path / "data"
    with path.open("wb") as made:
        for position in (512, 512 + (4 << 30), 512 + LARGE - 4):
            made.seek(position)
            made.write(b"mark")
        made.truncate(512 + LARGE + 512)
    return path


def test_a_file_of_more_than_4_gib(data: Path, tmp_path: Path) -> None:
    with mounted(tree_of([(file("large", LARGE), 512)]), data, tmp_path) as top, (top / "large").open("rb") as large:
        assert (top / "large").stat().st_size == LARGE
        for position, found in ((0, b"mark\0\0\0\0"), (4 << 30, b"mark\0\0\0\0"), (LARGE - 8, b"\0\0\0\0mark")):
            large.seek(position)
            assert large.read(8) == found
        assert large.read() == b""


@pytest.mark.slow
def test_fifty_thousand_names(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"0123456789".ljust(512))
    names = [f"{number:x}{'y' * (number % 200)}" for number in range(50_000)]
    with mounted(tree_of([(file(name, len(name) % 10), 0) for name in names]), data, tmp_path) as top:
        assert sorted(os.listdir(top)) == sorted(names)
        assert (top.stat().st_nlink, top.stat().st_mtime_ns) == (2, 0)
        for name in names[::997]:
            assert (top / name).read_bytes() == b"0123456789"[: len(name) % 10]
        for missing in ("!", "0yy", "zzz", "y" * 255, "~"):
            assert not (top / missing).exists()


@pytest.mark.slow
def test_a_hundred_thousand_links(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"x".ljust(512))
    links = [(entry(EntryKind.HARDLINK, f"d{number % 7}/{number}", link="one"), 0) for number in range(100_000)]
    with mounted(tree_of([(file("one", 1), 0), *links]), data, tmp_path) as top:
        assert (top / "one").stat().st_nlink == 100_001
        assert (top / "d3/10").stat().st_ino == (top / "one").stat().st_ino
        assert (top / "d3/10").read_text() == "x"


def test_attributes_of_many_sizes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"x" * 512)
    sizes = (0, 1, 2, 3, 4, 380, 381, 500, 511, 512, 513, 1000, 4096, 30_000, 65_000)
    entries = [(file(f"f{size}", 5, xattrs={"user." + "n" * 249: b"v" * size, "user.b": b"w"}), 0) for size in sizes]
    small = [size for size in sizes if size < 3500]  # of a directory
    entries += [(entry(EntryKind.DIRECTORY, f"d{size}", xattrs={"user.a": b"v" * size}), 0) for size in small]
    entries += [(file(f"d{size}/below"), 0) for size in small]
    with mounted(tree_of(entries), data, tmp_path) as top:
        for size in sizes:
            assert os.getxattr(top / f"f{size}", "user." + "n" * 249) == b"v" * size
            assert sorted(os.listxattr(top / f"f{size}")) == sorted(["user." + "n" * 249, "user.b"])
            assert (top / f"f{size}").read_bytes() == b"x" * 5
        for size in small:
            assert os.getxattr(top / f"d{size}", "user.a") == b"v" * size
            assert os.listdir(top / f"d{size}") == ["below"]


def test_directories_as_deep_as_paths_can_be(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes(512))
    step = "/".join(["d"] * 2000)
    with mounted(tree_of([(file(step + "/x"), 0)]), data, tmp_path) as top:
        fd = os.open(top, os.O_PATH)
        try:
            os.stat(step + "/x", dir_fd=fd)
        finally:
            os.close(fd)
    with pytest.raises(TreeError, match=r"a path of \d+ bytes, longer than the 4095 of Linux"):
        tree_of([(file(step + "/" + "d/" * 100 + "x"), 0)])


@pytest.mark.parametrize("length", [1, 447, 448, 449, 512, 513, 4095])
def test_symbolic_links_of_every_length(length: int, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes(512))
    links = [(entry(EntryKind.SYMLINK, f"l{number}", link="x" * length), 0) for number in range(20)]
    with mounted(tree_of([(file("a"), 0), *links]), data, tmp_path) as top:
        assert {os.readlink(top / f"l{number}") for number in range(20)} == {"x" * length}


def test_symbolic_links_after_one_another_stay_within_blocks(tmp_path: Path) -> None:
    """Wherever the one before ended: the kernel refuses a target that goes on in the next block."""
    data = tmp_path / "data"
    data.write_bytes(b"")
    lengths = [length for first in range(1, 449) for length in (first, 41)]
    links = [(entry(EntryKind.SYMLINK, f"l{n}", link="x" * length), 0) for n, length in enumerate(lengths)]
    with mounted(tree_of(links), data, tmp_path) as top:
        assert [len(os.readlink(top / f"l{number}")) for number in range(len(links))] == lengths


def test_the_bytes_depend_on_the_tree_alone() -> None:
    entries = [file(f"d{number % 5}/{number}", number) for number in range(1000)]
    entries += [entry(EntryKind.DIRECTORY, "d9", xattrs={"user.b": b"1", "user.a": b"2"})]
    first, second = (written(tree_of([(each, 0) for each in entries]), 512) for _ in range(2))
    assert first == second
    assert len(first) % layout.BLOCK == 0
    swapped = [entry(EntryKind.DIRECTORY, "d9", xattrs={"user.a": b"2", "user.b": b"1"})]
    assert written(tree_of([(each, 0) for each in entries[:-1] + swapped]), 512) == first


def test_a_tree_that_needs_too_much_memory_is_given_up() -> None:
    with pytest.raises(TooLarge, match="need more than 100000 bytes of memory"):
        tree_of([(file(f"f{number}"), 0) for number in range(10_000)], max_memory=100_000)
    with pytest.raises(TooLarge):
        tree_of([(file("f", xattrs={"user.a": b"x" * 60_000}), 0) for _ in range(10)], max_memory=100_000)
    with pytest.raises(TooLarge):
        tree_of([(file("f", 1), 1 << 50)])
