"""The logs of all containers of the node, looked at by one loop: often while they grow, seldom while they do not.

Owns when a log is looked at, and how many are rotated at a time. Does not own what rotating is (``rotation.py``).
A log that grows is looked at again before it can double its size; one that does not, every
``container_log_monitor_interval``. The loop runs while there are logs, and ends with the last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from podkeep.agent.logs import files
from podkeep.agent.logs.rotation import LogRotation
from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.config import AgentConfig
from podkeep.base.errors import FailedPrecondition
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

_logger = logging.getLogger(__name__)

_FIRST_S = 0.25
"""After which a new log is looked at first; then after twice as long each time, as long as it does not grow."""
_LEAST_S = 0.1
_TOGETHER_S = 0.1
"""Logs that are due within this time are looked at together."""


@dataclass(kw_only=True)
class _Log:
    path: Path
    size: int = 0
    pause: float = _FIRST_S
    looked: float
    due: float
    rotating: bool = False
    refused: bool = False
    """Whether there was a link on the way to it when it was looked at last, which was told."""


@dataclass(kw_only=True, eq=False)
class _Pod:
    rotation: LogRotation
    logs: dict[str, _Log] = field(default_factory=dict)
    """By container ID."""
    tasks: Tasks = field(default_factory=lambda: Tasks("rotating logs"))


class NodeLogs:
    """Keeps the logs of this node within bounds."""

    def __init__(self, client: CriClient, agent: AgentConfig) -> None:
        self._client = client
        self._interval = agent.container_log_monitor_interval
        self._max_size = agent.log_max_bytes()
        self._max_files = agent.container_log_max_files
        self._workers = asyncio.Semaphore(agent.container_log_max_workers)
        self._pods: dict[str, _Pod] = {}
        self._news = asyncio.Event()
        self._tasks = Tasks("looking at logs")
        self._loop: asyncio.Task[None] | None = None

    def watch(self, pod: str, logs: Iterable[tuple[str, Path]]) -> None:
        """Look after the logs of the containers of a pod that run now, by their IDs, and no others of this pod.

        :param pod: UID of the pod.
        """
        known = self._pods.get(pod)
        before, now = {} if known is None else known.logs, asyncio.get_running_loop().time()
        after = {
            container: before.get(container) or _Log(path=path, looked=now, due=now + _FIRST_S)
            for container, path in logs
        }
        if after.keys() == before.keys():
            return
        if known is None:
            rotation = LogRotation(self._reopen, max_size=self._max_size, max_files=self._max_files)
            known = self._pods[pod] = _Pod(rotation=rotation)
        known.logs = after
        self._news.set()
        if self._loop is None:
            self._loop = self._tasks.keep(self._run)

    async def forget(self, pod: str) -> None:
        """Look after a pod no more, and return when nothing of it is being rotated or compressed."""
        known = self._pods.pop(pod, None)
        if known is not None:
            self._news.set()
            await known.tasks.close()
            await known.rotation.close()

    async def close(self) -> None:
        """Leave all logs as they are."""
        for pod in list(self._pods):
            await self.forget(pod)
        await self._tasks.close()

    async def _run(self) -> None:
        while any(pod.logs for pod in self._pods.values()):
            await self._wait()
            now = asyncio.get_running_loop().time()
            due = [
                (pod, container, log)
                for pod in self._pods.values()
                for container, log in pod.logs.items()
                if log.due <= now + _TOGETHER_S and not log.rotating
            ]
            sizes = await asyncio.to_thread(_sizes, [log.path for _, _, log in due])
            for (pod, container, log), size in zip(due, sizes, strict=True):
                if isinstance(size, FailedPrecondition) and not log.refused:
                    _logger.warning("the log of container %s is not rotated: %s", container, size)
                log.refused = isinstance(size, FailedPrecondition)
                self._looked(pod, container, log, size if isinstance(size, int) else 0, now)
        self._loop = None

    async def _wait(self) -> None:
        """Wait until a log is due, or there are others."""
        self._news.clear()
        times = [log.due for pod in self._pods.values() for log in pod.logs.values() if not log.rotating]
        left = None if not times else max(min(times) - asyncio.get_running_loop().time(), 0.0)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), left)

    def _looked(self, pod: _Pod, container: str, log: _Log, size: int, now: float) -> None:
        elapsed, grown = max(now - log.looked, 1e-3), size - log.size
        log.pause = pause(size, grown / elapsed, before=log.pause, max_size=self._max_size, interval=self._interval)
        log.size, log.looked, log.due = size, now, now + log.pause
        # The pod may have been forgotten while its log was looked at: nothing may be started for it any more.
        if size >= self._max_size and pod in self._pods.values():
            log.rotating = True
            pod.tasks.start(self._rotate(pod, container, log))

    async def _rotate(self, pod: _Pod, container: str, log: _Log) -> None:
        try:
            async with self._workers:
                await pod.rotation.look(container, log.path)
        finally:
            log.rotating, log.size = False, 0
            log.looked = asyncio.get_running_loop().time()
            log.due = log.looked + _LEAST_S
            self._news.set()

    async def _reopen(self, container: str) -> None:
        await self._client.runtime.ReopenContainerLog(api_pb2.ReopenContainerLogRequest(container_id=container))


def pause(size: int, rate: float, *, before: float, max_size: int, interval: float) -> float:
    """Return after how many seconds a log is looked at again.

    :param rate: bytes a second by which it grew since it was looked at last.
    :param before: seconds that were waited this time.
    """
    if rate <= 0:
        return min(before * 2, interval)
    # Half of the time that it needs to be full at this rate, as the rate may double.
    return min(max((max_size - size) / rate / 2, _LEAST_S), interval)


def _sizes(paths: Iterable[Path]) -> list[int | FailedPrecondition]:
    """Return the sizes of logs in bytes, or why one is not looked at: there is a link on the way."""
    found: list[int | FailedPrecondition] = []
    for path in paths:
        try:
            found.append(files.size(path))
        except FailedPrecondition as error:
            found.append(error)
        except OSError:
            found.append(0)
    return found
