"""For how long a server that says "later" is believed, and how long to wait in between.

Who waits: ``Registry.exchange`` and ``Authorizer._token``, each request by itself; ``on_wait`` leads through the
worker's channel to the log (``images/store/fetching.py``). Other waits are in ``agent/backoff.py`` (pulls that failed)
and ``Registry.blob`` (connections that broke); the next server follows in ``fallback.py``, without one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeAlias

from podkeep.base.frozen import FrozenStruct
from podkeep.images.registry.http1 import Answer

TRIES = 4
"""Requests sent before a server that answers "later" is taken to be down."""
LATER = (408, 425, 429, 500, 502, 503, 504)
"""Statuses after which the same request may well succeed."""
_LONGEST_WAIT = 20.0
"""Seconds that a server may ask us to wait."""

OnWait: TypeAlias = Callable[[str, int, float], None]
"""Told before a request is sent again: what it asks for, the status of the answer, and the seconds until then."""


class RetryPolicy(FrozenStruct, kw_only=True):
    """How often a request is sent: ``tries`` times at most. Who has another place to ask does not wait: 1."""

    tries: int = TRIES
    on_wait: OnWait = lambda what, status, seconds: None

    def wait(self, answer: Answer, attempt: int, what: str) -> bool:
        """Wait if a request is to be sent again, and return whether it is; its answer is closed then.

        :param attempt: how many were sent, 1 for the first.
        """
        seconds = self.seconds_to_wait(answer, attempt)
        if seconds is None:
            return False
        answer.close()
        self.on_wait(what, answer.status, seconds)
        time.sleep(seconds)
        return True

    def seconds_to_wait(self, answer: Answer, attempt: int) -> float | None:
        """Return the seconds after which to send a request again, None for not at all."""
        if answer.status not in LATER or attempt >= self.tries:
            return None
        asked = answer.headers.get("Retry-After", "")
        seconds = float(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 9 else pause(attempt)
        # The random part keeps nodes that were told the same time from coming back together.
        return seconds + random.random() * 0.1 if seconds <= _LONGEST_WAIT else None


def pause(attempt: int) -> float:
    """Return seconds to wait after so many failures: longer each time, never the same for two nodes."""
    return 0.25 * float(1 << (attempt - 1)) * (0.5 + random.random() / 2)
