"""How many may begin at a time."""

from __future__ import annotations

import asyncio

from podkeep.agent.probes.places import Places
from unit.cri.cri_endpoint import run


def test_places_are_limited_and_those_that_hang_give_theirs_up() -> None:
    async def work() -> None:
        places, inside, forever = Places(2), [], asyncio.Event()

        async def hang(number: int) -> None:
            async with places.one():
                inside.append(number)
                await forever.wait()

        hanging = [asyncio.create_task(hang(number)) for number in range(3)]
        await asyncio.sleep(0)
        assert inside == [0, 1]
        async with places.one():
            assert inside == [0, 1, 2]
        forever.set()
        await asyncio.gather(*hanging)
        for _ in range(3):
            async with places.one(), places.one():
                pass

    run(work())
