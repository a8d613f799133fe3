"""Directories that no entry came for, and opaque roots, as real overlays of both drivers show them."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import OpenStore

from podkeep.images.formats.image import Image
from podkeep.images.store.store import ImageStore
from podkeep.kernel import mounts
from podkeep.kernel.overlay import overlay_readonly
from support.images import Member, directory, file, layers_layout, symlink


@pytest.fixture(params=["directories", "erofs"])
def snapshot_driver(request: pytest.FixtureRequest) -> str:
    """Each of them."""
    return str(request.param)


@contextmanager
def merged(store: ImageStore, image: Image) -> Iterator[Path]:
    """Mount the image as a volume is mounted."""
    fds = store.lowers(image, userns=None, at_least=2)
    try:
        with tempfile.TemporaryDirectory() as target:
            overlay_readonly(fds, Path(target))
            try:
                yield Path(target)
            finally:
                mounts.unmount(Path(target))
    finally:
        for fd in fds:
            os.close(fd)


def load(store: ImageStore, tmp_path: Path, *layers: list[Member]) -> Image:
    """Load an image of these layers, base first."""
    name = f"image{len(store.images())}"
    return asyncio.run(store.load(layers_layout(tmp_path / name, layers, name=f"{name}:latest").path))[0]


def about(path: Path) -> tuple[str, int, int]:
    """Return mode and owner."""
    status = path.lstat()
    return f"{status.st_mode & 0o7777:o}", status.st_uid, status.st_gid


def test_a_directory_without_an_entry_is_what_the_layers_beneath_say(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store()
    base = [
        directory("./", 0o751, uid=3),
        directory("tmp", 0o1777, mtime=1_000_000_000),
        directory("home", 0o711, gid=8),
        directory("home/app", 0o700, uid=1000, gid=1000, pax={"SCHILY.xattr.user.note": "kept"}),
    ]
    image = load(store, tmp_path, base, [file("tmp/x", "x"), file("home/app/deep/y", "y")], [file("home/app/z")])
    with merged(store, image) as top:
        assert about(top) == ("751", 3, 0)
        assert about(top / "tmp") == ("1777", 0, 0)
        assert (top / "tmp").stat().st_mtime == 1_000_000_000
        assert about(top / "home") == ("711", 0, 8)
        assert about(top / "home/app") == ("700", 1000, 1000)
        assert os.getxattr(top / "home/app", "user.note") == b"kept"
        assert about(top / "home/app/deep") == ("755", 0, 0)
        assert sorted(path.name for path in (top / "home/app").iterdir()) == ["deep", "z"]
        assert (top / "tmp/x").read_text() == "x"


def test_a_layer_serves_images_that_say_different_things(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store()
    shared = [file("data/file", "x")]
    modes = (0o700, 0o1777, 0o755)
    images = [load(store, tmp_path, [directory("data", mode, uid=mode)], shared) for mode in modes]
    images.append(load(store, tmp_path, shared))
    assert len({image.layers[-1] for image in images}) == 1
    for image, expected in zip(
        images, [("700", 448, 0), ("1777", 1023, 0), ("755", 493, 0), ("755", 0, 0)], strict=True
    ):
        with merged(store, image) as top:
            assert about(top / "data") == expected
            assert (top / "data/file").read_text() == "x"


def test_what_is_hidden_or_said_again_above_does_not_come_back(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store()
    names = ("gone", "file", "again", "opaque", "new", "link")
    base = [directory(name, 0o700, uid=5) for name in names] + [directory("opaque/in", 0o700, uid=5)]
    middle = [file(f"{name}/x") for name in names] + [file("opaque/in/x")]
    upper = [
        file(".wh.gone"),
        file("file", "f"),
        directory("again", 0o711),
        file("opaque/.wh..wh..opq"),
        file(".wh.new"),
        file("new/y"),
        symlink("link", "again"),
    ]
    with merged(store, load(store, tmp_path, base, middle, upper)) as top:
        assert sorted(path.name for path in top.iterdir()) == ["again", "file", "link", "new", "opaque"]
        assert (top / "file").read_text() == "f"
        assert about(top / "again") == ("711", 0, 0)
        assert about(top / "new") == ("755", 0, 0)
        assert list((top / "opaque").iterdir()) == []
        assert (top / "link").is_symlink()


def test_an_opaque_root_hides_all_that_is_beneath(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store()
    image = load(
        store, tmp_path, [file("old"), directory("d", 0o700)], [file(".wh..wh..opq"), file("d/new")], [file("top")]
    )
    with merged(store, image) as top:
        assert sorted(str(path.relative_to(top)) for path in top.rglob("*")) == ["d", "d/new", "top"]
        assert about(top / "d") == ("755", 0, 0)


def test_what_was_made_for_an_image_goes_with_it(tmp_path: Path, root: Path, open_store: OpenStore) -> None:
    store = open_store()
    image = load(store, tmp_path, [directory("tmp", 0o1777)], [file("tmp/x")])
    with merged(store, image):
        pass
    assert len(list((root / "parents").iterdir())) == 1
    store.close()
    (root / "parents/strange").mkdir()
    (root / "implied/strange").touch()
    store = open_store()
    assert len(list((root / "parents").iterdir())) == 1
    with merged(store, store.images()[0]) as top:
        assert about(top / "tmp") == ("1777", 0, 0)
    store.remove(image.id)
    assert list((root / "parents").iterdir()) == []
    assert list((root / "implied").iterdir()) == []


def test_an_image_with_all_its_entries_needs_no_further_layer(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store()
    image = load(
        store,
        tmp_path,
        [directory("./"), directory("tmp", 0o1777)],
        [directory("./"), directory("tmp", 0o1777), file("tmp/x")],
    )
    fds = store.lowers(image, userns=None)
    for fd in fds:
        os.close(fd)
    assert len(fds) == 2
