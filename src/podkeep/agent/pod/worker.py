"""One pod, from its manifest to its end: looks, decides, acts, and again, until the pod is done or told to stop.

Owns the loop and the pod's back-offs. What to do is decided by ``plan``; how it is done is in ``starter`` and
``teardown``. Used by ``podkeep run``, and by the agent for every pod of the node (``Shared``); nothing here prints.

    admit ──▶ observe ──▶ decide ──▶ act ──┐            stop() or a deletion request
                ▲                          │                     │
                └────── wait for news ◀────┘                     ▼
                                          finished ──▶ stopped ──▶ tear_down()
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from podkeep.agent import backoff, runtime_calls
from podkeep.agent.backoff import BackOff
from podkeep.agent.convert.names import full_name
from podkeep.agent.events import Event, PodListener, PodRejected, PostStartFailed, PullFailed, StepFailed
from podkeep.agent.metrics import STARTED_CONTAINERS, STARTED_CONTAINERS_ERRORS, STARTED_USERNS_PODS_ERRORS
from podkeep.agent.node import Node
from podkeep.agent.objects.sources import ObjectReader, Sources, StaticObjects
from podkeep.agent.observed import ContainerView, Observed, Observer, State
from podkeep.agent.pod import checkpoint, last_decision, teardown
from podkeep.agent.pod.actions import (
    Action,
    CreateSandbox,
    Decision,
    Finish,
    KillContainer,
    ResetContainer,
    Resize,
    StartContainer,
    StopSandbox,
    Wait,
    WorkerState,
)
from podkeep.agent.pod.admission import FAILED_SANDBOX, Admitted, admit
from podkeep.agent.pod.ends import Ends
from podkeep.agent.pod.last_decision import LastDecision
from podkeep.agent.pod.news import News, OwnNews, tells_anew
from podkeep.agent.pod.plan import RESET_MESSAGE, decide, over
from podkeep.agent.pod.resizing import PodResizing
from podkeep.agent.pod.starter import Starter
from podkeep.agent.pod.status.conditions import is_only_the_sandbox
from podkeep.agent.pod.status.facts import StatusFacts, Waiting
from podkeep.agent.pod.status.pod_status import exit_code, pod_status
from podkeep.agent.pod.stopping import Grace, Stopper, grace_of, targets
from podkeep.agent.pod.termination_messages import TerminationMessages, log_of
from podkeep.agent.pod.waiting import WaitingContainers
from podkeep.agent.probes.model import ProbeResult
from podkeep.agent.probes.prober import PodProbes
from podkeep.agent.resources import critical
from podkeep.api.feature_gates import USER_NAMESPACES
from podkeep.api.pod import Pod
from podkeep.api.status import PodCondition, PodStatus
from podkeep.base.concurrency.clock import SteadyClock
from podkeep.base.concurrency.tasks import Tasks, on_thread
from podkeep.base.errors import Cancelled, DeadlineExceeded, FailedPrecondition, PodkeepError, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import parse_pod_uid
from podkeep.base.text import rfc3339
from podkeep.cri.v1 import api_pb2

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_BROKEN_OFF = 3
"""How often in a row a step is repeated because the runtime ended, or was not there, in the middle of it."""
_END_TIMEOUT = 10.0
"""Seconds it may be away when the pod is to end: while it is restarted, and until we try to connect again."""
_END_PAUSE = 0.2
_END_AGAIN = 2.0
"""Seconds after which an agent tries again to end a pod while the runtime is away."""
_LOOK_AGAIN = 10.0
"""Seconds after which the pod is looked at without an event."""
_TRY_AGAIN_S = 10.0
"""Seconds after which a step that failed is tried again; half of it more at most (kubelet: backOffPeriod, jitter)."""
_CRASHED = "RunContainerError"
"""Failure of a container that was there and is removed: for a kubelet it has ended then, and waits for its back-off."""
_LOOK_IN_BACK_OFF = 1.0
"""Seconds between looks while a step waits because it failed before."""
_HOLD_S = 0.5
"""For which a status waits for the next that says nothing but that the sandbox is there."""
_REMOVAL_S = 0.2
"""Seconds between looks whether somebody asks for the pod's removal."""


