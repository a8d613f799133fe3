"""Which images are unused, and what their removal gives back. Pure; the caller says what is in use.

A pinned image stays (CRI: Image.pinned), and one that a container uses. An image is dangling when no tag leads to it
any more: another image got the tag.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from podkeep.base.ids import Digest, ImageID
from podkeep.images.formats.image import Image
from podkeep.images.store.catalog import disk_usage
from podkeep.images.store.database import LayerRecord


def choose(
    images: Iterable[Image], *, used: Collection[ImageID], tagged: bool, pulled_before: int | None = None
) -> list[Image]:
    """Return the images to be removed.

    :param used: images that containers have.
    :param tagged: whether images with a tag may go, too.
    :param pulled_before: nanoseconds since 1970; an image whose time is not known is old.
    """
    return [
        image
        for image in images
        if not image.pinned
        and image.id not in used
        and (tagged or not image.repo_tags)
        and (pulled_before is None or image.pulled_at < pulled_before)
    ]


def reclaimed(
    images: Mapping[ImageID, Image], layers: Mapping[Digest, LayerRecord], doomed: Collection[ImageID]
) -> int:
    """Return the bytes on disk of the layers that only ``doomed`` images have."""
    kept = {layer for image in images.values() if image.id not in doomed for layer in image.layers}
    before, _ = disk_usage(layers[layer] for layer in kept | only_in(images, doomed))
    after, _ = disk_usage(layers[layer] for layer in kept)
    return before - after


def only_in(images: Mapping[ImageID, Image], doomed: Collection[ImageID]) -> set[Digest]:
    """Return the layers that no image but ``doomed`` ones has."""
    kept = {layer for image in images.values() if image.id not in doomed for layer in image.layers}
    return {layer for image in images.values() if image.id in doomed for layer in image.layers} - kept


def counts(images: Iterable[Image]) -> Counter[Digest]:
    """Return how many images have each layer."""
    return Counter(layer for image in images for layer in set(image.layers))


def shared(image: Image, having: Mapping[Digest, int], layers: Mapping[Digest, LayerRecord]) -> int:
    """Return the bytes on disk of the layers that ``image`` has in common with other images.

    :param having: what :func:`counts` returns.
    """
    used, _ = disk_usage(layers[layer] for layer in dict.fromkeys(image.layers) if having[layer] > 1)
    return used
