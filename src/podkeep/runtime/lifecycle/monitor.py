"""Learning that a container or an infra process ended: one pidfd for each on the event loop, no polling.

conmon writes the exit code to a file and ends; its end is what wakes us. If conmon itself was killed the container may
live on, so then its first process is watched, and its exit code is never known. An infra process has no conmon.

conmon is no child of the runtime: it forks away from it, so as to outlive it. A pidfd says that it ended, not how.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Generic, TypeVar

from podkeep.base.errors import NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId

Key = TypeVar("Key", bound=str)


class Watched(FrozenStruct, kw_only=True):
    """The two processes of a container; of a sandbox, its infra process as both."""

    process: ProcessId
    monitor: ProcessId


class ExitMonitor(Generic[Key]):
    """Calls ``on_exit(key)`` once for each watched container or sandbox, on the event loop."""

    def __init__(self, on_exit: Callable[[Key], None]) -> None:
        self._on_exit = on_exit
        self._fds: dict[Key, int] = {}

    def watch(self, key: Key, watched: Watched) -> None:
        """Watch what was created; if it ended already, it is reported soon."""
        loop = asyncio.get_running_loop()
        for process in (watched.monitor, watched.process):
            # A zombie has ended, also when nobody has reaped it yet; its pidfd would wake us again and again.
            if not procfs.alive(process):
                continue
            try:
                fd = procfs.pidfd_open(process)
            except NotFound:
                continue
            self._fds[key] = fd
            loop.add_reader(fd, self._ended, key, watched)
            return
        loop.call_soon(self._on_exit, key)

    def forget(self, key: Key) -> None:
        """Stop watching one; unknown ones are no error."""
        fd = self._fds.pop(key, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    def _ended(self, key: Key, watched: Watched) -> None:
        self.forget(key)
        # If this was conmon alone, the container lives on: its first process is watched next, and nobody is told.
        self.watch(key, watched)

    def close(self) -> None:
        for key in list(self._fds):
            self.forget(key)
