"""Forgetting the past regularly: what was written longer ago than watches and lists may go back."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from podkeep.apiserver.storage.store import Store
from podkeep.base.errors import PodkeepError

log = logging.getLogger(__name__)

LOOKS = 5
"""How many times the revision is noted within the time that is kept."""


async def compact_regularly(store: Store, seconds: float) -> None:
    """Give up every state that is older than some seconds, until cancelled."""
    noted: deque[int] = deque()
    while True:
        noted.append(store.revision)
        await asyncio.sleep(seconds / LOOKS)
        if len(noted) > LOOKS:
            try:
                await store.compact(noted.popleft())
            except PodkeepError as error:
                log.warning("the API's past is not given up: %s", error)