class Shared(FrozenStruct, kw_only=True):
    """What an agent that goes on for ever gives to the worker of one pod.

    Such a worker adopts what an earlier process of the agent left, waits for a runtime that is away for as long as it
    takes, also at the end, and polls nothing of its own.

    :ivar news: woken by whoever follows the runtime's events for all pods.
    :ivar report: told the pod's status whenever it is another one; called on the event loop, must not block.
    """

    news: News
    report: Callable[[PodStatus], None]


class PodResult(FrozenStruct, kw_only=True):
    """How a pod ended. ``exit_code`` is that of the container that failed first, 0 if none did."""

    exit_code: int
    status: PodStatus


class PodWorker:
    """Runs one pod.

    :param sources: the objects that the pod may refer to, or who reads them.
    :param retry: keep trying after a failure on the way to a running container, with growing pauses, as a node does;
        without it the failure ends :meth:`run`.
    :param shared: of an agent; ``None``: this process runs this pod, and ends with it.
    """

    def __init__(
        self,
        *,
        pod: Pod,
        sources: Sources | ObjectReader,
        node: Node,
        listener: PodListener,
        retry: bool,
        shared: Shared | None = None,
    ) -> None:
        self.pod = pod
        self._objects = StaticObjects(sources) if isinstance(sources, Sources) else sources
        self._shared = shared
        self._reported: PodStatus | None = None
        self._held_report: asyncio.TimerHandle | None = None
        self._messages = TerminationMessages(node.dirs, node.config.agent.pod_logs)
        self._node = node
        self._listener = listener
        self._retry = retry
        self._observer = Observer(node.client, pod.metadata.uid)
        self._observed = Observed()
        self._starter = Starter(pod=pod, objects=self._objects, node=node, listener=listener)
        self._back_off = BackOff(node.config.agent.crash_loop_back_off.longest())
        self._not_before: dict[str, float] = {}
        self._waiting = WaitingContainers(listener)
        self._news = OwnNews(node.client) if shared is None else shared.news
        self._resizing = PodResizing(
            allocations=node.allocations,
            resizer=node.resizer,
            metrics=node.metrics,
            starter=self._starter,
            listener=listener,
            wake=self._news.wake,
        )
        self._admitted: Admitted | None = None
        self._grace: int | None = None
        self._end_deadline: float | None = None
        # As the API has it, if it does: an agent that is started anew must not give a pod with a deadline more time.
        self._since = rfc3339.seconds(pod.status.start_time) if pod.status.start_time else time.time()
        # What waits must not end, or never end, because the time of day is set.
        self._clock = SteadyClock()
        self._active_since = self._clock.of(self._since)
        self._ends = Ends(self._clock)
        self._end: Finish | None = None
        self._asked: Finish | None = None
        self._conditions: tuple[PodCondition, ...] = ()
        self._broken_off = 0
        self._starts_in_user_namespace = False
        """Whether the sandbox is new and has a user namespace, until its containers run or one has failed."""
        self._killed: dict[str, KillContainer] = {}
        self._stopper = Stopper(node.client, node.hooks, listener)
        self._probes: PodProbes | None = None
        self._beside = Tasks(f"what goes on beside pod {pod.metadata.name}")
        self._kills: dict[str, asyncio.Task[None]] = {}
        self._ending: Grace | None = None
        self._changed = True  # from what is kept in the pod's directory
        self._stale = True  # of a pod that an earlier process started it is not known

    # ------------------------------------------------------------------------------------------------ from outside

    async def run(self) -> PodResult:
        """Run the pod to its end, or until :meth:`stop`; its containers are then stopped, the rest is still there.

        :raises AlreadyExists: if a pod of this name is there already; nothing was done then.
        :raises StepFailed: if the pod cannot be started and ``retry`` is off.
        :raises PodkeepError: if the runtime fails otherwise.
        """
        try:
            # It is held already if an earlier run of this worker failed.
            if self._admitted is None:
                adopt = self._shared is not None
                self._admitted = await admit(self.pod, self._node, objects=self._objects, adopt=adopt)
                for event in self._admitted.events:
                    self._listener.event(event)
        except StepFailed as failure:
            if failure.reason == FAILED_SANDBOX and self.pod.spec.host_users is False:
                gate = self._node.gates.enabled(USER_NAMESPACES)
                runtime_calls.count_sandbox(self._node.metrics, failed=True, own_users=gate)
            self._listener.event(failure.event())
            if self._shared is not None and not isinstance(failure, PodRejected):
                # Its containers wait to be created; one that an earlier process took on may run.
                with suppress(PodkeepError):
                    await self._report(await self._observer.read())
            raise
        await asyncio.to_thread(self._node.allocations.note, self.pod.metadata.uid)
        await self._waiting.write(self.pod, self._admitted.directory.path)
        probes = self._node.probes.of(self.pod, self._listener, self._news.wake)
        async with self._beside as beside, probes as self._probes:
            beside.start(self._news.watch())
            if self._shared is None:
                beside.start(self._stop_when_asked())
            try:
                await self._take_last_decision(self._admitted)
                await self._loop(self._admitted)
                # In this order: an agent that is killed between the two must not find a pod to go on with and no reason
                # to end it.
                await self._note_last_decision(self._admitted)
                await asyncio.to_thread(checkpoint.drop, self._admitted.directory.path)
                await self._until_answered(self._stop_containers)
                observed = await self._until_answered(self._observer.read)
            finally:
                # However the pod ends: nothing of its logs may be rotated once they can be removed.
                await self._node.logs.forget(self.pod.metadata.uid)
        await self._report(observed)
        # One whose deadline is over before a container of it has run has failed, too.
        code = exit_code(self.pod, observed) or int(self._end is not None and self._end.failed)
        return PodResult(exit_code=code, status=self._status(observed))

    def update(self, pod: Pod) -> None:
        """Take a newer object of the same pod: a deletion, other images, labels, resources, ephemeral containers."""
        shown = pod.metadata.labels, pod.metadata.annotations, pod.spec
        if shown != (self.pod.metadata.labels, self.pod.metadata.annotations, self.pod.spec):
            self._stale = self._changed = True
            for name in with_fresh_back_off(self.pod, pod):
                # What failed was another one (kubelet, GetBackoffKey).
                self._not_before.pop(name, None)
                self._back_off.succeeded(name)
                self._back_off.succeeded(f"start/{name}")
        is_news = tells_anew(self.pod, pod)
        self.pod = pod
        self._starter.update(pod)
        if pod.metadata.deletion_timestamp is not None:
            # A kubelet always gives a second (pod_workers.go, calculateEffectiveGracePeriod).
            self.stop(max(pod.metadata.deletion_grace_period_seconds or 0, 1))
        if is_news:
            self._news.wake()

    def sources_changed(self) -> None:
        """Bring the files of volumes up to date, and try again what waits: something that the pod refers to changed."""
        self._stale = True
        self._not_before.clear()
        self._news.wake()

    def stop(self, grace: int) -> None:
        """End the pod; a second call may shorten the grace period, and with 0 does not wait for a runtime either.

        :param grace: seconds between the stop signal and SIGKILL.
        """
        if self._grace is not None and grace == 0:
            self._end_deadline = time.monotonic()
        self._grace = grace if self._grace is None else min(self._grace, grace)
        if self._ending is not None:
            self._ending.shorten(grace)
        self._starter.interrupt()
        self._news.wake()

    def fail(self, finish: Finish, grace: int, conditions: tuple[PodCondition, ...] = ()) -> None:
        """End the pod as failed: it is evicted, or has to make room.

        :param finish: the reason and message of its status.
        :param grace: seconds between the stop signal and SIGKILL.
        :param conditions: what its status says beside (``DisruptionTarget``).
        """
        self._asked, self._conditions = finish, conditions
        self.stop(grace)

    async def removal_asked(self) -> int:
        """Return when somebody has asked for the pod's removal, with the grace period; never if nobody does."""
        while True:
            if self._admitted is not None:
                grace = await asyncio.to_thread(self._node.dirs.requested_deletion, self._admitted.uid)
                if grace is not None:
                    return grace
            await asyncio.sleep(_REMOVAL_S)

    async def tear_down(self) -> None:
        """Remove everything of the pod; nothing happens if it was never taken on.

        :raises PodkeepError: naming what is left.
        """
        if self._admitted is None:
            return
        uid = self._admitted.uid
        try:
            await self._until_answered(self._stop_containers)
            await self._until_answered(
                lambda: teardown.remove_pod_state(self._node.client, self._node.dirs, self._node.config, uid)
            )
        finally:
            self.release()

    async def end(self) -> None:
        """End what an earlier process left of a pod that is not to run any more, and report how it ended.

        :raises PodkeepError: if the runtime does not answer, or a container cannot be stopped.
        """
        self._end = self._asked or Finish(failed=False)
        await self._stop_containers()
        observed = await self._observer.read()
        if observed != Observed():
            await self._report(observed)

    async def settle(self) -> None:
        """Give back what the pod, which has ended, needs no more; its containers, logs and termination messages stay.

        :raises PodkeepError: naming what is left.
        """
        uid = parse_pod_uid(self.pod.metadata.uid)
        await teardown.settle(self._node.client, self._node.dirs, self._node.config, uid)
        observed = await self._observer.read()
        if observed != Observed():
            await self._report(observed)

    async def remove(self) -> None:
        """Remove everything of the pod, also what an earlier process left of it; nothing happens if nothing is there.

        :raises PodkeepError: naming what is left.
        """
        uid = parse_pod_uid(self.pod.metadata.uid)
        held = self._admitted is not None
        lock = None if held or not self._node.dirs.is_taken(uid) else self._node.dirs.own(uid)
        try:
            await self._stop_containers()
            await teardown.remove_pod_state(self._node.client, self._node.dirs, self._node.config, uid)
        finally:
            if lock is not None:
                await on_thread(partial(os.close, lock))
        admitted, self._admitted = self._admitted, None
        if admitted is not None:
            # The last one to close a directory that was removed waits for the disk.
            await on_thread(admitted.release)

    def release(self) -> None:
        """Let go of the pod and leave it as it is, for others to look at and remove."""
        if self._admitted is not None:
            self._admitted.release()
            self._admitted = None

    # ---------------------------------------------------------------------------------------------------- the loop

    async def _loop(self, admitted: Admitted) -> None:
        said = ""
        while self._end is None:
            # What came during the step before is in what is seen now: it is no reason to look once more.
            self._news.known()
            if self._grace is not None:
                self._end = self._asked or Finish(failed=False)
                return
            try:
                observed = await self._look()
            except PodkeepError:
                if not self._to_end():
                    raise
                continue
            self._ends.note(observed)
            self._note_probes(observed)
            self._resizing.note_end(self.pod, partial(self._over, observed))
            await self._report(observed)
            await self._keep(observed, admitted)
            await self._refresh_volumes(observed, admitted)
            now = self._clock.now()
            decision = decide(
                self.pod,
                observed,
                now=now,
                since=self._active_since,
                delay=self._back_off.delay,
                held=self._held(now),
                state=self._state(observed),
            )
            if decision.why != said:
                log.info("pod %s/%s: %s", self.pod.metadata.namespace, self.pod.metadata.name, decision.why)
                said = decision.why
            if await self._note_crash_loops(decision):
                # Nobody may look again before the back-off is over.
                await self._report(observed)
            await self._act(decision, observed, admitted)

    async def _take_last_decision(self, admitted: Admitted) -> None:
        """Go on with an end that an earlier process of the agent decided and could not tell.

        A static pod starts anew with the agent, as with a kubelet, which remembers nothing of it.
        """
        if self._shared is None or critical.is_static(self.pod):
            return
        found = await asyncio.to_thread(last_decision.read, admitted.directory.path)
        if found is not None:
            finish = Finish(failed=found.failed, reason=found.reason, message=found.message)
            self.fail(finish, found.grace, found.conditions)

    async def _note_last_decision(self, admitted: Admitted) -> None:
        """Keep why the pod ends, before anything of it ends; what its containers tell needs no note."""
        end = self._end
        if self._shared is None or end is None or not end.reason or critical.is_static(self.pod):
            return
        decision = LastDecision(
            failed=end.failed,
            reason=end.reason,
            message=end.message,
            grace=grace_of(self.pod) if self._grace is None else self._grace,
            conditions=self._conditions,
        )
        await asyncio.to_thread(last_decision.note, admitted.directory.path, decision)

    async def _keep(self, observed: Observed, admitted: Admitted) -> None:
        """Keep what the pod is, for an agent that starts while the API is away; static pods have their files."""
        if not self._changed or self._shared is None or observed.sandbox is None or critical.is_static(self.pod):
            return
        self._changed = False
        start_time = self._reported.start_time if self._reported is not None else self.pod.status.start_time
        await asyncio.to_thread(checkpoint.keep, admitted.directory.path, self.pod, start_time)

    def _over(self, observed: Observed) -> frozenset[str]:
        return over(self.pod, observed, self._state(observed))

    def _state(self, observed: Observed) -> WorkerState:
        allocation = self._node.allocations.get(self.pod.metadata.uid)
        return WorkerState(
            killed=self._killed,
            probes=self._probe_results(),
            previous=self._reported or self.pod.status,
            ended=self._ends.at,
            ran=self._ends.ran,
            actuated=None if allocation is None or self._resizing.is_held() else allocation.actuated.containers,
            actuated_pod=None if allocation is None else allocation.actuated.pod,
        )

    async def _look(self) -> Observed:
        """Return the pod as the runtime has it, waiting for a runtime that is away for as long as it takes.

        The pod's containers run on meanwhile, and nobody else would look after them.

        :raises Unavailable: if it is away when the pod is to end.
        """
        away = False
        while True:
            try:
                observed = await self._observer.read()
            except PodkeepError as error:
                # One that is there and fails is another's pods' runtime, too: an agent asks again whatever it says.
                is_away = isinstance(error, (Unavailable, DeadlineExceeded))
                if self._grace is not None or (self._shared is None and not is_away):
                    raise
                if not is_away:
                    log.warning("pod %s cannot be looked at: %s; trying again", full_name(self.pod), error)
                    await asyncio.sleep(_LOOK_IN_BACK_OFF)
                    continue
                if not away and self._shared is None:  # whoever follows events for all pods has said so
                    said = f"{error.message} ({error.hint})" if error.hint else error.message
                    log.warning("%s; the pod runs on, trying again until there is an answer", said)
                away = True
                await self._news.wait(_LOOK_AGAIN)
            else:
                if away and self._shared is None:
                    log.warning("the runtime answers again")
                self._observed = observed
                self._news.seen(self._observer.at)
                self._node.logs.watch(self.pod.metadata.uid, self._running_logs())
                return observed

    async def _act(self, decision: Decision, observed: Observed, admitted: Admitted) -> None:
        action = decision.action
        if isinstance(action, Finish):
            self._end = action
            if action.reason:
                self._listener.event(Event(type="Normal", reason=action.reason, message=action.message))
            return
        if isinstance(action, Wait):
            self._starts_in_user_namespace = False
            await self._news.wait(None if action.until is None else max(action.until - self._clock.now(), 0.0))
            return
        key = action.container.name if isinstance(action, StartContainer) else ""
        left = self._not_before.get(key, 0.0) - time.monotonic()
        if left > 0:
            await self._news.pause(min(left, _LOOK_IN_BACK_OFF))
            return
        try:
            await self._do(action, observed, admitted)
        except (StepFailed, Unavailable, Cancelled) as failure:
            if self._grace is not None:
                return
            # Not the pod's failure: without a retry it would end the pod, whose sandbox somebody stopped between look
            # and start.
            if await self._sandbox_ended(action, observed):
                log.info("%s; its sandbox has ended, and the pod is looked at again", failure.message)
                return
            if _is_outage(failure) and self._broken_off < _BROKEN_OFF:
                log.warning("%s; trying again", failure.message)
                self._broken_off += 1
                self._not_before[key] = time.monotonic() + _LOOK_IN_BACK_OFF
                return
            if not isinstance(failure, StepFailed):
                raise
            for event in failure.events():
                self._listener.event(event)
            if not self._retry:
                raise
            if isinstance(failure, PostStartFailed):
                await self._until_answered(partial(self._kill_after_hook, failure))
            if isinstance(action, StartContainer) and _left_an_attempt(failure):
                await self._starter.forget_older(action, observed)
            await self._wait_for(key, Waiting(reason=failure.waiting or failure.reason, message=failure.detail))
            self._not_before[key] = time.monotonic() + pause_after(failure, f"start/{key}", self._back_off)
        else:
            self._broken_off = 0
            self._back_off.succeeded(f"start/{key}")
            await self._wait_for(key, None)

    async def _refresh_volumes(self, observed: Observed, admitted: Admitted) -> None:
        """Bring the files of volumes up to date if something may have changed; what fails is told and tried again."""
        if not self._stale or observed.sandbox is None:
            return
        self._stale = False
        try:
            await self._starter.refresh_volumes(admitted)
        except StepFailed as failure:
            for event in failure.events():
                self._listener.event(event)
            asyncio.get_running_loop().call_later(failure.again or _LOOK_AGAIN, self.sources_changed)

    async def _sandbox_ended(self, action: object, observed: Observed) -> bool:
        """Return whether a container could not be started because its sandbox was stopped meanwhile."""
        if not isinstance(action, StartContainer) or observed.sandbox is None:
            return False
        try:
            now = (await self._observer.read()).sandbox
        except (Unavailable, DeadlineExceeded):
            return False
        return now is None or now.id != observed.sandbox.id or not now.ready

    def _running_logs(self) -> list[tuple[str, Path]]:
        views = _running(self._observed).values()
        directory = self._node.config.agent.pod_logs
        return [(view.id, log_of(directory, self.pod, view)) for view in views if view.state is State.RUNNING]

    def _to_end(self) -> bool:
        return self._grace is not None

    async def _stop_when_asked(self) -> None:
        """Stop the pod whenever somebody asks for its removal, also during a step: a pull may take long."""
        asked = None
        while True:
            grace = await self.removal_asked()
            if grace != asked:
                self.stop(grace)
            asked = grace
            await asyncio.sleep(_REMOVAL_S)

    async def _do(self, action: Action, observed: Observed, admitted: Admitted) -> None:
        if isinstance(action, StopSandbox):
            request = api_pb2.StopPodSandboxRequest(pod_sandbox_id=action.sandbox.id)
            await self._node.client.runtime.StopPodSandbox(request)
        elif isinstance(action, CreateSandbox):
            self._stale = False
            # It makes all volumes, so that there is nothing to bring up to date.
            await self._starter.create_sandbox(action.attempt, admitted)
            self._starts_in_user_namespace = admitted.user_namespace is not None
        elif isinstance(action, StartContainer):
            previous = action.previous
            # Of one that was killed the end before it counts (kubelet, doBackOff): there is none of the first attempt.
            is_first_kill = previous is not None and (
                previous.id in self._killed and len(observed.containers[previous.name]) == 1
            )
            if previous is not None and not is_first_kill:
                self._back_off.restarted(previous.name, self._ends.ran.get(previous.id, previous.ran))
            await self._resizing.before_start(self.pod, action.container.name)
            await self._start_container(action, observed, admitted)
            container = action.container
            self._node.allocations.started(self.pod.metadata.uid, container.name, container.resources)
        elif isinstance(action, Resize):
            await self._resizing.resize(self.pod, action, observed, admitted)
        elif isinstance(action, KillContainer):
            if action.replace:
                # A changed container: how often the one before it ended does not count.
                self._back_off.succeeded(action.container.name)
            # Noted before the task runs, as the next decision would otherwise kill the container a second time.
            self._killed[action.view.id] = action
            self._kills[action.view.id] = self._beside.start(self._kill(action, observed))
        elif isinstance(action, ResetContainer):
            await self._reset(action.view)
        else:
            raise FailedPrecondition(f"nothing carries out {action}")

    async def _reset(self, view: ContainerView) -> None:
        """Remove an attempt of a container; if it runs, it is told to end, without its preStop hook, and is given the
        least that a container has for its end."""
        if view.state is not State.EXITED:
            target = targets(self.pod, {view.name: view}, "")[view.name]
            await self._stopper.kill(target, Grace(0), RESET_MESSAGE, hook=False)
        await self._node.client.runtime.RemoveContainer(api_pb2.RemoveContainerRequest(container_id=view.id))

    async def _start_container(self, action: StartContainer, observed: Observed, admitted: Admitted) -> None:
        metrics, kind = self._node.metrics, self._kind_of(action.container.name)
        metrics.add(STARTED_CONTAINERS, kind)
        try:
            await self._starter.start_container(action, observed, admitted)
        except StepFailed as failure:
            metrics.add(STARTED_CONTAINERS_ERRORS, kind, failure.waiting or failure.reason)
            if self._starts_in_user_namespace:
                # Once for each sandbox, as a kubelet does: what a user namespace breaks shows in the containers mostly.
                self._starts_in_user_namespace = False
                metrics.add(STARTED_USERNS_PODS_ERRORS)
            raise

    def _kind_of(self, container: str) -> str:
        """Return what kind of container that is, as metrics say it."""
        if any(item.name == container for item in self.pod.spec.init_containers):
            return "init_container"
        ephemeral = any(item.name == container for item in self.pod.spec.ephemeral_containers)
        return "ephemeral_container" if ephemeral else "container"

    def _held(self, now: float) -> dict[str, float]:
        """Return before which time, in the unit of ``now``, containers are not tried again."""
        ahead = now - time.monotonic()
        return {name: moment + ahead for name, moment in self._not_before.items()}

    async def _wait_for(self, container: str, waiting: Waiting | None) -> None:
        if self._admitted is not None:
            await self._waiting.note(self.pod, self._admitted.directory.path, container, waiting)

    async def _note_crash_loops(self, decision: Decision) -> bool:
        """Say so when a container waits for its next attempt; return whether one does that did not before."""
        pod = full_name(self.pod)
        is_news = False
        for name in decision.backing_off:
            if name in self._waiting.reasons:
                continue
            message = backoff.event_message(name, pod)
            self._listener.event(Event(type="Warning", reason=backoff.EVENT, message=message, container=name))
            text = backoff.waiting_message(self._back_off.delay(name), name, pod)
            await self._wait_for(name, Waiting(reason=backoff.CRASH_LOOP, message=text))
            is_news = True
        return is_news

    # ------------------------------------------------------------------------------------------------- the way out

    async def _until_answered(self, step: Callable[[], Awaitable[Result]]) -> Result:
        """Take a step of the end, which is safe to repeat, again while the runtime is being restarted.

        :raises Unavailable: if it stays away; an agent waits on.
        """
        while True:
            try:
                return await step()
            except (Unavailable, DeadlineExceeded) as error:
                if self._shared is not None:
                    await self._news.pause(_END_AGAIN)
                    continue
                if isinstance(error, DeadlineExceeded):
                    raise
                if self._end_deadline is None:
                    self._end_deadline = time.monotonic() + _END_TIMEOUT
                if time.monotonic() > self._end_deadline:
                    raise
                await asyncio.sleep(_END_PAUSE)

    async def _kill(self, action: KillContainer, observed: Observed) -> None:
        """Stop one container, beside what goes on with the pod; one that cannot be stopped is decided about again."""
        view = action.view
        target = targets(self.pod, {view.name: view}, self._node.probes.address(self.pod, observed))[view.name]
        try:
            await self._stopper.kill(target, Grace(action.grace), action.message, hook=action.hook)
        except PodkeepError as error:
            log.warning("container %s of %s cannot be stopped: %s", view.name, target.pod, error)
            await asyncio.sleep(_LOOK_IN_BACK_OFF)
            # After the pause: forgotten at once, the container would be killed again as fast as the runtime refuses.
            self._killed.pop(view.id, None)
        finally:
            self._kills.pop(view.id, None)
            self._news.wake()

    async def _kill_after_hook(self, failure: PostStartFailed) -> None:
        """Stop the container whose postStart hook failed, with its preStop hook and the pod's grace period."""
        observed = await self._observer.read()
        view = observed.latest(failure.container)
        if view is None or view.id != failure.started or view.state is State.EXITED:
            return
        target = targets(self.pod, {view.name: view}, self._node.probes.address(self.pod, observed))[view.name]
        try:
            await self._stopper.kill(target, Grace(grace_of(self.pod)), failure.reason)
        except (Unavailable, DeadlineExceeded):
            raise
        except PodkeepError as error:
            log.warning("container %s of %s cannot be stopped: %s", view.name, target.pod, error)

    def _probe_results(self) -> Mapping[str, ProbeResult]:
        return {} if self._probes is None else self._probes.results()

    def _note_probes(self, observed: Observed, *, ending: bool = False) -> None:
        """Tell the probes how the pod is, and forget kills of attempts that are gone."""
        if self._probes is not None:
            self._probes.observe(self.pod, observed, ending=ending)
        known = {view.id for views in observed.containers.values() for view in views}
        self._killed = {key: action for key, action in self._killed.items() if key in known}

    async def _stop_containers(self) -> None:
        """Stop what runs: the containers side by side, then the sidecars in reverse order."""
        # The pod's own grace period takes the place of that of a kill; a hook that has run is not run again (Stopper).
        kills = [*self._kills.values()]
        for kill in kills:
            kill.cancel()
        await asyncio.gather(*kills, return_exceptions=True)
        observed = await self._observer.read()
        self._note_probes(observed, ending=True)
        running = targets(self.pod, _running(observed), self._node.probes.address(self.pod, observed))
        if not running:
            return
        # Before the first hook runs: who sends requests to the pod is to stop it now (kubelet, SyncTerminatingPod).
        await self._report(observed)
        # Kept over repetitions of this step: the grace period goes on while the runtime is away.
        if self._ending is None:
            seconds = grace_of(self.pod) if self._grace is None else self._grace
            self._ending = Grace(seconds, at_once=self._grace == 0)
        async with Tasks(f"the status of pod {self.pod.metadata.name} while it is stopped") as beside:
            beside.start(self._report_until_cancelled())
            await self._stopper.stop_pod(self.pod, running, self._ending)

    async def _report_until_cancelled(self) -> None:
        """Tell how the pod is while it is being stopped: it is not ready any more, and its containers end."""
        while self._shared is not None:
            await self._news.woken()
            try:
                observed = await self._observer.read()
            except PodkeepError as error:
                log.debug("pod %s is not looked at while it is stopped: %s", self.pod.metadata.uid, error.message)
                continue
            self._note_probes(observed, ending=True)
            await self._report(observed)

    # ---------------------------------------------------------------------------------------------------- the status

    async def _report(self, observed: Observed) -> None:
        """Tell the agent how the pod is, if that is another way than before."""
        await self._messages.read(self.pod, observed)
        if self._shared is None:
            return
        status = self._status(observed)
        if status == self._reported:
            return
        before, self._reported = self._reported, status
        if self._held_report is not None:
            self._held_report.cancel()
            self._held_report = None
        if before is not None and is_only_the_sandbox(before, status):
            # Its containers follow within milliseconds, unless an image is pulled: one status says both then.
            loop = asyncio.get_running_loop()
            self._held_report = loop.call_later(_HOLD_S, self._shared.report, status)
        else:
            self._shared.report(status)

    def _resize_conditions(self) -> tuple[PodCondition, ...]:
        allocation = self._node.allocations.get(self.pod.metadata.uid)
        return () if allocation is None or self._end is not None else allocation.conditions(self.pod)

    def _status(self, observed: Observed) -> PodStatus:
        end = self._end
        facts = StatusFacts(
            since=self._since,
            now=time.time(),
            host_ips=self._node.host_ips,
            waiting=self._waiting.reasons,
            replaced=frozenset(key for key, action in self._killed.items() if action.replace),
            probes=self._probe_results(),
            message=self._messages.of,
            finished=end is not None,
            failed=(end is not None and end.failed) or exit_code(self.pod, observed) != 0,
            reason="" if end is None else end.reason,
            text="" if end is None else end.message,
            previous=self._reported,
            conditions=self._conditions + self._resize_conditions(),
            runtime=self._node.runtime_name,
        )
        return pod_status(self.pod, observed, facts)


