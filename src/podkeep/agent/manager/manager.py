"""All pods of the node: which are wanted, a worker for each, and the removal of those that are wanted no more.

A pod is known by its UID. Sources (the API, static pods) say which pods are to be; each pod has one task, from the
moment it is known until nothing of it is left:

    a static one waits for the one before it ──▶ may it run here? ──▶ run the worker ──▶ it ended, or is to end
                                                │ no: Failed                              │
    the object is deleted ◀── nothing of it is left ◀── wanted no more ◀── settled ◀──────┘

A pod of the API that has the name of one that was deleted by force starts beside what is left of that, as with a
kubelet: who deletes by force says that nothing needs to be waited for. Static pods of one name follow each other.

After a restart the runtime and the pod directories say what there is; the workers adopt it. What no source wants is
removed once all sources have spoken (``orphans``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from podkeep.agent.events import Event, PodRejected
from podkeep.agent.eviction.ending import Ending
from podkeep.agent.manager.pod_measures import PodMeasures
from podkeep.agent.manager.runtime_events import RuntimeEvents
from podkeep.agent.metrics import ADMISSION_REJECTIONS
from podkeep.agent.node import Node
from podkeep.agent.objects.sources import ObjectReader
from podkeep.agent.pod import checkpoint
from podkeep.agent.pod.admission import require_possible
from podkeep.agent.pod.status.pod_status import rejected
from podkeep.agent.pod.worker import PodWorker, Shared
from podkeep.agent.poddirs import PodIdentity
from podkeep.agent.resources import critical, preemption
from podkeep.agent.resources.predicates import Preempt, Rejection
from podkeep.api.pod import Pod
from podkeep.api.status import PodStatus
from podkeep.base.backoff import doubling
from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.concurrency.threads import working_for
from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.base.ids import parse_pod_uid

log = logging.getLogger(__name__)

TERMINAL = frozenset({"Succeeded", "Failed"})
_FIRST_PAUSE_S, _LAST_PAUSE_S = 1.0, 30.0
"""Seconds after which a step that failed is tried again: at first, and at most."""
FORCED_GRACE_S = 30
"""The longest grace period of pods that the API has no more (Kubernetes: that of pods that do not say). Nobody can
shorten it then, and nothing of such a pod counts: not its requests, not for a quota, not as a pod of the node."""
_RETRY_S = 1.0
"""After which resizes that wait are looked at again, when something has been given back."""

ReportEvent = Callable[[Pod, Event], None]
Admit = Callable[[Pod, Sequence[Pod]], Rejection | Preempt | None]
"""Says whether a new pod may run beside others (``resources.predicates.admit``)."""


class Statuses(Protocol):
    """Where statuses go (``status_manager``; static pods' go to their mirror pod)."""

    def set(self, pod: Pod, status: PodStatus) -> None:
        """Have the status of a pod written."""

    def finish(self, pod: Pod) -> None:
        """Note that nothing of a pod that is to be deleted is left on the node."""


@dataclass(kw_only=True, eq=False)
class _ManagedPod:
    """One pod, from the moment it is known until nothing of it is left on the node."""

    pod: Pod
    source: str
    kept: bool = False
    """Its object is that of an earlier process of the agent; its source has not named it yet."""
    wanted: bool = True
    admitted: bool = False
    adopted: bool = False
    """An earlier process of the agent took it on."""
    making_room: Pod | None = None
    """What it asks for while others are ended for that: nobody else gets it meanwhile."""
    ended: bool = False
    worker: PodWorker | None = None
    status: PodStatus | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing of it runs any more."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """It has given back its volumes, its cgroup and its IDs."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing of it is left."""

    @property
    def name(self) -> tuple[str, str]:
        return _name(self.pod)

    @property
    def shown(self) -> PodStatus:
        """The status that was reported last, else the one that the API has."""
        return self.status or self.pod.status

    def is_to_go(self) -> bool:
        """Whether the pod is to be removed from the node: no source has it, or its deletion was asked for."""
        return not self.wanted or self.pod.metadata.deletion_timestamp is not None

    def is_active(self) -> bool:
        """Whether the pod has a claim on the node (kubelet, GetActivePods).

        It was taken on and has not ended. One that was deleted by force has none, though its containers may still be
        about to end.
        """
        return self.wanted and (self.admitted or self.adopted) and not self.ended

    def grace(self) -> int:
        """Return the seconds that its containers have for their end (kubelet, calculateEffectiveGracePeriod).

        A deletion by force asks for none: then they have their own, but no longer than :data:`FORCED_GRACE_S`.
        """
        asked = self.pod.metadata.deletion_grace_period_seconds
        grace = max(asked or self.pod.spec.termination_grace_period_seconds or 0, 1)
        is_forced = asked == 0 or (not self.wanted and not critical.is_static(self.pod))
        return min(grace, FORCED_GRACE_S) if is_forced else grace


def _name(pod: Pod) -> tuple[str, str]:
    return pod.metadata.namespace, pod.metadata.name


class PodManager:
    """Runs the pods of the node.

    :param statuses: where statuses go.
    :param report: takes the events of pods.
    :param admit: says whether a pod may run here; not asked about what runs already.
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
        admit: Admit,
        sources: Collection[str],
    ) -> None:
        self._node = node
        self._objects = objects
        self._events = events
        self._statuses = statuses
        self._report = self._measured(report)
        self._admit = admit
        self._looking = 0
        """Pods of which nobody knows yet whether an earlier process has taken them on."""
        self._looked = asyncio.Event()
        self._silent = set(sources)
        self._measures = PodMeasures(node.metrics)
        self._managed: dict[str, _ManagedPod] = {}
        self._tasks = Tasks("a pod of the node")
        self._retry: asyncio.TimerHandle | None = None
        self.ready = asyncio.Event()
        """Set once every source has said which pods it wants."""

    def _measured(self, report: ReportEvent) -> ReportEvent:
        def measured(pod: Pod, event: Event) -> None:
            self._measures.event(pod, event)
            report(pod, event)

        return measured

    # ------------------------------------------------------------------------------------------------- the sources

    def replaced(self, source: str, pods: Sequence[Pod]) -> None:
        """Take all pods of a source; its others are wanted no more."""
        uids = {pod.metadata.uid for pod in pods}
        for uid in [uid for uid, managed in self._managed.items() if managed.source == source and uid not in uids]:
            self.deleted(uid)
        # As a kubelet takes them: those that were there first get the node's resources first.
        for pod in sorted(pods, key=lambda pod: pod.metadata.creation_timestamp or ""):
            self.changed(source, pod)
        self._silent.discard(source)
        if not self._silent:
            self.ready.set()

    def changed(self, source: str, pod: Pod) -> None:
        """Take a pod of a source: a new one, or a newer object of one that is known."""
        uid = pod.metadata.uid
        managed = self._managed.get(uid)
        if managed is not None:
            if managed.name != _name(pod) or managed.source != source:
                # What the pod has on the node is found by its name, too.
                log.error("pod %s/%s is left out: %s/%s has its UID", *_name(pod), *managed.name)
                return
            managed.pod, managed.wanted = pod, True
            self._named(managed)
            self._tell(managed)
            return
        try:
            parse_pod_uid(uid)
        except InvalidArgument as error:
            log.warning("pod %s/%s is left out: %s", pod.metadata.namespace, pod.metadata.name, error)
            return
        managed = _ManagedPod(pod=pod, source=source)
        static = critical.is_static(pod)
        # All that have the name, not the last alone: each of them may still have containers and a directory.
        before = [other for other in self._managed.values() if static and other.name == managed.name]
        self._managed[uid] = managed
        self._measures.seen(pod)
        # Threads for blocking steps are shared out by pod: what this task uses is counted for its pod.
        with working_for(uid):
            self._tasks.start(self._manage(managed, before))

    def kept(self, source: str, pods: Sequence[Pod]) -> None:
        """Take pods that run as an earlier process knew them, until their source says which it wants."""
        for pod in pods:
            if pod.metadata.uid not in self._managed:
                self.changed(source, pod)
                if (managed := self._managed.get(pod.metadata.uid)) is not None:
                    managed.kept = True

    def _named(self, managed: _ManagedPod) -> None:
        """Note that a pod's source has named it: its status has somewhere to go from now on."""
        if managed.kept and managed.status is not None:
            self._statuses.set(managed.pod, managed.status)
        managed.kept = False

    def deleted(self, uid: str) -> None:
        """Note that a pod is wanted no more: it is ended and removed."""
        managed = self._managed.get(uid)
        if managed is not None:
            managed.wanted = False
            self._tell(managed)

    def sources_changed(self, uid: str) -> None:
        """Note that something changed to which a pod refers."""
        managed = self._managed.get(uid)
        if managed is not None and managed.worker is not None:
            managed.worker.sources_changed()

    def _tell(self, managed: _ManagedPod) -> None:
        managed.news.set()
        if managed.worker is None:
            return
        self._request_resources(managed)
        managed.worker.update(self._node.allocations.allocated(managed.pod))
        # Somebody else may have declared it failed (pod garbage collection, taint eviction).
        foreign_end = managed.pod.status.phase in TERMINAL and managed.shown.phase not in TERMINAL
        if foreign_end or not managed.wanted:
            managed.worker.stop(managed.grace())

    def _request_resources(self, managed: _ManagedPod) -> None:
        """Have a pod that runs be granted the resources that its specification asks for by now."""
        if not managed.admitted or managed.ended or managed.is_to_go() or managed.making_room is not None:
            return
        uid, allocations = managed.pod.metadata.uid, self._node.allocations
        before = allocations.get(uid)
        had = None if before is None else before.granted
        answer = allocations.request(managed.pod, asyncio.get_running_loop().time())
        if isinstance(answer, Preempt):
            managed.making_room = managed.pod
            self._tasks.start(self._make_room(managed, answer))
            return
        for event in answer:
            self._report(managed.pod, event)
        after = allocations.get(uid)
        if after is not None and after.granted is not had:
            # It may have given something back.
            self._retry_soon()

    async def _make_room(self, managed: _ManagedPod, answer: Preempt) -> None:
        """End pods so that a critical one can have what it asks for."""
        try:
            await asyncio.gather(*(self._preempt(pod) for pod in answer.pods))
        finally:
            managed.making_room = None
        self._tell(managed)

    # ------------------------------------------------------------------------------------- for the rest of the agent

    def pods(self) -> Iterator[tuple[Pod, PodStatus]]:
        for managed in self._managed.values():
            yield managed.pod, managed.shown

    def active(self) -> list[Pod]:
        """Return the active pods, with the resources that they were granted, or are about to be."""
        granted = self._node.allocations.allocated
        those = (managed for managed in self._managed.values() if managed.is_active())
        return [managed.making_room or granted(managed.pod) for managed in those]

    def _retry_soon(self) -> None:
        """Ask again once for all that is free by then: each time takes a judgement of each pod that waits."""
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self.retry_resizes)

    def retry_resizes(self) -> None:
        """Ask again for what pods were not granted: others have ended or shrunk, or the node is better off."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        by_uid = {managed.pod.metadata.uid: managed for managed in self._managed.values() if managed.is_active()}
        for pod in self._node.allocations.waiting([managed.pod for managed in by_uid.values()]):
            managed = by_uid[pod.metadata.uid]
            self._request_resources(managed)
            if managed.worker is not None:
                managed.worker.update(self._node.allocations.allocated(pod))

    def by_uid(self, uid: str) -> tuple[Pod, PodStatus] | None:
        managed = self._managed.get(uid)
        return None if managed is None else (managed.pod, managed.shown)

    def find(self, namespace: str, name: str) -> tuple[Pod, PodStatus] | None:
        """Return the pod of that name; of two, the one that is not to go."""
        found = [managed for managed in self._managed.values() if managed.name == (namespace, name)]
        managed = min(found, key=_ManagedPod.is_to_go, default=None)
        return None if managed is None else (managed.pod, managed.shown)

    def knows(self, uid: str) -> bool:
        return uid in self._managed

    def has_ended(self, uid: str) -> bool:
        """Return whether nothing of pod ``uid`` will run again."""
        managed = self._managed.get(uid)
        return managed is None or managed.ended

    async def end(self, pod: Pod, ending: Ending) -> None:
        """End a pod as failed, and return once nothing of it runs; nothing happens if it has ended."""
        managed = self._managed.get(pod.metadata.uid)
        if managed is None or managed.worker is None or managed.ended:
            return
        managed.worker.fail(ending.finish(), max(ending.grace_of(pod), 1), ending.conditions(pod))
        await managed.stopped.wait()

    async def settled(self, pod: Pod) -> None:
        """Return once a pod that was ended has given back what it had: volumes, cgroup, IDs."""
        managed = self._managed.get(pod.metadata.uid)
        if managed is not None:
            await managed.settled.wait()

    async def close(self) -> None:
        """Let go of all pods and leave them as they are, running."""
        await self._tasks.close()
        if self._retry is not None:
            self._retry.cancel()
        for managed in self._managed.values():
            if managed.worker is not None:
                managed.worker.release()

    # ------------------------------------------------------------------------------------------------------ one pod

    async def _manage(self, managed: _ManagedPod, before: Sequence[_ManagedPod]) -> None:
        try:
            for other in before:
                await other.over.wait()
            worker = self._worker(managed)
            managed.worker = worker
            self._measures.begun(managed.pod)
            await self._until_it_ends(managed, worker)
            managed.ended = True
            managed.stopped.set()
            # What this pod had is free for resizes that were deferred.
            self._retry_soon()
            if not managed.is_to_go():
                await self._repeated(managed, worker.settle)
                managed.settled.set()
            while not managed.is_to_go():
                await self._changed(managed)
            await self._repeated(managed, worker.remove)
            managed.settled.set()
            managed.over.set()
            await self._forgotten(managed)
        finally:
            managed.stopped.set()
            managed.settled.set()
            managed.over.set()

    async def _forgotten(self, managed: _ManagedPod) -> None:
        """Wait until no source has a pod that is gone; one whose deletion was not asked for begins anew."""
        uid = managed.pod.metadata.uid
        if managed.wanted and managed.pod.metadata.deletion_timestamp is not None:
            self._statuses.finish(managed.pod)
            while managed.wanted:
                await self._changed(managed)
        del self._managed[uid]
        self._measures.forget(uid)
        self._objects.release(managed.pod)
        self._events.forget(uid)
        self._node.allocations.forget(uid)
        if managed.wanted:
            self.changed(managed.source, managed.pod)

    def _worker(self, managed: _ManagedPod) -> PodWorker:
        uid = managed.pod.metadata.uid
        shared = Shared(news=self._events.of(uid), report=partial(self._reported, managed))
        listener = _Listener(managed, self._report)
        worker = PodWorker(
            pod=managed.pod, sources=self._objects, node=self._node, listener=listener, retry=True, shared=shared
        )
        if managed.is_to_go():
            worker.stop(managed.grace())
        return worker

    async def _until_it_ends(self, managed: _ManagedPod, worker: PodWorker) -> None:
        """Run a pod, and return when nothing of it runs any more.

        What nobody expected costs one attempt: a pod that were given up would run on, and could not be deleted.
        """
        pauses = doubling(_FIRST_PAUSE_S, _LAST_PAUSE_S)
        while True:
            try:
                await self._to_its_end(managed, worker)
                return
            except Exception:  # the boundary: one pod's fault must not leave the pod to nobody
                log.exception("pod %s/%s failed unexpectedly; trying again", *managed.name)
            await self._changed(managed, pauses.next())

    async def _to_its_end(self, managed: _ManagedPod, worker: PodWorker) -> None:
        if managed.pod.status.phase not in TERMINAL and not managed.is_to_go():
            adopted = await self._is_adopted(managed)
            if adopted or await self._is_admitted(managed):
                if not adopted:
                    await asyncio.to_thread(self._node.allocations.take, managed.pod)
                managed.admitted = True
                self._request_resources(managed)
                worker.update(self._node.allocations.allocated(managed.pod))
                if await self._run(managed, worker):
                    return
            elif not adopted:
                return  # nothing of it was ever made
        await self._repeated(managed, worker.end)

    async def _is_adopted(self, managed: _ManagedPod) -> bool:
        """Return whether an earlier process has taken the pod on, as soon as that is known of all pods.

        Until then nobody can say what the node has left: a pod that waits for more resources would be granted those of
        pods that run already.
        """
        self._looking += 1
        self._looked.clear()
        try:
            if await asyncio.to_thread(self._is_known, managed):
                # A pod that was resized while no agent ran has what it had until it is granted the rest.
                directory = self._node.dirs.directory(parse_pod_uid(managed.pod.metadata.uid)).path
                kept = partial(checkpoint.read, directory)
                await asyncio.to_thread(self._node.allocations.take, managed.pod, kept)
                managed.adopted = True
        finally:
            self._looking -= 1
            if not self._looking:
                self._looked.set()
        await self._looked.wait()
        return managed.adopted

    def _is_known(self, managed: _ManagedPod) -> bool:
        """Return whether an earlier process has taken the pod on: it is not judged again."""
        namespace, name = managed.name
        identity = self._node.dirs.identity(parse_pod_uid(managed.pod.metadata.uid))
        return identity == PodIdentity(namespace=namespace, name=name)

    async def _is_admitted(self, managed: _ManagedPod) -> bool:
        """Decide whether a new pod may run here; others may have to make room for it."""
        answer = self._admit(managed.pod, self.active())
        if isinstance(answer, Preempt):
            # Nobody is ended for a pod that its worker would refuse.
            answer = await self._refusal(managed.pod) or self._admit(managed.pod, self.active())
        if isinstance(answer, Preempt):
            managed.admitted = True  # so that no other pod gets the room
            await self._until_there_is_room(managed, answer.pods)
            return True
        if answer is None:
            return True
        rejection = PodRejected(answer.message, reason=answer.reason)
        self._node.metrics.add(ADMISSION_REJECTIONS, answer.reason)
        self._report(managed.pod, rejection.event())
        self._reported(managed, rejected(managed.pod, rejection, time.time()))
        return False

    async def _until_there_is_room(self, managed: _ManagedPod, others: Sequence[Pod]) -> None:
        """End pods for a new one, and return when they have ended, or that one is to go: they may take their time."""
        ends = asyncio.gather(*(self._preempt(pod) for pod in others))
        try:
            while not ends.done() and not managed.is_to_go():
                news: asyncio.Future[object] = asyncio.ensure_future(managed.news.wait())
                try:
                    await asyncio.wait((ends, news), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
                managed.news.clear()
            if ends.done():
                await ends
        finally:
            ends.cancel()
            await asyncio.gather(ends, return_exceptions=True)

    async def _refusal(self, pod: Pod) -> Rejection | None:
        """Return why a pod cannot run here whatever there is room for; nothing if that cannot be known now."""
        try:
            await require_possible(pod, self._node)
        except PodRejected as rejection:
            return Rejection(reason=rejection.reason, message=rejection.message)
        except PodkeepError as error:
            log.warning("pod %s/%s: %s", *_name(pod), error)
        return None

    async def _preempt(self, pod: Pod) -> None:
        reason, message = preemption.REASON, preemption.MESSAGE
        self._report(pod, Event(type="Warning", reason=reason, message=message))
        await self.end(pod, Ending(reason=reason, message=message, disruption=preemption.CONDITION_MESSAGE))

    async def _run(self, managed: _ManagedPod, worker: PodWorker) -> bool:
        """Run a pod to its end; one that cannot be taken on now is tried again.

        :returns: whether it ended; else it is to go before it could begin.
        """
        pauses = doubling(_FIRST_PAUSE_S, _LAST_PAUSE_S)
        while not managed.is_to_go():
            try:
                await worker.run()
                return True
            except PodRejected as rejection:
                self._reported(managed, rejected(managed.pod, rejection, time.time()))
                return True
            except PodkeepError as error:
                log.warning("pod %s/%s: %s; trying again", *managed.name, error)
            await self._changed(managed, pauses.next())
        return False

    async def _repeated(self, managed: _ManagedPod, step: Callable[[], Awaitable[None]]) -> None:
        """Take a step of the end of a pod as often as it takes."""
        pauses, said = doubling(_FIRST_PAUSE_S, _LAST_PAUSE_S), False
        while True:
            try:
                await step()
                return
            except Exception as error:  # the boundary, as above
                expected = isinstance(error, PodkeepError | OSError)
                if not said and (self._events.away is None or not expected):
                    text = f"error killing pod: {error}"
                    self._report(managed.pod, Event(type="Warning", reason="FailedKillPod", message=text))
                    trace = None if expected else error
                    log.warning("pod %s/%s cannot be removed: %s; trying again", *managed.name, error, exc_info=trace)
                    said = True
            await asyncio.sleep(pauses.next())

    async def _changed(self, managed: _ManagedPod, seconds: float | None = None) -> None:
        """Wait for news of the pod's object since the last call, ``seconds`` at most; callers look at it afterwards."""
        try:
            await asyncio.wait_for(managed.news.wait(), seconds)
        except TimeoutError:
            return
        # Only now: news may have come during the step that failed.
        managed.news.clear()

    def _reported(self, managed: _ManagedPod, status: PodStatus) -> None:
        managed.status = status
        self._measures.status(managed.pod, status)
        self._statuses.set(managed.pod, status)


class _Listener:
    """What happens to one pod, as its events (``PodListener``)."""

    def __init__(self, managed: _ManagedPod, report: ReportEvent) -> None:
        self._managed = managed
        self._report = report

    def event(self, event: Event) -> None:
        """See :class:`PodListener`."""
        self._report(self._managed.pod, event)

    def waiting(self, container: str, reason: str, message: str) -> None:
        """See :class:`PodListener`; the status says so."""

    def started(self, container: str, attempt: int, log: Path) -> None:
        """See :class:`PodListener`; the event says so."""
