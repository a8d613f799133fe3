"""Directories that no entry came for, and opaque roots, as real overlays of both drivers show them."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import OpenStore

from podkeep.base.config import ImagesConfig
from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.images.formats.image import Image
from podkeep.images.snapshots import merging
from podkeep.images.store.store import ImageStore
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.overlay import overlay_readonly
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


def test_below_a_directory_that_none_has_an_entry_for_another_is_as_its_entry_says(
    tmp_path: Path, open_store: OpenStore
) -> None:
    store = open_store()
    with merged(store, load(store, tmp_path, [directory("a/b", 0o700, uid=7)], [file("a/b/x")])) as top:
        assert about(top / "a") == ("755", 0, 0)
        assert about(top / "a/b") == ("700", 7, 0)


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


@contextmanager
def stands_still(store: ImageStore, image: Image) -> Iterator[None]:
    """Use the image for the first time on a thread, which stands still while it makes the tree on top."""
    making, go_on = threading.Event(), threading.Event()

    def watch(_frame: object, event: str, called: object) -> None:
        if event == "c_call" and called is os.utime:
            making.set()
            go_on.wait()

    def use() -> None:
        sys.setprofile(watch)
        with suppress(NotFound):
            for fd in store.lowers(image, userns=None):
                os.close(fd)

    thread = threading.Thread(target=use)
    thread.start()
    try:
        assert making.wait(60)
        yield
    finally:
        go_on.set()
        thread.join()


def within_patience(work: Callable[[], object]) -> bool:
    """Do something on a thread; return whether it came to its end."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_nobody_waits_for_the_tree_of_another_image(tmp_path: Path, root: Path, open_store: OpenStore) -> None:
    store = open_store()
    needs_tree = load(store, tmp_path, [directory("tmp", 0o1777)], [file("tmp/x")])
    other = load(store, tmp_path, [file("other")])

    def use_and_remove() -> None:
        store.reconfigure(ImagesConfig(), {})
        for fd in store.lowers(other, userns=None):
            os.close(fd)
        asyncio.run(store.withdraw([other]))
        store.collect()

    with stands_still(store, needs_tree):
        assert within_patience(use_and_remove)
    with merged(store, needs_tree) as top:
        assert about(top / "tmp") == ("1777", 0, 0)
    assert store.images() == [needs_tree]
    assert len(list((root / "parents").iterdir())) == 1


def test_an_image_that_is_removed_while_its_tree_is_made_leaves_nothing(
    tmp_path: Path, root: Path, open_store: OpenStore
) -> None:
    store = open_store()
    image = load(store, tmp_path, [directory("tmp", 0o1777)], [file("tmp/x")])
    with stands_still(store, image):
        assert within_patience(lambda: store.remove(image.id))
    assert [list((root / name).iterdir()) for name in ("parents", "implied", "layers", "erofs", "staging")] == [[]] * 5


def test_what_is_being_removed_is_found_and_used_by_nobody(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store()
    image = load(store, tmp_path, [file("x")])

    async def remove() -> None:
        withdrawing = asyncio.ensure_future(store.withdraw([image]))
        await asyncio.sleep(0)
        assert store.find(image.id) is store.find(image.repo_tags[0]) is store.find(image.id[7:17]) is None
        assert store.images() == []
        with pytest.raises(NotFound):
            store.lowers(image, userns=None)
        assert await withdrawing == [image]

    asyncio.run(remove())
    assert load(store, tmp_path, [file("x")]).id == store.images()[0].id


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("MAX_NAMES", r"more than 5 directories without an entry"),
        ("MAX_NAME_BYTES", r"more than 5 bytes of names"),
        ("MAX_STEPS", r"3 layers .* need more than 5 steps"),
    ],
)
def test_an_image_that_cannot_be_merged_is_refused_when_it_comes(
    limit: str, message: str, tmp_path: Path, root: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [[directory(f"d{number}", 0o700) for number in range(3)], [file("x")], [file(f"d{n}/x") for n in range(3)]]
    store = open_store()
    with monkeypatch.context() as lowered:
        lowered.setattr(merging, limit, 5)
        with pytest.raises(InvalidArgument, match=message):
            load(store, tmp_path, *layers)
        assert [list((root / name).iterdir()) for name in ("implied", "layers", "erofs", "staging")] == [[]] * 4
    image = load(store, tmp_path, *layers)
    with monkeypatch.context() as lowered:  # an older podkeep took it
        lowered.setattr(merging, limit, 5)
        with pytest.raises(InvalidArgument, match=message):
            store.lowers(image, userns=None)
    with merged(store, image) as top:
        assert about(top / "d2") == ("700", 0, 0)


def test_attributes_that_no_tree_on_disk_can_hold_are_refused_when_the_image_comes(
    tmp_path: Path, open_store: OpenStore
) -> None:
    store = open_store()

    def base(size: int) -> list[Member]:
        return [directory("d", 0o700, pax={"SCHILY.xattr.user.x": "v" * size})]

    for layer in (base(4000), [*base(3000), directory("d", 0o700, pax={"SCHILY.xattr.user.y": "v" * 600})]):
        with pytest.raises(InvalidArgument, match=r"attributes of a directory with \d+ bytes .*, more than 3584"):
            load(store, tmp_path, layer)
    with merged(store, load(store, tmp_path, base(3500), [file("d/x")])) as top:
        assert os.getxattr(top / "d", "user.x") == b"v" * 3500


def test_each_directory_is_looked_for_once_in_each_layer(tmp_path: Path, open_store: OpenStore) -> None:
    layers, count = 8, 50
    store = open_store()
    image = load(
        store,
        tmp_path,
        [directory("a"), directory("a/b"), *(directory(f"a/b/d{number}", 0o700) for number in range(count))],
        *([file(f"other{number}")] for number in range(layers)),
        [file(f"a/b/d{number}/x") for number in range(count)],
    )
    opened = 0

    def watch(_frame: object, event: str, called: object) -> None:
        nonlocal opened
        opened += event == "c_call" and called is os.open

    sys.setprofile(watch)
    try:
        fds = store.lowers(image, userns=None)
    finally:
        sys.setprofile(None)
    for fd in fds:
        os.close(fd)
    # Down and up in the two layers that have them, once to describe each; a layer without `a` is left at the first.
    assert opened < 6 * count + 20 * layers


def test_names_that_lead_out_of_a_layer_are_refused() -> None:
    for name in (b"..", b"a/../../b", b"/a", b"a//b", b"./a"):
        with pytest.raises(InvalidArgument, match="a layer has no directory"):
            merging.check([frozenset((name,))], 2)


def test_what_large_images_have_is_taken() -> None:
    names = [b"opt/app/node_modules/package-%d/lib/part-%d" % (number % 500, number) for number in range(80_000)]
    merging.check([frozenset(names), *(frozenset() for _ in range(39))], 40)
    merging.check([frozenset(names[:25_000]), *(frozenset() for _ in range(126))], 127)
