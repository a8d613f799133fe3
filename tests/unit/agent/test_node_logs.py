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
from podkeep.base.errors import FailedPrecondition
from podkeep.cri.client import CriClient
from support.exchanged import ExchangedLog
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


@pytest.mark.slow
def test_the_loop_goes_on_after_an_unexpected_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked, faults = asyncio.Event(), [RuntimeError("a fault")]

    def fail_once(paths: Iterable[Path]) -> list[int | FailedPrecondition]:
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


@pytest.mark.slow
@pytest.mark.parametrize("what", ["container", "pod"])
def test_a_link_on_the_way_to_a_log_is_told_once_and_others_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    log = ExchangedLog(tmp_path, large=200)
    log.exchange(what)
    (tmp_path / "small.log").write_bytes(b"x" * 50)
    looked: list[int | FailedPrecondition] = []
    sizes = node_logs._sizes

    def looks(paths: Iterable[Path]) -> list[int | FailedPrecondition]:
        found = sizes(paths)
        looked.extend(found)
        if 50 in looked and sum(size != 50 for size in looked) > 2:
            loop.call_soon_threadsafe(enough.set)
        return found

    monkeypatch.setattr(node_logs, "_sizes", looks)
    monkeypatch.setattr(node_logs, "_FIRST_S", 0.001)

    async def work() -> None:
        nonlocal loop, enough
        loop, enough = asyncio.get_running_loop(), asyncio.Event()
        logs = NodeLogs(CriClient("/nowhere"), AgentConfig(container_log_max_size="100"))
        logs.watch("pod", [("1", log.path), ("2", tmp_path / "small.log")])
        await enough.wait()
        await logs.close()

    loop: asyncio.AbstractEventLoop
    enough: asyncio.Event
    run(work())
    assert len(caplog.records) == 1
    assert "the log of container 1 is not rotated" in caplog.text
    assert log.is_other_untouched()
