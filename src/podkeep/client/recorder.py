"""Recording events: whoever reports one goes on at once; a task writes them to the API, one after the other.

The queue, the retries and what is given up are client-go's (tools/record, event.go); how fast events are written is a
kubelet's (eventRecordQPS, eventBurst).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Mapping

from podkeep.base.errors import PodkeepError
from podkeep.client.client import Client
from podkeep.client.correlation import Correlator, Occurrence, RecordedEvent, Reference, body, change
from podkeep.client.errors import ApiError
from podkeep.client.resources import EVENTS

log = logging.getLogger(__name__)

QUEUE = 1000
"""Events that wait; more are dropped."""
TRIES = 12
RETRY_S = 10.0
MAX_MESSAGE = 8192
"""Characters of a message: what a program said may be in it."""


class Recorder:
    """Of one component on one host. ``run`` it in a task.

    :param rate: events a second; 0: no limit.
    :param burst: events at once.
    """

    def __init__(self, client: Client, component: str, host: str = "", *, rate: float = 50, burst: int = 100) -> None:
        self._client, self._component, self._host = client, component, host
        self._rate, self._burst = rate, burst
        self._tokens, self._filled = float(burst), time.monotonic()
        self._queue: deque[Occurrence] = deque()
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._correlator = Correlator()
        self.dropped = 0
        """Events for which there was no room."""

    def event(
        self, about: Reference, kind: str, reason: str, message: str, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Note that something happened; never waits.

        :param kind: ``Normal`` or ``Warning``.
        """
        log.debug("event: %s %s/%s: %s: %s", about.kind, about.namespace, about.name, reason, message)
        if len(self._queue) >= QUEUE:
            self.dropped += 1
            if self.dropped == 1:
                log.warning("the API takes no events: more than %d wait, and others are dropped", QUEUE)
            return
        text = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "..."
        given = tuple((annotations or {}).items())
        self._queue.append(
            Occurrence(about=about, type=kind, reason=reason, message=text, time=time.time(), annotations=given)
        )
        self._idle.clear()
        self._news.set()

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            while self._queue:
                event = self._correlator.take(self._queue.popleft())
                if event is not None:
                    await self._limited()
                    await self._record(event)
                    event.forget_text()
            self.dropped = 0
            self._idle.set()
            self._news.clear()
            if not self._queue:
                await self._news.wait()

    async def written(self, timeout: float) -> None:
        """Wait until everything is written that was reported, ``timeout`` seconds at most."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d events were not written", len(self._queue) + 1)

    async def _limited(self) -> None:
        if not self._rate:
            return
        now = time.monotonic()
        self._tokens = min(self._tokens + (now - self._filled) * self._rate, float(self._burst))
        self._filled = now
        if self._tokens < 1:
            await asyncio.sleep((1 - self._tokens) / self._rate)
        self._tokens -= 1

    async def _record(self, event: RecordedEvent) -> None:
        """Write an event; try again while the API cannot be reached."""
        for attempt in range(TRIES):
            if attempt:
                # The first wait is at random (client-go, tools/record): clients do not all return at once to a server
                # that restarted.
                await asyncio.sleep(RETRY_S * (random.random() if attempt == 1 else 1))
            try:
                await self._write(event)
                return
            except ApiError as error:
                # Whatever it refuses now it refuses the next time, as in a namespace that is being deleted.
                if error.code not in (429, 500, 503, 504):
                    log.warning("event %s was refused: %s", event.name, error)
                    return
                log.debug("event %s: %s", event.name, error)
            except PodkeepError as error:
                log.debug("event %s: %s", event.name, error)
        log.error("event %s could not be written in %d attempts", event.name, TRIES)

    async def _write(self, event: RecordedEvent) -> None:
        namespace = event.occurrence.about.namespace or "default"
        if event.exists:
            try:
                await self._client.patch(EVENTS, event.name, change(event), namespace)
                return
            except ApiError as error:
                # Events are deleted after an hour.
                if not error.not_found:
                    raise
        try:
            await self._client.create(EVENTS, body(event, self._component, self._host), namespace)
        except ApiError as error:
            # An attempt whose answer was lost may have written it.
            if not error.already_exists:
                raise
        event.exists = True
