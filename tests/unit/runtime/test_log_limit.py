"""The bound of logs that nobody rotates."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition
from podkeep.base.ids import ContainerID
from podkeep.runtime.bundle import container_log
from podkeep.runtime.bundle.container_log import LogFile
from podkeep.runtime.daemon import log_limit
from podkeep.runtime.daemon.log_limit import LogLimit
from support import unanswering
from support.held_threads import HeldThreads
from support.waiting import TIMEOUT_S
from unit.kernel.isolation import in_new_namespaces

LIMIT = 100
A, B = ContainerID("a"), ContainerID("b")


def logs(directory: Path) -> list[tuple[ContainerID, LogFile]]:
    return [(name, LogFile(directory=directory, path=Path(f"{name}.log"))) for name in (A, B)]


@pytest.fixture(autouse=True)
def _short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at sizes more often than once a second."""
    monkeypatch.setattr(log_limit, "_LOOK_S", 0.01)


def test_a_conmon_that_does_not_answer_keeps_no_other_log_from_its_bound(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("x" * LIMIT)
    (tmp_path / "b.log").write_text("x")

    async def scenario() -> None:
        asked = {A: asyncio.Event(), B: asyncio.Event()}

        async def reopen(container: str) -> None:
            asked[ContainerID(container)].set()
            if container == A:
                await asyncio.Event().wait()
            (tmp_path / f"{container}.log").touch()

        running = asyncio.create_task(LogLimit(lambda: logs(tmp_path), reopen, LIMIT).run())
        try:
            async with asyncio.timeout(30):
                await asked[A].wait()
                (tmp_path / "b.log").write_text("y" * LIMIT)
                await asked[B].wait()
        finally:
            running.cancel()
            await asyncio.wait({running})

    asyncio.run(scenario())
    # Nobody has opened it anew: it is where it was. conmon may do so later, and put another file there.
    (aside,) = tmp_path.glob("a.log.*")
    assert aside.samefile(tmp_path / "a.log")
    assert aside.read_text() == "x" * LIMIT
    assert [path.read_text() for path in tmp_path.glob("b.log.*")] == ["y" * LIMIT]


def test_what_an_agent_moved_aside_in_the_same_second_stays(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("new" * LIMIT)
    others = [tmp_path / f"a.log.{time.strftime('%Y%m%d-%H%M%S', time.gmtime(time.time() + n))}" for n in range(60)]
    for path in others:
        path.write_text("kept")

    async def scenario() -> None:
        done = asyncio.Event()

        async def reopen(container: str) -> None:
            (tmp_path / f"{container}.log").touch()
            done.set()

        running = asyncio.create_task(LogLimit(lambda: logs(tmp_path), reopen, LIMIT).run())
        async with asyncio.timeout(30):
            await done.wait()
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(scenario())
    assert {path.read_text() for path in others} == {"kept"}
    assert [path.read_text() for path in tmp_path.glob("a.log.*") if path not in others] == ["new" * LIMIT]


def test_what_ends_while_room_is_made_touches_no_other_directory(tmp_path: Path) -> None:
    """A descriptor that is closed is soon another directory's."""
    for name in ("logs", "innocent"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.log").write_text("x" * LIMIT)
        (tmp_path / name / "a.log.20250101-000000").write_text("x" * LIMIT)

    async def reopen(_container: str) -> None:
        return

    async def scenario() -> None:
        threads = HeldThreads()
        asyncio.get_running_loop().set_default_executor(threads)
        limit = LogLimit(list, reopen, LIMIT)
        moving = asyncio.ensure_future(limit._move_aside(*logs(tmp_path / "logs")[0]))
        await threads.step()  # the directory is opened
        await threads.submitted()
        moving.cancel()
        await asyncio.sleep(0)
        others = [os.open(tmp_path / "innocent", os.O_RDONLY | os.O_DIRECTORY) for _ in range(3)]
        await threads.step()
        await asyncio.wait({moving})
        for fd in others:
            os.close(fd)

    asyncio.run(scenario())
    assert len(list((tmp_path / "innocent").iterdir())) == 2


@in_new_namespaces()
def test_a_directory_that_does_not_answer_keeps_no_event_loop_from_others(tmp_path: Path) -> None:
    """A pod with a volume there may have mounted something in it."""
    (tmp_path / "pod").mkdir()
    hanging = unanswering.Hanging(tmp_path / "pod")
    last = threading.Timer(TIMEOUT_S, hanging.close)
    last.start()

    async def scenario() -> None:
        log = LogFile(directory=tmp_path / "pod", path=Path("a.log"))
        reopening = asyncio.create_task(container_log.reopen(log, None, tmp_path / "ctl"))
        await hanging.asked()
        last.cancel()
        hanging.close()
        with pytest.raises(FailedPrecondition, match="cannot be used"):
            await reopening

    try:
        asyncio.run(scenario())
    finally:
        last.cancel()
        hanging.close()
