"""How many requests are answered at a time (kube-apiserver: ``--max-requests-inflight`` and its sibling for writes).

One user gets at most half of them, so that one client that does not stop leaves room for the others (what
kube-apiserver has priority and fairness for); service accounts of a namespace are one user here, but for those of
``kube-system``. A quarter is for nodes and for who else keeps a cluster going. As there, a request that takes more of
the server takes more seats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from podkeep.apiserver.auth.user import MASTERS, User, is_of_the_cluster, share_of
from podkeep.apiserver.meta.status import StatusError, too_many_requests
from podkeep.apiserver.requests.request_info import READ_ONLY, RequestInfo
from podkeep.base.concurrency.turns import Turns
from podkeep.base.frozen import FrozenStruct

MAX_READS = 400
MAX_WRITES = 200
MAX_STREAMS = 4096
"""Watches, logs that are followed, upgraded connections: half of the connections that the server has."""
MAX_USER_WATCHES = 512
"""Of these, for one user: each keeps up to 200 KiB of a large object for a client that reads nothing. Nodes and who
else keeps a cluster going may have half of all."""
ROOM_BYTES = 64 << 20
"""Of what is made or read of large objects for clients of their own, who take their time."""
OWN_BYTES = 128 << 10
"""Of these, what each answer may have anyway: more than a piece of many small objects."""
LARGE_BYTES = 64 << 10
"""Of a body, from which on it is read in turn: that takes up to 60 ms for each MB."""
SEAT_CHARACTERS = 512
"""Of selectors, for which a request takes another seat: an open watch keeps them, in some 30 times as many bytes."""


@dataclass(slots=True)
class Slots:
    """Seats for requests of one sort: ``limit`` of them, of which one user has at most half, and at least one.

    A quarter is kept free for who is of the cluster.
    """

    limit: int
    setting: str = ""
    """What an administrator sets it by; ``user_limit``, if there is one. Empty: nothing."""
    user_limit: int | None = None
    """What one user has at most who is not of the cluster; None: half of them."""
    users: Counter[str] = field(default_factory=Counter)
    used: int = 0

    @contextmanager
    def taken(self, user: str, seats: int = 1, *, of_the_cluster: bool = False) -> Iterator[None]:
        """Hold this many, or all that one user may have if that is less.

        :raises StatusError: 429, if there are too few, or the user has their share.
        """
        share = -(-self.limit // 2) if of_the_cluster or self.user_limit is None else self.user_limit
        seats = max(min(seats, share), 1)
        most = self.limit if of_the_cluster else self.limit - self.limit // 4
        if self.users[user] + seats > share:
            self._forget(user)
            raise _refused(f"One user has at most {share} at a time", self.setting)
        if self.used + seats > most:
            self._forget(user)
            setting = self.setting if self.user_limit is None else ""
            raise _refused(f"All users together have at most {most} at a time", setting)
        self.used += seats
        self.users[user] += seats
        try:
            yield
        finally:
            self.used -= seats
            self.users[user] -= seats
            self._forget(user)

    def _forget(self, user: str) -> None:
        if not self.users[user]:
            del self.users[user]


def _refused(why: str, setting: str) -> StatusError:
    """Return kube-apiserver's refusal, and which setting it comes from, if it comes from one."""
    error = too_many_requests()
    return too_many_requests(message=f"{error.message} {why} ({setting}).") if setting else error


class NoRoom(StatusError):
    """Too much is kept for the clients of one user, or for all."""


class Room(FrozenStruct):
    """What may be kept for one answer while its client takes it; ``slots`` are bytes, None: as much as it likes."""

    slots: Slots | None = None
    user: str = ""
    of_the_cluster: bool = False

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Keep so many bytes.

        :raises NoRoom: if they are many, and others of the same user's, or of all users, are.
        """
        with ExitStack() as held:
            if self.slots is not None and size > OWN_BYTES:
                try:
                    held.enter_context(self.slots.taken(self.user, size, of_the_cluster=self.of_the_cluster))
                except StatusError as error:
                    raise NoRoom(error.code, error.reason, error.message, **error.details) from None
            yield


class InFlight:
    """The requests that are being answered. Administrators' are not counted."""

    def __init__(
        self,
        reads: int = MAX_READS,
        writes: int = MAX_WRITES,
        streams: int = MAX_STREAMS,
        watches: int = MAX_USER_WATCHES,
    ) -> None:
        """Count them.

        :param watches: watches and other streams that one user may have.
        """
        self.reads = Slots(reads, "api.max_reads")
        self.writes = Slots(writes, "api.max_writes")
        self.streams = Slots(streams, "api.max_user_watches", user_limit=watches)
        self.kept = Slots(ROOM_BYTES)
        self.turns = Turns(LARGE_BYTES, 1)

    def room(self, user: User) -> Room:
        return Room() if MASTERS in user.groups else Room(self.kept, share_of(user), is_of_the_cluster(user))

    @contextmanager
    def counted(self, info: RequestInfo, user: User, selectors: int = 0) -> Iterator[None]:
        """Count a request while it is answered.

        :param selectors: characters of its selectors.
        :raises StatusError: 429, if there are too many.
        """
        if MASTERS in user.groups:
            yield
            return
        seats = 1 + selectors // SEAT_CHARACTERS
        with self._slots(info).taken(share_of(user), seats, of_the_cluster=is_of_the_cluster(user)):
            yield

    def _slots(self, info: RequestInfo) -> Slots:
        if info.is_long_running:
            return self.streams
        is_write = info.resource_request and info.verb not in READ_ONLY
        return self.writes if is_write else self.reads
