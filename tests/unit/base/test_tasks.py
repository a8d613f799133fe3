"""Background tasks: what is to go on goes on."""

from __future__ import annotations

import asyncio

import pytest

from podkeep.base.concurrency import tasks
from podkeep.base.concurrency.tasks import Tasks


def test_a_loop_that_fails_unexpectedly_is_run_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "AGAIN_S", 0.0)
    runs = []

    async def loop() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise ZeroDivisionError

    async def main() -> None:
        async with Tasks("looking") as owner:
            await owner.keep(loop)

    asyncio.run(main())
    assert runs == [0, 1, 2]
    assert [record.getMessage() for record in caplog.records] == ["looking failed unexpectedly; it is tried again"] * 2


def test_a_loop_that_is_kept_ends_with_its_owner() -> None:
    async def main() -> bool:
        async with Tasks("looking") as owner:
            kept = owner.keep(asyncio.Event().wait)  # type: ignore[arg-type]  # returns a bool
            await asyncio.sleep(0)
        return kept.cancelled()

    assert asyncio.run(main())
