"""Forgetting the past regularly: what was written longer ago than watches and lists may go back."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from podkeep.apiserver.storage.store import Store
from podkeep.base.errors import PodkeepError

log = logging.getLogger(__name__)

LOOKS = 5
"""How many times the revision is noted within the time that is kept."""
SHORT_S = 60.0
"""How long the past of events and leases is kept, at most."""


async def compact_regularly(store: Store, seconds: float) -> None:
    """Give up every state that is older than some seconds, of events and leases sooner, until cancelled."""
    await asyncio.gather(_regularly(store, store.compact, seconds), _short_lived(store, seconds))


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
            try:
                await compact(noted.popleft())
            except PodkeepError as error:
                log.warning("old revisions of the API's objects cannot be removed: %s", error)
