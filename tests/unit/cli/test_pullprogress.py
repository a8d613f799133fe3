from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from podkeep.cli.images.progress import each_once


def test_a_pull_that_several_wait_for_is_shown_once() -> None:
    said = []

    async def pull(answer: str) -> str:
        await asyncio.sleep(0)
        return answer

    async def show(image: str, operation: Awaitable[str]) -> str:
        said.append(image)
        return await operation

    async def pulls() -> list[str]:
        shown = each_once(show)
        both = await asyncio.gather(shown("a", pull("1")), shown("a", pull("2")), shown("b", pull("3")))
        return [*both, await shown("a", pull("4"))]

    assert asyncio.run(pulls()) == ["1", "2", "3", "4"]
    assert said == ["a", "b", "a"]
