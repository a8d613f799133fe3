"""Exits are noticed through pidfds: once, for real processes, and without leaving descriptors behind."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import subprocess
from collections.abc import Awaitable, Callable

from podkeep.base.ids import ContainerID
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId
from podkeep.runtime.lifecycle.monitor import ExitMonitor, Watched
from support.descriptors import open_descriptors

ONE = ContainerID("one")
TIMEOUT_S = 60.0


class Seen:
    """What a monitor reported."""

    def __init__(self) -> None:
        self.containers: list[ContainerID] = []
        self.something = asyncio.Event()

    def __call__(self, container: ContainerID) -> None:
        self.containers.append(container)
        self.something.set()

    async def wait(self) -> None:
        await asyncio.wait_for(self.something.wait(), TIMEOUT_S)


def start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def run(test: Callable[[Seen, ExitMonitor], Awaitable[None]], selector: selectors.BaseSelector | None = None) -> None:
    async def main() -> None:
        seen = Seen()
        monitor = ExitMonitor(seen)
        before = open_descriptors()
        try:
            await test(seen, monitor)
        finally:
            monitor.close()
        assert open_descriptors() == before

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(main())


def watched(monitor: subprocess.Popen[bytes], process: subprocess.Popen[bytes]) -> Watched:
    return Watched(monitor=procfs.identify(monitor.pid), process=procfs.identify(process.pid))


async def a_few_rounds() -> None:
    """Let the event loop handle what is ready, several times over."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_the_end_of_the_monitor_is_the_end_when_the_process_is_gone() -> None:
    async def test(seen: Seen, monitor: ExitMonitor) -> None:
        conmon, process = start(), start()
        monitor.watch(ONE, watched(conmon, process))
        end(process)
        await a_few_rounds()
        assert seen.containers == []
        end(conmon)
        await seen.wait()
        await a_few_rounds()
        assert seen.containers == [ONE]

    run(test)


def test_a_killed_monitor_leaves_the_process_to_be_watched() -> None:
    async def test(seen: Seen, monitor: ExitMonitor) -> None:
        conmon, process = start(), start()
        monitor.watch(ONE, watched(conmon, process))
        end(conmon)
        await a_few_rounds()
        assert seen.containers == []
        end(process)
        await seen.wait()
        assert seen.containers == [ONE]

    run(test)


def test_a_zombie_has_ended() -> None:
    async def test(seen: Seen, monitor: ExitMonitor) -> None:
        conmon, process = start(), start()
        both = watched(conmon, process)
        monitor.watch(ONE, both)
        end(process)
        conmon.kill()  # and not waited for: nobody reaps it
        await seen.wait()
        await a_few_rounds()
        assert seen.containers == [ONE]
        conmon.wait()

    run(test)


def test_what_ended_before_is_reported_soon_and_not_at_once() -> None:
    async def test(seen: Seen, monitor: ExitMonitor) -> None:
        conmon, process = start(), start()
        both = watched(conmon, process)
        end(conmon)
        end(process)
        monitor.watch(ONE, both)
        assert seen.containers == []
        await seen.wait()
        assert seen.containers == [ONE]

    run(test)


def test_a_reused_process_id_is_not_watched() -> None:
    async def test(seen: Seen, monitor: ExitMonitor) -> None:
        other = start()
        identity = procfs.identify(other.pid)
        earlier = ProcessId(pid=identity.pid, start_time=identity.start_time - 1)
        monitor.watch(ONE, Watched(monitor=earlier, process=earlier))
        await seen.wait()
        assert seen.containers == [ONE]
        assert other.poll() is None
        end(other)

    run(test)


def test_many_at_a_time_are_told_apart() -> None:
    async def test(seen: Seen, monitor: ExitMonitor) -> None:
        processes = {ContainerID(str(number)): start() for number in range(10)}
        for container, process in processes.items():
            monitor.watch(container, watched(process, process))
        for container in ("3", "7", "1"):
            seen.something.clear()
            end(processes[ContainerID(container)])
            await seen.wait()
        assert seen.containers == ["3", "7", "1"]
        monitor.close()
        for process in processes.values():
            end(process)
        await a_few_rounds()
        assert len(seen.containers) == 3

    run(test)


def test_what_was_forgotten_is_not_reported() -> None:
    async def test(seen: Seen, monitor: ExitMonitor) -> None:
        process = start()
        monitor.watch(ONE, watched(process, process))
        monitor.forget(ONE)
        monitor.forget(ONE)
        end(process)
        await a_few_rounds()
        assert seen.containers == []

    run(test)


class CountingSelector(selectors.DefaultSelector):
    """Counts what wakes an event loop."""

    events = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout)
        self.events += len(found)
        return found


def test_watching_wakes_nobody() -> None:
    """A stopped process is neither dead nor a reason to wake up."""
    selector = CountingSelector()

    async def test(seen: Seen, monitor: ExitMonitor) -> None:
        process = start()
        process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED)
        monitor.watch(ONE, watched(process, process))
        before = selector.events
        await a_few_rounds()
        assert selector.events == before
        assert seen.containers == []
        end(process)
        await seen.wait()
        assert selector.events > before

    run(test, selector)
