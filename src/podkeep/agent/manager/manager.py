"""All pods of the node: which are wanted, a worker for each, and the removal of those that are wanted no more.

A pod is known by its UID. Sources (the API, static pods) say which pods are to be; each pod has one task that sees it
from its first sight to its last trace:

    wait for the pod that has its name ──▶ run the worker ──▶ the pod ended, or is to end
                                                                     │
    the object is deleted ◀── nothing of it is left ◀── tear down ◀──┴── ended: until it is wanted no more

After a restart the runtime and the pod directories say what there is; the workers adopt it. What no source wants is
removed once all sources have spoken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from podkeep.agent.manager.runtime_events import RuntimeEvents
from podkeep.agent.node import Node
from podkeep.agent.pod.events import Event, PodRejected
from podkeep.agent.pod.status import rejected
from podkeep.agent.pod.worker import PodWorker, Shared
from podkeep.agent.sources import ObjectReader
from podkeep.api.pod import Pod
from podkeep.api.status import PodStatus
from podkeep.base.errors import PodkeepError
from podkeep.base.tasks import Tasks

log = logging.getLogger(__name__)

TERMINAL = frozenset({"Succeeded", "Failed"})
_AGAIN_S = (1.0, 30.0)
"""Seconds after which a step that failed is tried again: at first, and at most."""

ReportEvent = Callable[[Pod, Event], None]


class Statuses(Protocol):
    """Where statuses go (``status_manager``; static pods' go to their mirror pod)."""

    def set(self, uid: str, status: PodStatus) -> None:
        """Have the status of a pod written."""

    def finish(self, uid: str) -> None:
        """Note that nothing of a pod that is to be deleted is left on the node."""


@dataclass(kw_only=True)
class _Life:
    """One pod, from its first sight to its last trace."""

    pod: Pod
    source: str
    wanted: bool = True
    worker: PodWorker | None = None
    status: PodStatus | None = None
    ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> tuple[str, str]:
        return self.pod.metadata.namespace, self.pod.metadata.name

    def is_to_go(self) -> bool:
        """Whether the pod is to be removed from the node: nobody wants it, or its deletion was asked for."""
        return not self.wanted or self.pod.metadata.deletion_timestamp is not None


class PodManager:
    """Runs the pods of the node.

    :param statuses: where statuses go.
    :param report: takes the events of pods.
    :param sources: names of the sources that have to speak before anything unwanted is removed.
    """

    def __init__(
        self,
        *,
        node: Node,
        objects: ObjectReader,
        events: RuntimeEvents,
        statuses: Statuses,
        report: ReportEvent,
        sources: Collection[str],
    ) -> None:
        self._node = node
        self._objects = objects
        self._events = events
        self._statuses = statuses
        self._report = report
        self._silent = set(sources)
        self._lives: dict[str, _Life] = {}
        self._tasks = Tasks("a pod of the node")
        self.ready = asyncio.Event()
        """Set once every source has said which pods it wants."""

    # ------------------------------------------------------------------------------------------------- the sources

    def replaced(self, source: str, pods: Sequence[Pod]) -> None:
        """Take all pods of a source; its others are wanted no more."""
        uids = {pod.metadata.uid for pod in pods}
        for pod in pods:
            self.changed(source, pod)
        for uid in [uid for uid, life in self._lives.items() if life.source == source and uid not in uids]:
            self.deleted(uid)
        self._silent.discard(source)
        if not self._silent:
            self.ready.set()

    def changed(self, source: str, pod: Pod) -> None:
        """Take a pod of a source: a new one, or a newer object of one that is known."""
        uid = pod.metadata.uid
        life = self._lives.get(uid)
        if life is None:
            life = self._lives[uid] = _Life(pod=pod, source=source)
            before = [other for other in self._lives.values() if other is not life and other.name == life.name]
            self._tasks.start(self._live(life, before))
            return
        life.pod, life.wanted = pod, True
        self._tell(life)

    def deleted(self, uid: str) -> None:
        """Note that a pod is wanted no more: it is ended and removed."""
        life = self._lives.get(uid)
        if life is not None:
            life.wanted = False
            self._tell(life)

    def _tell(self, life: _Life) -> None:
        life.news.set()
        if life.worker is None:
            return
        life.worker.update(life.pod)
        if not life.wanted:
            metadata, spec = life.pod.metadata, life.pod.spec
            grace = metadata.deletion_grace_period_seconds
            life.worker.stop(max(spec.termination_grace_period_seconds or 0 if grace is None else grace, 1))

    # -------------------------------------------------------------------------------------------------- to look at

    def pods(self) -> Iterator[tuple[Pod, PodStatus]]:
        """Yield the pods that are known, with their newest status."""
        for life in self._lives.values():
            yield life.pod, life.status or life.pod.status

    def find(self, namespace: str, name: str) -> tuple[Pod, PodStatus] | None:
        """Return the pod of that name; of two, the one that is not to go."""
        found = [life for life in self._lives.values() if life.name == (namespace, name)]
        life = min(found, key=_Life.is_to_go, default=None)
        return None if life is None else (life.pod, life.status or life.pod.status)

    # ------------------------------------------------------------------------------------------------------ one pod

    async def close(self) -> None:
        """Let go of all pods and leave them as they are, running."""
        await self._tasks.close()
        for life in self._lives.values():
            if life.worker is not None:
                life.worker.release()

    async def _live(self, life: _Life, before: Sequence[_Life]) -> None:
        uid = life.pod.metadata.uid
        for other in before:
            await other.over.wait()
        try:
            worker = self._worker(life)
            if not life.is_to_go() and life.pod.status.phase not in TERMINAL:
                await self._run(life, worker)
            life.ended = True
            while not life.is_to_go():
                life.news.clear()
                await life.news.wait()
            await self._removed(life, worker)
            if life.wanted:
                self._statuses.finish(uid)
                while life.wanted:
                    life.news.clear()
                    await life.news.wait()
            self._objects.release(life.pod)
        finally:
            self._events.forget(uid)
            if not life.wanted:
                self._lives.pop(uid, None)
            life.over.set()

    def _worker(self, life: _Life) -> PodWorker:
        uid = life.pod.metadata.uid
        shared = Shared(news=self._events.of(uid), report=partial(self._reported, life))
        listener = _Listener(life, self._report)
        return PodWorker(
            pod=life.pod, sources=self._objects, node=self._node, listener=listener, retry=True, shared=shared
        )

    async def _run(self, life: _Life, worker: PodWorker) -> None:
        """Run a pod to its end; one that cannot be taken on now is tried again, one that is rejected has failed."""
        life.worker = worker
        pause, longest = _AGAIN_S
        while not life.is_to_go():
            try:
                await worker.run()
                return
            except PodRejected as rejection:
                self._reported(life, rejected(life.pod, rejection))
                return
            except PodkeepError as error:
                log.warning("pod %s/%s: %s", *life.name, error)
            await self._pause(life, pause)
            pause = min(pause * 2, longest)

    async def _removed(self, life: _Life, worker: PodWorker) -> None:
        """Remove everything of a pod from the node, as often as that takes."""
        pause, longest = _AGAIN_S
        while True:
            try:
                await worker.remove()
                return
            except (PodkeepError, OSError) as error:
                text = f"error killing pod: {error}"
                self._report(life.pod, Event(type="Warning", reason="FailedKillPod", message=text))
                log.warning("pod %s/%s cannot be removed: %s; trying again", *life.name, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)

    async def _pause(self, life: _Life, seconds: float) -> None:
        life.news.clear()
        try:
            await asyncio.wait_for(life.news.wait(), seconds)
        except TimeoutError:
            return

    def _reported(self, life: _Life, status: PodStatus) -> None:
        life.status = status
        self._statuses.set(life.pod.metadata.uid, status)


class _Listener:
    """What happens to one pod, as its events (``PodListener``)."""

    def __init__(self, life: _Life, report: ReportEvent) -> None:
        self._life = life
        self._report = report

    def event(self, event: Event) -> None:
        """See :class:`PodListener`."""
        self._report(self._life.pod, event)

    def waiting(self, container: str, reason: str, message: str) -> None:
        """See :class:`PodListener`; the status says so."""

    def started(self, container: str, attempt: int, log: Path) -> None:
        """See :class:`PodListener`; the event says so."""


def as_json(pod: Pod, status: PodStatus | None) -> Mapping[str, Any]:
    """Return a pod as JSON, with its newest status."""
    whole = pod if status is None else msgspec.structs.replace(pod, status=status)
    value: Mapping[str, Any] = msgspec.to_builtins(whole)
    return value
