"""Requests that were answered with a URL and whose connection has not come yet.

A token has 256 random bits, works once and for a minute. What one pod's requests may keep is bounded; some of it is its
own, whatever others have, and what is above that comes out of one total. Used on the event loop only.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from podkeep.base.errors import ResourceExhausted

LIFETIME_S = 60.0
MAX_PENDING = 4096
"""Of all pods, above what is their own."""
MAX_BYTES = 64 << 20
"""Of all requests' commands, likewise."""
MAX_BYTES_OF_POD = 8 << 20
OWN_PENDING = 16
OWN_BYTES = 1 << 20
"""What a pod may have in any case: its own."""
TOKEN_BYTES = 32


class Kept(Protocol):
    """What is kept of a request: ``pod`` is whose it is, ``size`` how many bytes."""

    @property
    def pod(self) -> str: ...

    @property
    def size(self) -> int: ...


Request = TypeVar("Request", bound=Kept)


def above(counted: Counter[str], own: int) -> int:
    """Return how much of a total the pods have used up, of which each has ``own`` that is not counted."""
    return sum(count - own for count in counted.values() if count > own)


class PendingRequests(Generic[Request]):
    """Requests by token."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: dict[str, tuple[float, Request]] = {}
        self._numbers: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def numbers(self) -> Counter[str]:
        """How many are waiting, by pod."""
        self._expire()
        return self._numbers

    def add(self, request: Request) -> str:
        """Keep a request and return its token.

        :raises ResourceExhausted: if too many are waiting.
        """
        self._expire()
        hint = f"each is dropped after {LIFETIME_S:g} s; connect to the URLs"
        number, size = self._numbers[request.pod] + 1, self._bytes[request.pod] + request.size
        # What is its own a pod may have in any case, whatever others have.
        if (number > OWN_PENDING and above(self._numbers, OWN_PENDING) >= MAX_PENDING) or (
            size > OWN_BYTES and above(self._bytes, OWN_BYTES) + request.size > MAX_BYTES
        ):
            raise ResourceExhausted(f"{len(self)} streaming requests wait for their connection", hint=hint)
        if size > MAX_BYTES_OF_POD:
            waiting = f"the commands of {self._numbers[request.pod]} streaming requests"
            raise ResourceExhausted(
                f"{waiting} of pod sandbox {request.pod} take {self._bytes[request.pod]} bytes", hint=hint
            )
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._requests[token] = (self._clock() + LIFETIME_S, request)
        self._numbers[request.pod] += 1
        self._bytes[request.pod] += request.size
        return token

    def take(self, token: str) -> Request | None:
        """Return the request of a token and forget it; None if there is none, or it is too old."""
        self._expire()
        return self._remove(token) if token in self._requests else None

    def _expire(self) -> None:
        now = self._clock()
        # They expire in the order in which they came.
        while self._requests and (token := next(iter(self._requests))) and self._requests[token][0] <= now:
            self._remove(token)

    def _remove(self, token: str) -> Request:
        _, request = self._requests.pop(token)
        for counted, count in ((self._numbers, 1), (self._bytes, request.size)):
            counted[request.pod] -= count
            if not counted[request.pod]:
                del counted[request.pod]
        return request
