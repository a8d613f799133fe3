"""Passing the progress of pulls on to whoever watches. A slow watcher misses steps; it never holds up a pull."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from podkeep.images.image import PullProgress

_QUEUE_LENGTH = 256


class PullWatch:
    """Hands every step of every pull to every watcher. Used on the event loop only."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Queue[PullProgress]] = set()

    def publish(self, step: PullProgress) -> None:
        """Hand a step to the watchers; one whose queue is full does not get it."""
        for queue in self._watchers:
            if not queue.full():
                queue.put_nowait(step)

    async def follow(self, image: str) -> AsyncIterator[PullProgress]:
        """Yield the steps of pulls of ``image`` (empty: of all) from now on, until the caller stops."""
        queue: asyncio.Queue[PullProgress] = asyncio.Queue(_QUEUE_LENGTH)
        self._watchers.add(queue)
        try:
            while True:
                step = await queue.get()
                if image in ("", step.image):
                    yield step
        finally:
            self._watchers.discard(queue)
