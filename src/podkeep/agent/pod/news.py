"""Waiting until something changes at the runtime, without asking all the time.

``News`` is what one worker waits on. ``OwnNews`` follows ``GetContainerEvents`` for one pod's sake; a runtime that does
not serve it, or whose stream ended, is polled meanwhile. An agent with many pods follows them once for all
(``agent.manager.runtime_events``).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

import msgspec

from podkeep.agent.pod.status.conditions import foreign
from podkeep.agent.pod.status.pod_status import end_of
from podkeep.api.pod import Pod
from podkeep.base.concurrency.clock import TimeOfDay
from podkeep.base.errors import PodkeepError, Unimplemented
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

log = logging.getLogger(__name__)

_POLL_S = 0.1
"""Pause between looks at a runtime that sends no events."""
_RECONNECT_S = 1.0
_LOOK_AGAIN_S = 10.0
"""Seconds after which one who follows the events looks again without one."""
_STEP_S = 0.001
"""By so much the clock may be set without that being noticed: no event comes so soon after a look that it is lost."""


def tells_anew(before: Pod, now: Pod) -> bool:
    """Return whether a newer object of a pod is news for its worker: most have nothing new but the status it told."""
    return _acted_on(before) != _acted_on(now)


def _acted_on(pod: Pod) -> tuple[object, ...]:
    metadata = msgspec.structs.replace(pod.metadata, resource_version="", managed_fields=())
    return metadata, pod.spec, end_of(pod.status.phase), foreign(pod)


class News:
    """Tells one waiter that it should look again.

    :param now: tells the time of day, which the runtime's events have.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._changed = asyncio.Event()
        self._time = TimeOfDay(_STEP_S, now)
        self._latest = 0.0
        self._seen = 0.0

    def wake(self, at: float = math.inf) -> None:
        """Make the waiter look again, unless it has seen what is told.

        :param at: of an event of the runtime, when it happened: nanoseconds of the runtime's clock.
        """
        # Once the clock was set, what happens now may look older than what was seen.
        if at > self._seen or self._time.was_set():
            self._latest = max(self._latest, at)
            self._changed.set()

    def known(self) -> None:
        """Forget what there was: the waiter is about to look, and sees it."""
        self._time.note()
        self._latest = 0.0
        self._changed.clear()

    def seen(self, at: float) -> None:
        """Forget events before ``at``: the waiter has looked at what the runtime said then; 0: it did not say when."""
        self._seen = at
        if self._latest < at and not self._time.was_set():
            self._changed.clear()

    async def watch(self) -> None:
        """Bring news until cancelled; nothing to do where somebody else calls :meth:`wake`."""

    async def wait(self, pause: float | None) -> None:
        """Return when there is news, or after ``pause`` seconds; ``None``: only then."""
        await self.pause(pause)

    async def pause(self, pause: float | None) -> None:
        """Return after ``pause`` seconds, or when there is news; not sooner, whoever brings news."""
        try:
            await asyncio.wait_for(self._changed.wait(), pause)
        except TimeoutError:
            return
        self._changed.clear()

    async def woken(self) -> None:
        """Return when there is news."""
        await self._changed.wait()
        self._changed.clear()


class OwnNews(News):
    """News from a stream of the runtime's events that this object follows itself."""

    def __init__(self, client: CriClient) -> None:
        super().__init__()
        self._client = client
        self._follows = False

    async def watch(self) -> None:
        """Follow the runtime's events until cancelled, or until it turns out to have none."""
        try:
            while True:
                await self._follow()
                await asyncio.sleep(_RECONNECT_S)
        except Unimplemented:
            return

    async def _follow(self) -> None:
        try:
            async for _ in self._client.runtime.GetContainerEvents(api_pb2.GetEventsRequest()):
                self._follows = True
                self.wake()
        except Unimplemented:
            raise
        except PodkeepError as error:
            # Whatever ended it, such as an event of another pod that is too large: a pod runs without events, too.
            log.debug("no events: %s", error.message)
        finally:
            # What happened since the stream ended was told to nobody: the waiter looks once, and polls from now on.
            self._follows = False
            self.wake()

    async def wait(self, pause: float | None) -> None:
        """Return when there is news, or after ``pause`` seconds; sooner if there is nobody to bring news."""
        longest = _LOOK_AGAIN_S if pause is None else min(pause, _LOOK_AGAIN_S)
        await self.pause(longest if self._follows else min(longest, _POLL_S))
