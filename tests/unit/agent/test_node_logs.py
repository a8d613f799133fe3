"""When a log is looked at again, and that the loop which looks goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from podkeep.agent.logs import node_logs
from podkeep.agent.logs.node_logs import NodeLogs, pause
from podkeep.base.concurrency import tasks
from podkeep.base.config import AgentConfig
from podkeep.cri.client import CriClient
from unit.cri.cri_endpoint import run

MI = 1 << 20


@pytest.mark.parametrize(
    ("size", "rate", "before", "expected"),
    [
        # As long as it does not grow, after twice the time, up to the interval.
        (0, 0.0, 0.25, 0.5),
        (5 * MI, 0.0, 8.0, 10.0),
        (5 * MI, -100.0, 1.0, 2.0),
        # One that grows, before it can be beyond its limit.
        (5 * MI, 1.0 * MI, 0.25, 2.5),
        (9 * MI, 1.0 * MI, 2.5, 0.5),
        (9 * MI, 100.0 * MI, 0.5, 0.1),
        (20 * MI, 1.0 * MI, 0.5, 0.1),
        (MI, 100.0, 0.25, 10.0),
    ],
)
def test_pause(size: int, rate: float, before: float, expected: float) -> None:
    assert pause(size, rate, before=before, max_size=10 * MI, interval=10.0) == pytest.approx(expected)


def test_the_loop_goes_on_after_an_unexpected_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked, faults = asyncio.Event(), [RuntimeError("a fault")]

    def fail_once(paths: Iterable[Path]) -> list[int]:
        if faults:
            raise faults.pop()
        loop.call_soon_threadsafe(looked.set)
        return [0 for _ in paths]

    monkeypatch.setattr(node_logs, "_sizes", fail_once)
    monkeypatch.setattr(tasks, "AGAIN_S", 0.01)

    async def work() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        logs = NodeLogs(CriClient("/nowhere"), AgentConfig())
        logs.watch("pod", [("1", tmp_path / "0.log")])
        await looked.wait()
        await logs.close()

    loop: asyncio.AbstractEventLoop
    run(work())
    assert "looking at logs failed unexpectedly; it is tried again" in caplog.text
