"""How many may begin at a time."""

from __future__ import annotations

import asyncio

import pytest

from podkeep.agent.probes.places import Places
from unit.cri.cri_endpoint import run


@pytest.mark.slow
def test_places_are_limited_and_those_that_hang_give_theirs_up() -> None:
    async def work() -> None:
        places, inside, forever = Places(2, share=2), [], asyncio.Event()

        async def hang(number: int) -> None:
            async with places.one("a"):
                inside.append(number)
                await forever.wait()

        hanging = [asyncio.create_task(hang(number)) for number in range(3)]
        await asyncio.sleep(0)
        assert inside == [0, 1]
        async with places.one("a"):
            assert inside == [0, 1, 2]
        forever.set()
        await asyncio.gather(*hanging)
        for _ in range(3):
            async with places.one("a"), places.one("b"):
                pass

    run(work())


def test_however_many_wait_for_one_pod_another_has_a_place_at_once() -> None:
    async def work() -> None:
        places, inside, forever = Places(3, share=2), [], asyncio.Event()

        async def probe(pod: str) -> None:
            async with places.one(pod):
                inside.append(pod)
                await forever.wait()

        many = [asyncio.create_task(probe("many")) for _ in range(1000)]
        await asyncio.sleep(0)
        other = asyncio.create_task(probe("other"))
        await asyncio.sleep(0)
        assert inside == ["many", "many", "other"]
        # Those that are given up while they wait hold nothing.
        for task in (*many, other):
            task.cancel()
        await asyncio.gather(*many, other, return_exceptions=True)
        async with places.one("many"), places.one("many"), places.one("other"):
            pass

    run(work())
