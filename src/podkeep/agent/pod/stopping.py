"""Stopping containers: preStop hooks, whose time counts into the grace period, and sidecars last.

Order and times are a kubelet's (kuberuntime, ``killContainer`` and ``terminationOrdering``): the hooks of all run at
once; sidecars then wait for the other containers, and for the sidecars behind them. The grace period may get shorter.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from podkeep.agent.convert.names import full_name
from podkeep.agent.events import Event, PodListener
from podkeep.agent.observed import ContainerView
from podkeep.agent.probes.hooks import HookFailed, Hooks
from podkeep.agent.probes.model import Target
from podkeep.api.containers import Container, EphemeralContainer, is_sidecar
from podkeep.api.pod import Pod
from podkeep.base.errors import NotFound
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

log = logging.getLogger(__name__)

MINIMUM_GRACE_S = 2
"""What a container has between its stop signal and SIGKILL even if hooks took the grace period up (kubelet)."""
MAXIMUM_GRACE_S = 2**31 - 1
"""68 years. Manifests may say up to 2^63 - 1, which clocks, as floating point numbers, round to more than CRI takes."""


def grace_of(pod: Pod) -> int:
    """Return the seconds that ``pod`` gets for its end; a deletion's own period wins.

    What a container gets that is killed because of a probe is in ``plan.kill_grace``.
    """
    if pod.metadata.deletion_grace_period_seconds is not None:
        return pod.metadata.deletion_grace_period_seconds
    if pod.spec.termination_grace_period_seconds is not None:
        return pod.spec.termination_grace_period_seconds
    return MINIMUM_GRACE_S


class Grace:
    """How long something may still take. It only gets shorter.

    :param at_once: not even the minimum is left: somebody does not want to wait.
    """

    def __init__(self, seconds: float, *, at_once: bool = False) -> None:
        self._end = asyncio.get_running_loop().time() + min(seconds, MAXIMUM_GRACE_S)
        self._changed = asyncio.Event()
        self.at_once = at_once

    @property
    def left(self) -> float:
        """Return how many seconds are left, at least 0."""
        return max(self._end - asyncio.get_running_loop().time(), 0.0)

    def shorten(self, seconds: float) -> None:
        """Let no more than ``seconds`` be left from now on; 0: nothing, nor the minimum."""
        end = asyncio.get_running_loop().time() + min(seconds, MAXIMUM_GRACE_S)
        if end < self._end or (seconds <= 0 and not self.at_once):
            self._end = min(self._end, end)
            self.at_once = self.at_once or seconds <= 0
            # Each waiter has the event of its time: one that is set and cleared would be missed by who has not begun to
            # wait.
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    def changed(self) -> Coroutine[Any, Any, Any]:
        """A coroutine that ends when the period is shortened after this call."""
        return self._changed.wait()

    async def over(self) -> None:
        """Return when nothing is left."""
        while left := self.left:
            waiter = asyncio.ensure_future(self.changed())
            try:
                await asyncio.wait({waiter}, timeout=left)
            finally:
                waiter.cancel()


class Stopper:
    """Stops containers of one pod. The hook of an attempt of a container runs once, however often it is stopped."""

    def __init__(self, client: CriClient, hooks: Hooks, listener: PodListener) -> None:
        self._client = client
        self._hooks = hooks
        self._listener = listener
        self._said: set[str] = set()
        self._hooked: set[str] = set()

    async def stop_pod(self, pod: Pod, running: Mapping[str, Target], grace: Grace) -> None:
        """Stop what runs of a pod: side by side, then the sidecars in reverse order.

        :param running: by their names, the containers that run, and those of which it is not known.
        :raises PodkeepError: of the first that could not be stopped, after all were tried.
        """
        ended = {name: asyncio.Event() for name in running}
        before = prerequisites(pod, running)
        steps = [
            self._stop_in_turn(target, grace, [ended[other] for other in before.get(name, ())], ended[name])
            for name, target in running.items()
        ]
        # Not a TaskGroup: one container that cannot be stopped must not cancel the stopping of the others.
        results = await asyncio.gather(*steps, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def kill(self, target: Target, grace: Grace, message: str, *, hook: bool = True) -> None:
        """Stop one container of a pod that goes on.

        :param message: why, for the event.
        :param hook: run its preStop hook before.
        :raises PodkeepError: if it could not be stopped.
        """
        self._say(target, message)
        if hook:
            await self._pre_stop(target, grace)
        await self._stop(target, grace)

    async def _stop_in_turn(
        self, target: Target, grace: Grace, before: Collection[asyncio.Event], ended: asyncio.Event
    ) -> None:
        try:
            self._say(target, f"Stopping container {target.container.name}")
            await self._pre_stop(target, grace)
            for other in before:
                # Most have ended when the first that was waited for has: each of many would be two tasks.
                if not other.is_set():
                    await _either(other.wait(), grace.over())
            await self._stop(target, grace)
        finally:
            # Also when it failed: sidecars wait for this, and must not do so for the whole grace period.
            ended.set()

    def _say(self, target: Target, message: str) -> None:
        if target.id not in self._said:
            self._said.add(target.id)
            event = Event(type="Normal", reason="Killing", message=message, container=target.container.name)
            self._listener.event(event)

    async def _pre_stop(self, target: Target, grace: Grace) -> None:
        """Run the container's preStop hook, if there is time for one."""
        lifecycle = target.container.lifecycle
        if lifecycle is None or lifecycle.pre_stop is None or target.id in self._hooked or not grace.left:
            return
        self._hooked.add(target.id)
        hook = self._hooks.run(lifecycle.pre_stop, target, self._listener)
        try:
            if not await _either(hook, grace.over()):
                log.info("the preStop hook of %s in %s has not ended in its time", target.container.name, target.pod)
        except HookFailed as failure:
            # What the hook printed may be secret; events are read by many.
            log.info("%s", failure.message)
            name = target.container.name
            event = Event(type="Warning", reason="FailedPreStopHook", message="PreStopHook failed", container=name)
            self._listener.event(event)

    async def _stop(self, target: Target, grace: Grace) -> None:
        """Stop one container, sooner when the grace period gets shorter meanwhile."""
        attempts: set[asyncio.Task[None]] = set()
        waiting: set[asyncio.Task[Any]] = set()
        try:
            while True:
                # Rounded up: CRI takes whole seconds, and the pod must not get less than it was promised.
                seconds = 0 if grace.at_once else max(math.ceil(grace.left), MINIMUM_GRACE_S)
                # CRI cannot shorten a StopContainer under way: when the period gets shorter, another one runs beside
                # it.
                attempts.add(asyncio.ensure_future(self._request(target.id, seconds)))
                changed = asyncio.ensure_future(grace.changed())
                waiting.add(changed)
                await asyncio.wait({*attempts, changed}, return_when=asyncio.FIRST_COMPLETED)
                ended = next((attempt for attempt in attempts if attempt.done()), None)
                if ended is not None:
                    ended.result()
                    return
        finally:
            for task in (*attempts, *waiting):
                task.cancel()
            await asyncio.gather(*attempts, *waiting, return_exceptions=True)

    async def _request(self, container: str, seconds: int) -> None:
        try:
            await self._client.runtime.StopContainer(
                api_pb2.StopContainerRequest(container_id=container, timeout=seconds)
            )
        except NotFound:
            return


