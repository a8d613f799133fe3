"""Cutting lists into messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from podkeep.cri.v1 import api_pb2 as api
from podkeep.cri.v1.podkeep_pb2 import ImageDescription
from podkeep.runtime.rpc.chunks import CHUNK_BYTES, Fitting, in_chunks


def item(size: int) -> api.Container:
    return api.Container(id="x" * size)


def cut(items: Iterable[api.Container], **limits: int) -> list[list[api.Container]]:
    async def collect() -> list[list[api.Container]]:
        return [chunk async for chunk in in_chunks(items, **limits)]

    return asyncio.run(collect())


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 7), st.integers(1, 500))
@pytest.mark.slow
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


def _image(tags: int, digests: int) -> api.Image:
    return api.Image(id="i" * 71, repo_tags=["t" * 380] * tags, repo_digests=["d" * 327] * digests)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30), st.integers(2_000, 200_000))
@example(sizes=[(0, 2)] * 8 + [(1, 1)], most=6669)
@pytest.mark.slow
def test_images_fit_into_one_message_with_all_names_or_fewer(sizes: list[tuple[int, int]], most: int) -> None:
    images = [_image(*size) for size in sizes]
    fitting = Fitting("List", most=most)
    told = fitting.fit([api.Image.FromString(image.SerializeToString()) for image in images])
    assert api.ListImagesResponse(images=told).ByteSize() <= most
    assert [image.id for image in told] == [image.id for image in images[: len(told)]]
    if api.ListImagesResponse(images=images).ByteSize() + 8 * len(images) <= most:
        assert told == images
    if len(told) < len(images):  # not even one name of each kind has room
        assert all(len(image.repo_tags) <= 1 and len(image.repo_digests) <= 1 for image in told if image.ByteSize() > 0)


@pytest.mark.slow
def test_every_image_is_told_of_as_long_as_one_name_of_each_has_room(caplog: pytest.LogCaptureFixture) -> None:
    fitting = Fitting("ListImages")
    for _ in range(2):
        told = fitting.fit([_image(60_000, 1), *(_image(1, 1) for _ in range(1000))])
        assert len(told) == 1001
        assert 1 < len(told[0].repo_tags) < 60_000
        assert told[1:] == [_image(1, 1)] * 1000
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["ListImages"]


def test_descriptions_fit_likewise() -> None:
    (told,) = Fitting("Describe", most=10_000).fit([ImageDescription(id="i", repo_tags=["t" * 100] * 1000)])
    assert told.ByteSize() <= 10_000
    assert len(told.repo_tags) > 80
