"""One stream of the runtime's events and one relist for all pods, which wake the workers that they concern.

An event lost is a delay: every ten seconds all sandboxes and containers are listed in two calls, and the workers of the
pods that look otherwise than before are woken (kubelet: evented and generic PLEG). A runtime that sends no events is
listed every second. Owns saying once that the runtime is away.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from podkeep.agent import metrics as counted
from podkeep.agent.convert import names
from podkeep.agent.metrics import AgentMetrics
from podkeep.agent.pod.news import News
from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.errors import PodkeepError, Unimplemented
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

log = logging.getLogger(__name__)

RELIST_S = 10.0
"""Between relists while events come."""
RELIST_WITHOUT_EVENTS_S = 1.0
RECONNECT_S = 0.2
UNHEALTHY_S = 180.0
"""Without a relist for so long, the node is not ready (kubelet, relistThreshold)."""
_LIST_TIMEOUT_S = 30.0

Picture = dict[str, frozenset[tuple[str, int]]]
"""For each pod, the IDs of its sandboxes and containers with their states."""


async def _nothing() -> None:
    return


class RuntimeEvents:
    """Wakes workers when something happens to their pod at the runtime.

    :param returned: called when a runtime answers again after it was away, before any worker is woken: it may be
        another one.
    """

    def __init__(
        self, client: CriClient, metrics: AgentMetrics, returned: Callable[[], Awaitable[None]] = _nothing
    ) -> None:
        self._client, self._metrics = client, metrics
        self._returned = returned
        self._news: dict[str, News] = {}
        self._picture: Picture = {}
        self._follows = False
        self._broken_off = False
        self._relist = asyncio.Event()
        self._answered = time.monotonic()
        self.away: PodkeepError | None = None
        """Why the runtime does not answer; ``None`` while it does."""

    def of(self, uid: str) -> News:
        """Return what the worker of a pod waits on."""
        return self._news.setdefault(uid, News())

    def forget(self, uid: str) -> None:
        """Note that pod ``uid`` has no worker any more."""
        self._news.pop(uid, None)

    def unhealthy(self) -> str:
        """Return why the runtime's answers cannot be relied on, in a kubelet's words; nothing if they can."""
        silent = time.monotonic() - self._answered
        if silent < UNHEALTHY_S:
            return ""
        return f"PLEG is not healthy: pleg was last seen active {silent:.0f}s ago; threshold is {UNHEALTHY_S:.0f}s"

    async def run(self) -> None:
        """Follow the runtime until cancelled."""
        async with Tasks("following the runtime's events") as tasks:
            tasks.keep(self._stream)
            while True:
                self._relist.clear()
                await self._look()
                try:
                    pause = RELIST_S if self._follows else RELIST_WITHOUT_EVENTS_S
                    await asyncio.wait_for(self._relist.wait(), pause)
                except TimeoutError:
                    continue

    async def _stream(self) -> None:
        pause = RECONNECT_S
        while True:
            began = time.monotonic()
            try:
                await self._follow()
            except Unimplemented:
                return
            except PodkeepError as error:
                self._metrics.add(counted.EVENT_STREAM_ERRORS)
                log.debug("no events: %s", error.message)
            finally:
                self._follows = False
            self._broken_off = True
            self._relist.set()
            lasted = time.monotonic() - began > RELIST_S
            # A runtime that ends each stream at once must not be asked five times a second.
            pause = RECONNECT_S if lasted else min(pause * 2, RELIST_WITHOUT_EVENTS_S)
            await asyncio.sleep(pause)

    async def _follow(self) -> None:
        events = self._client.runtime.GetContainerEvents(api_pb2.GetEventsRequest())
        async with aclosing(events):  # type: ignore[type-var]
            self._follows = True
            self._metrics.add(counted.EVENT_STREAM_STARTS)
            # What happened before the stream began is seen by a relist.
            self._relist.set()
            async for event in events:
                uid = event.pod_sandbox_status.metadata.uid
                if uid:
                    # A relist that finds the pod as the event has it is no news. Pods without a worker are not
                    # remembered: a runtime may send events of any number of them before it answers a relist.
                    if uid in self._news:
                        self._picture[uid] = pictured(event)
                    self.wake(uid, event.created_at)
                else:  # the sandbox is gone, or the event was too large
                    self._relist.set()

    async def _look(self) -> None:
        started = time.monotonic()
        try:
            picture = await self._list()
            # A stream that ended may be all that is seen of a runtime that was restarted between two lists.
            if self._broken_off or self.away is not None:
                await self._returned()
                self._broken_off = False
        except PodkeepError as error:
            if self.away is None:
                log.warning("%s; pods run on, trying again until there is an answer", error)
            self.away = error
            return
        self._measure(started)
        back, self.away = self.away is not None, None
        if back:
            log.warning("the runtime answers again")
        # After an outage each worker looks: it waits for the runtime whether or not its pod has changed.
        for uid in changed(self._picture, picture) if not back else [*self._news]:
            self.wake(uid)
        self._picture = picture

    def _measure(self, started: float) -> None:
        """Note that the runtime was listed, from ``started`` until now."""
        now = time.monotonic()
        self._metrics.observe(counted.PLEG_RELIST_DURATION, now - started)
        self._metrics.observe(counted.PLEG_RELIST_INTERVAL, now - self._answered)
        self._metrics.set(counted.PLEG_LAST_SEEN, time.time())
        self._answered = now

    async def _list(self) -> Picture:
        runtime, limit = self._client.runtime, min(_LIST_TIMEOUT_S, self._client.default_timeout)
        sandboxes = await runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest(), timeout=limit)
        containers = await runtime.ListContainers(api_pb2.ListContainersRequest(), timeout=limit)
        found: dict[str, set[tuple[str, int]]] = {}
        for sandbox in sandboxes.items:
            found.setdefault(sandbox.metadata.uid, set()).add((sandbox.id, sandbox.state))
        for container in containers.containers:
            uid = container.labels.get(names.POD_UID, "")
            found.setdefault(uid, set()).add((container.id, container.state))
        return {uid: frozenset(things) for uid, things in found.items()}

    def wake(self, uid: str, at: float = math.inf) -> None:
        """Make the worker of a pod look again; nothing happens if it has none.

        :param at: see :meth:`News.wake`.
        """
        news = self._news.get(uid)
        if news is not None:
            news.wake(at)


def pictured(event: api_pb2.ContainerEventResponse) -> frozenset[tuple[str, int]]:
    """Return a pod as a relist would show it right after the event, if it has one sandbox."""
    sandbox = event.pod_sandbox_status
    return frozenset(
        [(sandbox.id, int(sandbox.state)), *((item.id, int(item.state)) for item in event.containers_statuses)]
    )


def changed(before: Picture, now: Picture) -> list[str]:
    """Return the pods that look otherwise than before, those that came or went included."""
    return [uid for uid in {**before, **now} if before.get(uid) != now.get(uid)]
