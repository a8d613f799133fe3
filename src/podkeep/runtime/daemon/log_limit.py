"""A bound for logs that are not rotated: a pod goes on when its agent was killed, and may write until the disk is full.

Owns: looking at the sizes of logs, and moving one aside that is larger than the limit, of which the newest is kept. It
is named as a kubelet names rotated logs, so readers go on in the next and agents remove it. Rotating, in time and with
as many files as somebody wants, is the agent's.

Not ``conmon --log-size-max``: what was written so far would be lost, and conmon before 2.2 garbles lines there.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from podkeep.base.concurrency.tasks import Tasks, acquired, on_thread
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.base.ids import ContainerID
from podkeep.base.text.log_names import is_rotated, numbered, rotated_name
from podkeep.kernel.files import openat
from podkeep.runtime.bundle.container_log import LogFile

log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Pause between looks: what a container writes in it is how far a log gets beyond the limit."""


class LogLimit:
    """Keeps the logs of containers below a size.

    :param running: returns the containers that run, and their logs.
    :param reopen: has the log of a container opened anew.
    :param limit: in bytes.
    """

    def __init__(
        self,
        running: Callable[[], Iterable[tuple[ContainerID, LogFile]]],
        reopen: Callable[[str], Awaitable[None]],
        limit: int,
    ) -> None:
        self._running = running
        self._reopen = reopen
        self._limit = limit
        self._moving: set[ContainerID] = set()

    async def run(self) -> None:
        async with Tasks("moving a log aside") as moving:
            while True:
                await asyncio.sleep(_LOOK_S)
                logs = [(container, file) for container, file in self._running() if container not in self._moving]
                for container, file in await asyncio.to_thread(self._oversized, logs):
                    self._moving.add(container)
                    # Each by itself: a conmon that does not answer is waited for.
                    moving.start(self._bound(container, file))

    def _oversized(self, logs: Iterable[tuple[ContainerID, LogFile]]) -> list[tuple[ContainerID, LogFile]]:
        found = []
        for container, file in logs:
            # A container may have gone, or a link may be in the way: the other logs are looked at all the same.
            with suppress(OSError, FailedPrecondition), openat.closing(file.open_directory()) as directory:
                if self._is_oversized(directory, file.name):
                    found.append((container, file))
        return found

    def _is_oversized(self, directory: int, name: str) -> bool:
        info = openat.status(directory, name)
        return stat.S_ISREG(info.st_mode) and info.st_size >= self._limit

    async def _bound(self, container: ContainerID, file: LogFile) -> None:
        try:
            await self._move_aside(container, file)
        except (OSError, PodkeepError) as error:
            log.warning("the log of container %s cannot be moved aside: %s", container, error)
        finally:
            self._moving.discard(container)

    async def _move_aside(self, container: ContainerID, file: LogFile) -> None:
        # To its end, also if this task ends: once it is closed, another directory may have the descriptor.
        with openat.closing(await acquired(file.open_directory, os.close)) as directory:
            aside = await on_thread(partial(self._make_room, directory, file.name))
            log.warning("the log of container %s has reached %s bytes; it is now %s", container, self._limit, aside)
            put_back = partial(_put_back, directory, aside, file.name)
            await acquired(partial(_move, directory, file.name, aside), lambda _: put_back())
            try:
                await self._reopen(container)
            finally:
                await on_thread(put_back)

    def _make_room(self, directory: int, name: str) -> str:
        """Remove what was moved aside before, and return a name that nothing has: an agent uses the same ones.

        :raises OSError: if there is none.
        """
        with openat.closing(openat.reopen(directory, os.O_RDONLY | os.O_DIRECTORY)) as listed:
            for entry in _names(listed):
                if is_rotated(entry, name):
                    with suppress(OSError):
                        if self._is_oversized(directory, entry):
                            os.unlink(entry, dir_fd=directory)
        base = rotated_name(name, datetime.now(UTC))
        for aside in (base, *(numbered(base, number) for number in range(1, 1000))):
            try:
                openat.status(directory, aside)
            except FileNotFoundError:
                return aside
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), base)


def _move(directory: int, name: str, aside: str) -> None:
    os.rename(name, aside, src_dir_fd=directory, dst_dir_fd=directory)


def _put_back(directory: int, aside: str, name: str) -> None:
    # A container that has just ended has nobody to open it. A conmon that somebody attached keeps waiting does so
    # later, and puts an empty file there: what was written has the other name, too.
    with suppress(OSError):
        os.link(aside, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)


def _names(directory: int) -> Iterator[str]:
    """Yield the names in a directory; whoever writes to it may have made millions of them."""
    with os.scandir(directory) as entries:
        for entry in entries:
            yield entry.name
