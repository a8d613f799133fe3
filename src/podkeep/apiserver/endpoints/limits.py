"""How many requests are answered at a time (kube-apiserver: ``--max-requests-inflight`` and its sibling for writes)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from podkeep.apiserver.auth.user import MASTERS, User
from podkeep.apiserver.endpoints.request_info import READ_ONLY, RequestInfo
from podkeep.apiserver.meta.status import too_many_requests

MAX_READS = 400
MAX_WRITES = 200


@dataclass(slots=True)
class InFlight:
    """The requests that are being answered. Watches and streams are not counted, nor are administrators."""

    reads: int = MAX_READS
    writes: int = MAX_WRITES
    now: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})

    @contextmanager
    def counted(self, info: RequestInfo, user: User) -> Iterator[None]:
        """Count a request while it is answered.

        :raises StatusError: 429, if there are too many.
        """
        if info.is_long_running or MASTERS in user.groups:
            yield
            return
        is_write = info.resource_request and info.verb not in READ_ONLY
        if self.now[is_write] >= (self.writes if is_write else self.reads):
            raise too_many_requests()
        self.now[is_write] += 1
        try:
            yield
        finally:
            self.now[is_write] -= 1
