"""Cutting a list into messages, for the RPCs that stream lists.

Owns: how much goes into one message, and that other requests are served between two. The caller takes the list of
records at once, so that what it streams is one moment's; messages are made of them chunk by chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from google.protobuf.message import Message

CHUNK_BYTES = 1 << 20
"""A chunk of more than one item is no larger: far below what a message may hold (``cri.transport``)."""
CHUNK_ITEMS = 100
"""Items that are made in one go: about a millisecond of the event loop."""

Item = TypeVar("Item", bound=Message)


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
            await asyncio.sleep(0)
            chunk, size = [], 0
        chunk.append(item)
        size += item_size
    if chunk:
        yield chunk
