"""Cutting lists into messages, for the RPCs that stream them, and to what one message holds, for those that do not.

Owns: how much goes into one message, and that other requests are served between two. The caller takes the list of
records at once, so that what it streams is one moment's; messages are made of them chunk by chunk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, MutableSequence, Sequence
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from podkeep.cri import transport

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
"""A chunk of more than one item is no larger: far below what a message may hold (``cri.transport``)."""
CHUNK_ITEMS = 100
"""Items that are made in one go: about a millisecond of the event loop."""

LIST_BYTES = transport.MAX_MESSAGE_BYTES - (64 << 10)
"""Of a list in one message: what kubelets and crictl take (16 MiB), with room for what else is in it."""
FRAME = 8
"""What an item costs in a list beside its bytes: its field's number and its length, at most."""

Item = TypeVar("Item", bound=Message)
ImageMessage = TypeVar("ImageMessage", bound="Named")


async def in_chunks(
    items: Iterable[Item], *, max_items: int = CHUNK_ITEMS, max_bytes: int = CHUNK_BYTES
) -> AsyncIterator[list[Item]]:
    """Yield ``items`` in order, in lists that are never empty; no item, no list."""
    chunk: list[Item] = []
    size = 0
    for item in items:
        item_size = item.ByteSize()
        if chunk and (len(chunk) == max_items or size + item_size > max_bytes):
            yield chunk
            # Between two chunks everybody else has a turn of the event loop.
            await asyncio.sleep(0)
            chunk, size = [], 0
        chunk.append(item)
        size += item_size
    if chunk:
        yield chunk


class Named(Protocol):
    """A message about an image (``api.Image``, ``ImageDescription``)."""

    @property
    def repo_tags(self) -> MutableSequence[str]: ...

    @property
    def repo_digests(self) -> MutableSequence[str]: ...

    def ByteSize(self) -> int: ...  # noqa: N802 - protobuf's


class Fitting:
    """Keeps lists of images, in one message, below what a message may hold, however many names images have.

    Every image has a share; what has more names is told with fewer of them. The first time that happens is logged.
    """

    def __init__(self, rpc: str, *, most: int = LIST_BYTES) -> None:
        self._rpc = rpc
        self._most = most
        self._logged = False

    def fit(self, images: Sequence[ImageMessage]) -> list[ImageMessage]:
        """Return ``images`` with names left out so that they fit into one message, and without the last ones if that is
        not enough."""
        if self._holds(images):
            return list(images)
        names = sum(_leave_out_names(image, self._most // len(images) - FRAME) for image in images)
        if not self._holds(images):  # an image is more than its share with one name of each kind
            names += sum(_leave_out_names(image, 0) for image in images)
        result: list[ImageMessage] = []
        size = 0
        for image in images:
            size += image.ByteSize() + FRAME
            if size > self._most:
                break
            result.append(image)
        if not self._logged:
            self._logged = True
            log.warning(
                "%s: %d names and %d images are left out: a message holds %d bytes",
                self._rpc,
                names,
                len(images) - len(result),
                self._most,
            )
        return result

    def _holds(self, images: Sequence[ImageMessage]) -> bool:
        return sum(image.ByteSize() + FRAME for image in images) <= self._most


def _leave_out_names(image: Named, most: int) -> int:
    """Take names off an image until it has at most ``most`` bytes, or one tag and one digest; return how many."""
    excess = image.ByteSize() - most
    count = 0
    for names in (image.repo_digests, image.repo_tags):
        while excess > 0 and len(names) > 1:
            size = len(names.pop().encode())
            excess -= 1 + max((size.bit_length() + 6) // 7, 1) + size  # field, length, text (protobuf's encoding)
            count += 1
    return count
