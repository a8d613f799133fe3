"""Cutting lists into messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.rpc.chunks import CHUNK_BYTES, in_chunks


def item(size: int) -> api.Container:
    return api.Container(id="x" * size)


def cut(items: Iterable[api.Container], **limits: int) -> list[list[api.Container]]:
    async def collect() -> list[list[api.Container]]:
        return [chunk async for chunk in in_chunks(items, **limits)]

    return asyncio.run(collect())


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 7), st.integers(1, 500))
def test_nothing_is_lost_and_no_chunk_is_empty_or_too_large(sizes: list[int], most: int, most_bytes: int) -> None:
    items = [item(size) for size in sizes]
    chunks = cut(items, max_items=most, max_bytes=most_bytes)
    assert [one for chunk in chunks for one in chunk] == items
    for chunk in chunks:
        assert 0 < len(chunk) <= most
        assert len(chunk) == 1 or sum(one.ByteSize() for one in chunk) <= most_bytes


def test_large_items_are_alone() -> None:
    assert [len(chunk) for chunk in cut([item(1), item(2 * CHUNK_BYTES), item(1), item(1)])] == [1, 1, 2]


def test_others_are_served_between_two_chunks() -> None:
    async def run() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        chunks = [chunk async for chunk in in_chunks((item(1) for _ in range(10)), max_items=1)]
        task.cancel()
        return turns if len(chunks) == 10 else 0

    assert asyncio.run(run()) >= 9
