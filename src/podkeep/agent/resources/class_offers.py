"""Asking the runtime which classes it offers (CRI: Status), not more often than needed.

Owns the last answer and its age. Does not own what follows from it (``class_resources.py``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

from podkeep.agent.resources import class_messages as class_resources
from podkeep.agent.resources.class_resources import Offers
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

MAX_AGE_S = 10.0
"""Seconds for which an answer is good enough to decide about the pod's QoS class, which nothing depends on."""


class ClassOffers:
    """What one runtime offers."""

    def __init__(self, client: CriClient) -> None:
        self._client = client
        self._last = Offers()
        self._until = 0.0

    def immutable(self) -> Mapping[Literal["pod", "container"], frozenset[str]]:
        """Return the types whose class cannot be changed, as the last answer had them."""
        last = self._last
        return {
            "pod": frozenset(name for name, offer in last.pod.items() if offer.immutable),
            "container": frozenset(name for name, offer in last.container.items() if offer.immutable),
        }

    async def read(self, *, fresh: bool = False) -> Offers:
        """Return what the runtime offers.

        :param fresh: ask it in any case: a class may have come with a reload a moment ago.
        :raises PodkeepError: if it does not answer.
        """
        if fresh or time.monotonic() >= self._until:
            answer = await self._client.runtime.Status(api_pb2.StatusRequest())
            self._last = class_resources.offers(answer)
            self._until = time.monotonic() + MAX_AGE_S
        return self._last