def pause_after(failure: StepFailed, key: str, back_off: BackOff) -> float:
    """Return for how many seconds a step on the way to a running container is not tried again after it failed.

    :param back_off: of the pod, in which ``key`` stands for the step.
    """
    if failure.again is not None:
        return failure.again
    if failure.waiting == _CRASHED:
        return back_off.failed(key)
    # Not longer each time: what was missing on the node (a profile, a network) may be there by now.
    return _TRY_AGAIN_S * (1 + random.random() / 2)


def _left_an_attempt(failure: StepFailed) -> bool:
    return isinstance(failure, PostStartFailed) or failure.waiting == _CRASHED


def with_fresh_back_off(before: Pod, now: Pod) -> list[str]:
    """Return the containers whose failures do not count any more: their image or resources are not what they were."""
    known = {item.name: item for item in (*before.spec.init_containers, *before.spec.containers)}
    return [
        item.name
        for item in (*now.spec.init_containers, *now.spec.containers)
        if (old := known.get(item.name)) is not None and (old.image, old.resources) != (item.image, item.resources)
    ]


def _is_outage(failure: PodkeepError) -> bool:
    """Say whether a step failed because the runtime was away, or gave it up as it ended; of images the node's puller
    decides that."""
    away = (Unavailable, Cancelled)
    return isinstance(failure, away) or (isinstance(failure.__cause__, away) and not isinstance(failure, PullFailed))


def _running(observed: Observed) -> dict[str, ContainerView]:
    return {
        name: views[0]
        for name, views in observed.containers.items()
        if views and views[0].state in {State.RUNNING, State.UNKNOWN}
    }
