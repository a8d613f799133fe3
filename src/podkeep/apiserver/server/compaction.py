"""Forgetting the past regularly: what was written longer ago than watches and lists may go back."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable

from podkeep.apiserver.storage.store import Store
from podkeep.base.errors import PodkeepError

log = logging.getLogger(__name__)

LOOKS = 5
"""How many times the revision is noted within the time that is kept."""
SHORT_S = 60.0
"""How long the past of events and leases is kept, at most."""
MOST_BYTES = 512 << 20
"""Of what objects were, which the disk has beside what they are: a client that changes a label of a large object again
and again makes some 100 MB of it in a second, and the file never gets smaller (``api.history_size_limit``)."""
MARKS = 8
"""How many times the revision is noted while that is written."""


async def compact_regularly(store: Store, seconds: float, most_bytes: int = MOST_BYTES) -> None:
    """Give up every state that is older than some seconds, of events and leases sooner, until cancelled.

    :param most_bytes: of what objects were; beyond them newer states are given up, too.
    """
    async with asyncio.TaskGroup() as group:  # if one fails, the others end as well: whoever runs this runs all again
        group.create_task(_regularly(store, store.compact, seconds))
        group.create_task(_short_lived(store, seconds))
        group.create_task(_bounded(store, seconds, most_bytes))


async def _bounded(store: Store, seconds: float, most_bytes: int) -> None:
    marks = deque([(0, 0), (store.revision, store.past_bytes)])
    warned = -math.inf
    while True:
        while store.past_bytes - marks[0][1] > most_bytes:
            marks.popleft()
        now = time.monotonic()
        if marks[0][0] > store.compacted("") and now - warned > seconds:
            # Clients are told that what they ask for is too old, and not why.
            warned = now
            what = f"objects had more than {most_bytes >> 20} MiB meanwhile (api.history_size_limit)"
            log.warning("watches and lists go back less than %g s (api.history): %s", seconds, what)
        await _compacted(store.compact, marks[0][0])
        await store.past_reaches(marks[-1][1] + most_bytes // MARKS)
        marks.append((store.revision, store.past_bytes))


async def _compacted(compact: Callable[[int], Awaitable[None]], revision: int) -> None:
    try:
        await compact(revision)
    except PodkeepError as error:
        log.warning("old revisions of the API's objects cannot be removed: %s", error)


async def _short_lived(store: Store, seconds: float) -> None:
    if seconds > SHORT_S:
        await _regularly(store, store.compact_short_lived, SHORT_S)


async def _regularly(store: Store, compact: Callable[[int], Awaitable[None]], seconds: float) -> None:
    noted: deque[int] = deque()
    while True:
        # Revisions have no times: that of so long ago is the one that was noted then.
        noted.append(store.revision)
        await asyncio.sleep(seconds / LOOKS)
        if len(noted) > LOOKS:
            await _compacted(compact, noted.popleft())
