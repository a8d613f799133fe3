"""Learning that a container ended: one pidfd per conmon on the event loop, no polling.

conmon writes the exit code to a file and ends; its end is what wakes us. If conmon itself was killed the container may
live on, so then its first process is watched, and its exit code is never known.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from podkeep.base.errors import NotFound
from podkeep.base.ids import ContainerID
from podkeep.kernel import procfs
from podkeep.kernel.procfs import ProcessId


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The two processes of a container."""

    process: ProcessId
    monitor: ProcessId


class ExitMonitor:
    """Calls ``on_exit(container)`` once for each watched container, on the event loop."""

    def __init__(self, on_exit: Callable[[ContainerID], None]) -> None:
        self._on_exit = on_exit
        self._fds: dict[ContainerID, int] = {}

    def watch(self, container: ContainerID, watched: Watched) -> None:
        """Watch a container that was created; if it ended already, it is reported soon."""
        loop = asyncio.get_running_loop()
        for process in (watched.monitor, watched.process):
            # A zombie has ended, also when nobody has reaped it yet; its pidfd would wake us again and again.
            if not procfs.alive(process):
                continue
            try:
                fd = procfs.pidfd_open(process)
            except NotFound:
                continue
            self._fds[container] = fd
            loop.add_reader(fd, self._ended, container, watched)
            return
        loop.call_soon(self._on_exit, container)

    def forget(self, container: ContainerID) -> None:
        """Stop watching a container; unknown ones are no error."""
        fd = self._fds.pop(container, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    def _ended(self, container: ContainerID, watched: Watched) -> None:
        self.forget(container)
        self.watch(container, watched)

    def close(self) -> None:
        """Stop watching everything."""
        for container in list(self._fds):
            self.forget(container)
