"""Answers that are made and not read yet: how much of them the server keeps, for each user.

A list of pods is as large as these are, and a client may take as long as it likes to read one: 150 connections had the
agent take 740 MB for 5 MB of pods. Answers that are made in pieces, as logs are, keep nothing.
"""

from __future__ import annotations

from collections import Counter

from podkeep.http.messages import Refused, Request, Response, Upgrade

USER_BYTES = 16 << 20
"""Which the answers of one user may have together; the first one may be larger."""
_SMALL_BYTES = 64 << 10
"""An answer with no more does not count: connections are bounded."""


class Unread:
    """Counts the bytes of answers from when they are made until they are sent."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()

    def count(self, request: Request, user: str, answer: Response | Upgrade) -> None:
        """Count an answer until its request ends.

        :raises Refused: 429, if others of the user are not read yet, and it would be too much with them.
        """
        if not isinstance(answer, Response) or not isinstance(answer.body, bytes) or len(answer.body) <= _SMALL_BYTES:
            return
        size, kept = len(answer.body), self._bytes[user]
        if kept and kept + size > USER_BYTES:
            raise Refused(429, f"{kept} bytes of answers to {user} are not read yet", [("Retry-After", "1")])
        self._bytes[user] += size
        request.at_end.callback(self._end, user, size)

    def _end(self, user: str, size: int) -> None:
        self._bytes[user] -= size
        if not self._bytes[user]:
            del self._bytes[user]
