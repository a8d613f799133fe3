"""Watching whether the runtime and the others are in one mount namespace, for Status.

Owns: how often it is looked at, and the log line when it changes. Does not own: what is compared (``mountns.sync``).
Used on the event loop; the looking is done on a thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from podkeep.base.errors import PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.mountns import daemons, sync
from podkeep.mountns.daemons import Daemon
from podkeep.mountns.membership import Membership
from podkeep.mountns.sync import Mismatch

log = logging.getLogger(__name__)

SCAN_PERIOD_S = 10.0
"""How long a daemon that was started since may go unseen. A kubelet asks for the status every 5 seconds."""


class Description(FrozenStruct, kw_only=True):
    """What verbose Status says: where the runtime is. ``pin`` is empty in a namespace that was joined by a process ID,
    and where mounts are not hidden; ``inSync`` is then true."""

    inode: int
    pin: str
    hidden: bool
    inSync: bool  # noqa: N815 - a key of the JSON that clients read


class NamespaceWatch:
    """Compares when asked: the pin and the daemons that are known each time.

    Unknown ones are looked for once in :data:`SCAN_PERIOD_S`, or when one that is known is not there any more.

    :param clock: seconds that only go forward.
    """

    def __init__(self, membership: Membership, socket: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._membership = membership
        self._socket = socket
        self._clock = clock
        self._lock = asyncio.Lock()
        self._scanned = -SCAN_PERIOD_S
        self._daemons: Sequence[Daemon] = ()
        self._found: list[Mismatch] = []
        self._known: list[str] = []

    @property
    def hides(self) -> bool:
        """Whether mounts are hidden; if not, there is nothing to compare."""
        return self._membership.place is not None

    async def mismatches(self) -> list[Mismatch]:
        """Return what is wrong now, and log it if it was not so before."""
        if not self.hides:
            return []
        async with self._lock:
            try:
                self._found = await asyncio.to_thread(self._look)
            except (OSError, PodkeepError) as error:
                # Who asks for the status wants to know whether pods can run; what was seen last stands.
                log.warning("cannot compare mount namespaces: %s", error)
            self._tell(self._found)
            return self._found

    def describe(self, found: Sequence[Mismatch]) -> Description:
        """Return where the runtime is, given what :meth:`mismatches` returned."""
        place = self._membership.place
        pin = "" if place is None or place.pin is None else str(place.pin)
        return Description(inode=self._membership.inode, pin=pin, hidden=self.hides, inSync=not found)

    def _look(self) -> list[Mismatch]:
        now = self._clock()
        if now - self._scanned >= SCAN_PERIOD_S or not all(daemons.is_there(item) for item in self._daemons):
            self._daemons, self._scanned = daemons.find(), now
        return sync.check(self._membership, socket=self._socket, found=self._daemons)

    def _tell(self, found: Sequence[Mismatch]) -> None:
        messages = [item.message for item in found]
        if messages == self._known:
            return
        for item in found:
            if item.message not in self._known:
                log.warning("%s; hint: %s", item.message, item.hint)
        if not messages:
            log.info("all in %s again, as they should be", sync.label(self._membership.inode))
        self._known = messages
