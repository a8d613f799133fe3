"""Creations of containers in progress: which callers wait for each, and stopping the thread of one without callers.

Owns: joining equal requests, and the event that such a thread looks at while it does what may take long, which is to
copy what an image has at a VOLUME. Does not own: the creation (``containers.py``). Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from podkeep.base.concurrency.singleflight import SingleFlight
from podkeep.base.ids import ContainerID, SandboxID

UNWANTED_S = 60.0
"""For how long a creation goes on without a caller. A kubelet gives a request up after two minutes, comes back within
half a minute, and joins it: an image may have more at a VOLUME than can be copied in two minutes."""


class Creations:
    """The creations of one runtime, by the key of the container."""

    def __init__(self, *, unwanted_s: float = UNWANTED_S) -> None:
        self._unwanted_s = unwanted_s
        self._flights: SingleFlight[ContainerID] = SingleFlight()
        self._running: dict[str, tuple[SandboxID, threading.Event]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def do(
        self, key: str, sandbox: SandboxID, create: Callable[[threading.Event], Awaitable[ContainerID]]
    ) -> ContainerID:
        """Create a container, or join the creation of ``key`` that runs.

        :param create: gets what is set when the creation is given up.
        """
        self._forget_timer(key)
        try:
            return await self._flights.do(key, lambda: self._create(key, sandbox, create))
        except asyncio.CancelledError:
            self._forget_timer(key)
            if key in self._running:
                later = asyncio.get_running_loop().call_later(self._unwanted_s, self._give_up_unless_wanted, key)
                self._timers[key] = later
            raise

    def _forget_timer(self, key: str) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    async def _create(
        self, key: str, sandbox: SandboxID, create: Callable[[threading.Event], Awaitable[ContainerID]]
    ) -> ContainerID:
        given_up = threading.Event()
        self._running[key] = (sandbox, given_up)
        try:
            return await create(given_up)
        finally:
            del self._running[key]
            self._forget_timer(key)

    def _give_up_unless_wanted(self, key: str) -> None:
        if key in self._running and not self._flights.is_wanted(key):
            self._running[key][1].set()

    def give_up(self, sandbox: SandboxID | None = None) -> None:
        """Have the creations in a sandbox, or all, end soon, those that have not begun included."""
        for found, given_up in self._running.values():
            if sandbox in (None, found):
                given_up.set()