def prerequisites(pod: Pod, running: Collection[str]) -> dict[str, list[str]]:
    """Return for each sidecar that runs which containers end before it: all others, and the sidecars behind it."""
    main = [container.name for container in pod.spec.containers if container.name in running]
    result: dict[str, list[str]] = {}
    later: list[str] = []
    for container in reversed(pod.spec.init_containers):
        if is_sidecar(container) and container.name in running:
            result[container.name] = [*main, *later]
            later.append(container.name)
    return result


def targets(pod: Pod, views: Mapping[str, ContainerView], host: str) -> dict[str, Target]:
    """Return by their names what :meth:`Stopper.stop_pod` stops, of what the runtime has.

    :param host: the pod's address, for hooks.
    """
    specs: dict[str, Container | EphemeralContainer] = {item.name: item for item in pod.spec.ephemeral_containers}
    specs |= {item.name: item for item in (*pod.spec.init_containers, *pod.spec.containers)}
    return {
        name: Target(container=specs.get(name) or Container(name=name), id=view.id, pod=full_name(pod), host=host)
        for name, view in views.items()
    }


async def _either(work: Coroutine[Any, Any, Any], limit: Coroutine[Any, Any, None]) -> bool:
    """Do ``work`` until ``limit`` returns; return whether it came to its end.

    :raises Exception: what ``work`` raised.
    """
    task, end = asyncio.ensure_future(work), asyncio.ensure_future(limit)
    try:
        await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        task.cancel()
        end.cancel()
        await asyncio.gather(task, end, return_exceptions=True)
