"""The background of the statistics: samples for the rates, and walks of writable layers.

Owns: when that happens. One pass per period over everything that lives; nothing happens while no sandbox is there. The
passes run on threads, walks apart from samples, so that a large layer delays no sample. A new container wakes the
walker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from podkeep.base.errors import PodkeepError
from podkeep.runtime.model.records import SandboxState
from podkeep.runtime.model.state import State
from podkeep.runtime.stats.collector import Collector
from podkeep.runtime.stats.layers import Layers
from podkeep.runtime.stats.targets import ContainerTarget, SandboxTarget, Targets

log = logging.getLogger(__name__)

PERIOD_S = 10.0


class Sampler:
    """Start it in the event loop; close it there."""

    def __init__(
        self,
        state: State,
        targets: Targets,
        collector: Collector,
        layers: Layers,
        on_pass: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """``on_pass`` gets the seconds that each pass for the rates took."""
        self._state, self._targets, self._collector, self._layers = state, targets, collector, layers
        self._on_pass = on_pass
        self._wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin; the first pass comes at once."""

        async def pause() -> None:
            await asyncio.sleep(PERIOD_S)

        async def pause_or_wanted() -> None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), PERIOD_S)

        steps = ((self._sample, pause), (self._walk, pause_or_wanted), (self._walk_large, pause))
        self._tasks = [asyncio.create_task(_again_and_again(step, wait)) for step, wait in steps]

    def want_layers(self) -> None:
        """Have new layers walked soon instead of with the next pass."""
        self._wanted.set()

    async def close(self) -> None:
        """Stop; a walk that is going on ends within its directory."""
        self._layers.stop()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    def targets(self) -> tuple[list[SandboxTarget], list[ContainerTarget]]:
        """Return the sandboxes that are ready, and every container that a client is shown."""
        sandboxes = {item.id: item for item in self._state.sandboxes()}
        containers = [
            self._targets.container(item, sandboxes[item.sandbox_id])
            for item in self._state.containers()
            if item.status.state.shown and item.sandbox_id in sandboxes
        ]
        ready = [item for item in sandboxes.values() if item.status.state is SandboxState.READY]
        return [self._targets.sandbox(item, ()) for item in ready], containers

    async def _sample(self) -> None:
        sandboxes, containers = self.targets()
        started = time.monotonic()
        await asyncio.to_thread(self._collector.sample, sandboxes, containers)
        if sandboxes:
            self._on_pass(time.monotonic() - started)

    async def _walk(self) -> None:
        _, containers = self.targets()
        self._wanted.clear()
        self._layers.follow(containers)
        if containers:
            await asyncio.to_thread(self._layers.walk_due)

    async def _walk_large(self) -> None:
        await asyncio.to_thread(self._layers.walk_due, large=True)


async def _again_and_again(step: Callable[[], Awaitable[None]], pause: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await step()
        except PodkeepError as error:
            log.warning("statistics: %s", error)
        except Exception:  # the supervisor of its task: statistics must not end with one error
            log.exception("statistics failed unexpectedly")
        await pause()
