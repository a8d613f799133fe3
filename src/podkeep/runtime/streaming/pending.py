"""Requests that were answered with a URL and whose connection has not come yet.

A token has 256 random bits, works once and for a minute. Used on the event loop only.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from podkeep.base.errors import ResourceExhausted

LIFETIME_S = 60.0
MAX_PENDING = 1000
TOKEN_BYTES = 32

Request = TypeVar("Request")


class PendingRequests(Generic[Request]):
    """Requests by token."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: dict[str, tuple[float, Request]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> str:
        """Keep a request and return its token.

        :raises ResourceExhausted: if too many are waiting.
        """
        now = self._clock()
        # They expire in the order in which they came.
        while self._requests and next(iter(self._requests.values()))[0] <= now:
            del self._requests[next(iter(self._requests))]
        if len(self._requests) >= MAX_PENDING:
            raise ResourceExhausted(
                f"{MAX_PENDING} streaming requests wait for their connection",
                hint=f"each is dropped after {LIFETIME_S:g} s; connect to the URLs",
            )
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._requests[token] = (now + LIFETIME_S, request)
        return token

    def take(self, token: str) -> Request | None:
        """Return the request of a token and forget it; None if there is none, or it is too old."""
        expires, request = self._requests.pop(token, (0.0, None))
        return request if expires > self._clock() else None
