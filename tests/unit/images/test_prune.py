from __future__ import annotations

from podkeep.base.ids import Digest, ImageID
from podkeep.images.formats.image import Image
from podkeep.images.store import prune
from podkeep.images.store.database import LayerRecord


def image(
    name: str, *, layers: str = "", tags: tuple[str, ...] = (), pinned: bool = False, pulled_at: int = 0
) -> Image:
    return Image(
        id=ImageID(name),
        repo_tags=tags,
        repo_digests=(f"r@{name}",),
        size=0,
        pinned=pinned,
        pulled_at=pulled_at,
        layers=tuple(Digest(layer) for layer in layers),
    )


def layer(name: str, size: int, **more: object) -> LayerRecord:
    return LayerRecord(id=Digest(name), bytes=size, inodes=1, boot_id="", **more)  # type: ignore[arg-type]


DANGLING = image("dangling", pulled_at=5)
TAGGED = image("tagged", tags=("r:1",), pulled_at=10)
USED = image("used", pulled_at=5)
PINNED = image("pinned", pinned=True)
ALL = [DANGLING, TAGGED, USED, PINNED]


def test_only_what_has_no_tag_goes_unless_more_is_wanted() -> None:
    assert prune.choose(ALL, used={USED.id}, tagged=False) == [DANGLING]
    assert prune.choose(ALL, used={USED.id}, tagged=True) == [DANGLING, TAGGED]
    assert prune.choose(ALL, used=set(), tagged=True) == [DANGLING, TAGGED, USED]


def test_what_came_later_stays() -> None:
    assert prune.choose(ALL, used=set(), tagged=True, pulled_before=10) == [DANGLING, USED]
    unknown = image("unknown")
    assert prune.choose([unknown], used=set(), tagged=True, pulled_before=1) == [unknown]


def test_shared_layers_give_nothing_back_until_the_last_image_goes() -> None:
    one, two = image("one", layers="ab"), image("two", layers="bc")
    images = {one.id: one, two.id: two}
    layers = {Digest(name): layer(name, size) for name, size in (("a", 1), ("b", 10), ("c", 100))}
    assert prune.reclaimed(images, layers, {one.id}) == 1
    assert prune.reclaimed(images, layers, {two.id}) == 100
    assert prune.reclaimed(images, layers, {one.id, two.id}) == 111
    assert prune.reclaimed(images, layers, set()) == 0
    assert prune.shared(one, prune.counts(images.values()), layers) == 10


def test_files_with_the_same_content_are_on_disk_once() -> None:
    one, two = image("one", layers="a"), image("two", layers="b")
    images = {one.id: one, two.id: two}
    twins = {
        Digest(name): layer(name, 110, kind="file", title=name, blob=Digest("blob"), data_bytes=100) for name in "ab"
    }
    assert prune.reclaimed(images, twins, {one.id}) == 10
    assert prune.reclaimed(images, twins, {one.id, two.id}) == 120
