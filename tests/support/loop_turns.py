"""How often a function is called in each turn of the event loop: what keeps it busy, without a clock."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType, FunctionType


@asynccontextmanager
async def calls_in_turns(function: Callable[..., object]) -> AsyncIterator[list[int]]:
    """Count the calls of a function of Python; one number for each turn that began while this is open."""
    assert isinstance(function, FunctionType)
    calls, in_a_turn = 0, list[int]()

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code is function.__code__

    async def tick() -> None:
        nonlocal calls
        while True:
            await asyncio.sleep(0)
            in_a_turn.append(calls)
            calls = 0

    ticking = asyncio.create_task(tick())
    sys.setprofile(count)
    try:
        yield in_a_turn
    finally:
        sys.setprofile(None)
        ticking.cancel()
