"""Orphaned pods: those of the runtime that no source has, and directories without a pod there.

They are left by an agent that ended between the deletion of an object and the removal of the pod, or while the API
forgot. Only pods of an agent are removed: others' sandboxes, and pods that ``podkeep run`` has, are left alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress

from podkeep.agent.convert import names
from podkeep.agent.manager.api_source import SOURCE
from podkeep.agent.manager.static_files import CONFIG_HASH
from podkeep.agent.metrics import ORPHANED_RUNTIME_PODS, AgentMetrics
from podkeep.agent.pod import teardown
from podkeep.agent.poddirs import PodDirs
from podkeep.base.config import Config
from podkeep.base.errors import FailedPrecondition, InvalidArgument, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import PodUID, parse_pod_uid
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

log = logging.getLogger(__name__)

_AT_ONCE = 32
"""Orphans that are ended at a time."""

LOOK_S = 60.0
DEFAULT_GRACE_S = 30


class Orphans(FrozenStruct, kw_only=True):
    """Removes orphaned pods.

    :ivar is_wanted: says of a UID whether somebody looks after that pod.
    """

    client: CriClient
    dirs: PodDirs
    config: Config
    metrics: AgentMetrics
    is_wanted: Callable[[str], bool]

    async def run(self) -> None:
        """Look now, and then each minute, until cancelled; what resists is tried again."""
        while True:
            try:
                await self.look()
            except (PodkeepError, OSError) as error:
                log.debug("orphaned pods are not known now: %s", error)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Remove what is there now.

        :raises PodkeepError: if the runtime does not answer.
        """
        found = await self._at_the_runtime()
        found |= set(await asyncio.to_thread(self.dirs.managed))
        # Side by side, as with a kubelet: each may take its grace period, and has addresses and ports until then.
        places = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(self._removed(uid, places) for uid in sorted(found) if not self.is_wanted(uid)))

        async with self.dirs.held():
            empty = await asyncio.to_thread(self.dirs.reclaim_empty, self.is_wanted)
        if empty:
            log.info("removed empty directories of pods: %s", ", ".join(empty))

    async def _at_the_runtime(self) -> set[PodUID]:
        listed = await self.client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest())
        found = set()
        for sandbox in listed.items:
            uid, annotations = sandbox.metadata.uid, sandbox.annotations
            if sandbox.labels.get(names.POD_UID) == uid and (
                annotations.get(names.CONFIG_SOURCE) == SOURCE or CONFIG_HASH in annotations
            ):
                with suppress(InvalidArgument):  # no pod has that UID, and other orphans go all the same
                    found.add(parse_pod_uid(uid))
        return found

    async def _removed(self, uid: PodUID, places: asyncio.Semaphore) -> None:
        try:
            async with places:
                is_removed = await self._remove(uid)
            if is_removed:
                self.metrics.add(ORPHANED_RUNTIME_PODS)
                log.info("removed orphaned pod %s", uid)
        except (PodkeepError, OSError) as error:
            log.warning("orphaned pod %s cannot be removed: %s", uid, error)

    async def _remove(self, uid: PodUID) -> bool:
        """Remove a pod; return whether it was nobody's."""
        try:
            # Without a directory there is nothing to lock; `own` would make one that has to be removed again.
            lock = self.dirs.own(uid) if self.dirs.is_taken(uid) else None
        except FailedPrecondition:
            return False
        try:
            running = await teardown.running_containers(self.client, uid)
            # StopPodSandbox gives no grace period: what runs in the sandbox is killed (CRI).
            await teardown.stop_containers(self.client, running, DEFAULT_GRACE_S)
            await teardown.remove_pod_state(self.client, self.dirs, self.config, uid)
        finally:
            if lock is not None:
                os.close(lock)
        return True
