"""Under which name an image was asked for."""

from __future__ import annotations

import pytest

from podkeep.base.ids import ImageID
from podkeep.images.formats.image import Image

ID = "sha256:" + "ab" * 32
DIGEST = "sha256:" + "1" * 64
TAGS = ("docker.io/library/web:1", "registry.example/team/web:2")
BY_DIGEST = f"registry.example/team/web@{DIGEST}"
MOVED = "registry.example/moved:1"


def image(tags: tuple[str, ...] = TAGS, digests: tuple[str, ...] = (BY_DIGEST,)) -> Image:
    return Image(id=ImageID(ID), repo_tags=tags, repo_digests=digests, size=1, pinned=False, layers=())


@pytest.mark.parametrize(
    ("specified", "requested", "name"),
    [
        ("registry.example/team/web:2", ID, "registry.example/team/web:2"),
        ("web:1", ID, "docker.io/library/web:1"),
        ("", "web:1", "docker.io/library/web:1"),
        (BY_DIGEST, ID, BY_DIGEST),
        ("", BY_DIGEST, BY_DIGEST),
        (f"registry.example/team/web:9@{DIGEST}", ID, BY_DIGEST),
        # The tag has moved since the pull, or was never this image's: it is what was asked for all the same.
        (MOVED, ID, MOVED),
        # IDs in any form name no name.
        ("", ID, TAGS[0]),
        (ID, ID, TAGS[0]),
        (ID[7:19], ID, TAGS[0]),
        ("", ID[7:19], TAGS[0]),
        ("UPPER/:x", ID, TAGS[0]),
    ],
)
def test_the_name_is_the_one_that_was_asked_for(specified: str, requested: str, name: str) -> None:
    assert image().name_for(specified, requested) == name


def test_without_a_name_the_digest_or_the_id_is_shown() -> None:
    assert image(tags=()).name_for("", ID) == BY_DIGEST
    assert image(tags=(), digests=()).name_for("", ID) == ID
