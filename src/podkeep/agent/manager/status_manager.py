"""The status of each pod, from the worker that knows it to the API.

Owns what was written last, retries, and the deletion of the object of a pod that is
gone. A status is written when it differs from what the API has, by a patch with the UID as precondition: the pod that
has come under the same name meanwhile is never touched. While the API is away only the newest status is kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec

from podkeep.agent.manager import status_patch
from podkeep.agent.metrics import POD_STATUS_SYNC_DURATION, AgentMetrics
from podkeep.agent.resources import critical
from podkeep.api.pod import Pod
from podkeep.api.status import PodStatus
from podkeep.base.backoff import Backoff
from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.errors import PodkeepError
from podkeep.client.client import Client
from podkeep.client.errors import ApiError
from podkeep.client.resources import PODS

log = logging.getLogger(__name__)

WRITERS = 8
"""Requests at a time."""

_NEVER_TAKEN = frozenset({HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY})
"""What the API answers to a status that it does not take. A pod of thousands of containers has one that is larger than
an object may be; that keeps no pod that is gone from being deleted."""

_Static = tuple[str, str, str]
"""UID, namespace and name of a static pod. Whoever may create pods can give one the annotation of a mirror, with any
UID; the name in that namespace they cannot have, or may do what they like with the mirror anyway."""


def _static(pod: Pod) -> _Static:
    return pod.metadata.uid, pod.metadata.namespace, pod.metadata.name


@dataclass(kw_only=True)
class _Entry:
    """One pod of the API. ``there`` is the status that the API has, as far as is known."""

    namespace: str
    name: str
    uid: str
    there: Mapping[str, Any]
    status: PodStatus | None = None
    gone: bool = False
    queued: bool = False
    """There is something to write; it is in the queue, or will be when what is being written now is there."""
    writing: bool = False
    backoff: Backoff | None = None
    """While writing fails."""
    since: float = 0.0
    """When the first change came that is not written yet (``time.monotonic``)."""
    deleted: asyncio.Event = field(default_factory=asyncio.Event)


class StatusManager:
    """Writes statuses of the pods of one API server."""

    def __init__(self, client: Client, metrics: AgentMetrics) -> None:
        self._client, self._metrics = client, metrics
        self._entries: dict[str, _Entry] = {}
        self._static: dict[_Static, PodStatus] = {}
        self._mirrors: dict[_Static, str] = {}
        """By static pod, its newest status and the UID of its mirror."""
        self._queue: asyncio.Queue[_Entry] = asyncio.Queue()

    def known(self, pod: Pod, there: Mapping[str, Any]) -> None:
        """Note what the API has of a pod.

        :param there: its status, as JSON.
        """
        metadata = pod.metadata
        entry = self._entries.get(metadata.uid)
        if entry is None:
            entry = _Entry(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid, there=there)
            self._entries[metadata.uid] = entry
            if critical.is_mirror(pod):
                shown = metadata.annotations[critical.CONFIG_MIRROR], metadata.namespace, metadata.name
                self._mirrors[shown] = metadata.uid
                entry.status = self._static.get(shown)
        entry.there = there
        if entry.status is not None and self._patch(entry):
            self._enqueue(entry)  # somebody else wrote it, or our own write is on its way

    def set(self, pod: Pod, status: PodStatus) -> None:
        """Have the status of a pod written; nothing happens if the API does not have the pod any more."""
        if critical.is_static(pod):
            self._static[_static(pod)] = status
        entry = self._entry(pod)
        if entry is None or entry.gone:
            return
        entry.status = status
        entry.since = entry.since or time.monotonic()
        self._enqueue(entry)

    def _entry(self, pod: Pod) -> _Entry | None:
        """Return where the status of a pod goes: that of a static pod goes to its mirror."""
        uid = pod.metadata.uid
        if critical.is_static(pod):
            uid = self._mirrors.get(_static(pod), "")
        return self._entries.get(uid)

    def forget_static(self, uids: Collection[str]) -> None:
        """Forget the statuses of static pods that are not among ``uids``."""
        self._static = {static: status for static, status in self._static.items() if static[0] in uids}

    def finish(self, pod: Pod) -> None:
        """Have the object of a pod deleted after its last status was written: nothing of it is left on the node."""
        entry = self._entries.get(pod.metadata.uid)
        if entry is not None and not entry.gone:
            entry.gone = True
            self._enqueue(entry)

    def forget(self, uid: str) -> None:
        """Note that the API does not have the pod any more."""
        entry = self._entries.pop(uid, None)
        if entry is not None:
            entry.deleted.set()
            self._mirrors = {static: mirror for static, mirror in self._mirrors.items() if mirror != uid}

    async def run(self) -> None:
        """Write until cancelled."""
        async with Tasks("writing statuses of pods") as tasks:
            for _ in range(WRITERS):
                tasks.start(self._write_all())
            await asyncio.Event().wait()

    def _enqueue(self, entry: _Entry) -> None:
        if not entry.queued:
            entry.queued = True
            # Two requests for one pod could overtake each other.
            if not entry.writing:
                self._queue.put_nowait(entry)

    async def _write_all(self) -> None:
        while True:
            entry = await self._queue.get()
            entry.writing, entry.queued = True, False
            wait = await self._write_one(entry)
            if wait is None:
                self._done(entry)
            else:
                # Not by waiting here: as many pods whose status is refused as there are writers would stop all others.
                asyncio.get_running_loop().call_later(wait, self._queue.put_nowait, entry)

    def _done(self, entry: _Entry) -> None:
        entry.writing, entry.backoff = False, None
        if entry.queued:
            self._queue.put_nowait(entry)

    async def _write_one(self, entry: _Entry) -> float | None:
        """Write once; return after how many seconds to try again, ``None`` if there is nothing to try."""
        # The object was deleted while the entry was in the queue; there may be another entry for its UID.
        if self._entries.get(entry.uid) is not entry:
            return None
        entry.backoff = backoff = entry.backoff or Backoff(first=0.5, most=10.0)
        try:
            await self._write(entry)
        except ApiError as error:
            if error.not_found or error.conflict:  # it is gone, or another one has its name
                return None
            log.warning("status of pod %s/%s: %s; trying again", entry.namespace, entry.name, error)
            return max(backoff.next(), error.retry_after)
        except PodkeepError as error:
            log.debug("status of pod %s/%s: %s; trying again", entry.namespace, entry.name, error)
            return backoff.next()
        except Exception:  # the supervisor of its work: one pod's status must not take a writer from all others
            log.exception("status of pod %s/%s failed unexpectedly; trying again", entry.namespace, entry.name)
            return backoff.next()
        return None

    async def _write(self, entry: _Entry) -> None:
        patch, since = self._patch(entry), entry.since
        # Before the request: a change that comes while it is under way is not in this patch, and is measured by itself.
        entry.since = 0.0
        if patch:
            try:
                await self._send(entry, patch)
            except ApiError as error:
                if not entry.gone or error.code not in _NEVER_TAKEN:
                    raise
                log.warning(
                    "the last status of pod %s/%s is lost, which is deleted: %s", entry.namespace, entry.name, error
                )
            else:
                if since:
                    self._metrics.observe(POD_STATUS_SYNC_DURATION, time.monotonic() - since)
        if entry.gone and not entry.deleted.is_set():
            await self._client.delete(PODS, entry.name, entry.namespace, grace=0, uid=entry.uid)
            entry.deleted.set()

    async def _send(self, entry: _Entry, patch: Mapping[str, Any]) -> None:
        body = {"metadata": {"uid": entry.uid}, "status": patch}
        answer = await self._client.patch(PODS, entry.name, body, entry.namespace, subresource="status")
        status = answer.get("status")
        entry.there = status if isinstance(status, dict) else {}

    def _patch(self, entry: _Entry) -> dict[str, Any]:
        if entry.status is None:
            return {}
        return status_patch.difference(entry.there, msgspec.to_builtins(entry.status))
