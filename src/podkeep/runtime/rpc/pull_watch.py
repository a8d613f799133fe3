"""Passing the progress of pulls on to whoever watches.

A slow watcher never holds up a pull, and costs no more than a step for each phase of each blob: of those that it did
not fetch in time it gets the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from podkeep.images.formats.image import PullProgress


class _Watcher:
    """What one watcher has not fetched yet, oldest news first."""

    def __init__(self, image: str) -> None:
        self.image = image
        self.news: dict[tuple[str, str, str], PullProgress] = {}
        self.some = asyncio.Event()


class PullWatch:
    """Hands every step of every pull to every watcher. Used on the event loop only."""

    def __init__(self) -> None:
        self._watchers: set[_Watcher] = set()

    def publish(self, step: PullProgress) -> None:
        """Hand a step to the watchers that want it."""
        for watcher in self._watchers:
            if watcher.image in ("", step.image):
                watcher.news[step.image, step.digest, step.phase] = step
                watcher.some.set()

    async def follow(self, image: str) -> AsyncIterator[PullProgress]:
        """Yield the steps of pulls of ``image`` (empty: of all) from now on, until the caller stops."""
        watcher = _Watcher(image)
        self._watchers.add(watcher)
        try:
            while True:
                await watcher.some.wait()
                watcher.some.clear()
                # A new map for what comes while these are sent, which may take long.
                news, watcher.news = watcher.news, {}
                for step in news.values():
                    yield step
        finally:
            self._watchers.discard(watcher)
