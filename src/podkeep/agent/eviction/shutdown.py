"""Ending pods in good order before the machine shuts down (Kubernetes: graceful node shutdown, KEP-2000, KEP-2712).

Owns the watch on systemd-logind, its delay and its inhibitor, and the end of pods, group by group. Without
``shutdown_grace_period`` nothing of it runs. Where logind is not there, that is said once, and tried again: a machine
that is switched off by other means ends pods only as it kills their processes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from podkeep.agent.eviction import shutdown_plan
from podkeep.agent.eviction.logind import Logind
from podkeep.agent.eviction.manager import Events, Pods
from podkeep.agent.metrics import SHUTDOWN_END, SHUTDOWN_START
from podkeep.api.pod import Pod
from podkeep.base import atomicfile
from podkeep.base.config import AgentConfig
from podkeep.base.errors import PodkeepError
from podkeep.base.metrics import Metrics
from podkeep.base.text import rfc3339
from podkeep.kernel.cgroup import systemd

log = logging.getLogger(__name__)

_AGAIN_S = 1.0
"""Between attempts to reach logind (kubelet: dbusReconnectPeriod)."""
_STATE = "graceful_node_shutdown_state"


class GracefulShutdown:
    """Watches for a shutdown of the machine, and ends the pods of the node before it.

    :param report_status: is called when the node begins or ceases to shut down: its Ready condition says so.
    :param bus: the system bus's socket.
    """

    def __init__(
        self,
        *,
        agent: AgentConfig,
        pods: Pods,
        events: Events,
        metrics: Metrics,
        report_status: Callable[[], None],
        bus: Path = systemd.BUS,
    ) -> None:
        self._periods = shutdown_plan.periods(agent)
        self._state = Path(agent.root) / _STATE
        self._pods = pods
        self._events = events
        self._metrics = metrics
        self._report_status = report_status
        self._bus = bus
        self._shutting_down = False

    @property
    def shutting_down(self) -> bool:
        """Whether the machine is about to shut down: no pod is taken on."""
        return self._shutting_down

    def not_ready(self) -> str:
        """Return why the node is not ready, in a kubelet's words; empty if it is."""
        return "node is shutting down" if self._shutting_down else ""

    async def run(self) -> None:
        """Watch until cancelled; returns at once where a shutdown does not wait."""
        if not shutdown_plan.total(self._periods):
            return
        said = ""
        while True:
            try:
                await self._watch()
            except (PodkeepError, OSError) as error:
                text = str(error)
                if text != said:
                    log.warning("graceful shutdown of the node: %s; trying again", text)
                    said = text
            await asyncio.sleep(_AGAIN_S)

    async def _watch(self) -> None:
        """Follow logind until the connection to it ends.

        :raises PodkeepError: if it cannot be reached, or does not wait for as long as it is to.
        """
        async with Logind(self._bus) as logind:
            # Before the lock is taken: a shutdown that begins in between is told then. And what an earlier connection,
            # or an earlier agent, was told last may not be true any more.
            begins = await logind.follow()
            if begins or self._shutting_down:
                await self._take(logind, begins=begins)
            if not begins:
                await self._lock(logind)
            async for begins in logind.shutdowns():
                if begins == self._shutting_down:
                    continue  # of the time before it was asked
                await self._take(logind, begins=begins)
                # Called off after pods were ended: the lock is gone, and the next shutdown needs one.
                if not begins:
                    await self._lock(logind)

    async def _lock(self, logind: Logind) -> None:
        """Have the next shutdown wait for pods."""
        seconds = shutdown_plan.total(self._periods)
        await logind.require_delay(seconds)
        await logind.inhibit()
        log.info("a shutdown of the machine waits %g s for pods", seconds)

    async def _take(self, logind: Logind, *, begins: bool) -> None:
        """Act on a shutdown that begins, or has been called off."""
        what = "event" if begins else "cancellation"
        self._events.node("Normal", "NodeShutdown", f"Shutdown manager detected shutdown {what}")
        self._shutting_down = begins
        # At once, and not with the next look: until the API knows, pods are bound to this node.
        self._report_status()
        if not begins:
            return
        try:
            await self.end_pods()
        finally:
            logind.release()

    async def end_pods(self) -> None:
        """End all pods, those of the lowest priority first; each group has its time, and no more."""
        began = time.time()
        self._metrics.set(SHUTDOWN_START, began)
        self._metrics.set(SHUTDOWN_END, 0)
        await asyncio.to_thread(self._note, began, 0.0)
        for group in shutdown_plan.groups(self._periods, self._pods.active()):
            log.info("ending %d pods of priority %d and above", len(group.pods), group.priority)
            ends = [asyncio.ensure_future(self._end(pod, group)) for pod in group.pods]
            # logind waits for the sum of all groups' times and no longer: what hangs must not take those of the next
            # group.
            _, late = await asyncio.wait(ends, timeout=group.seconds)
            for task in late:
                task.cancel()
            for outcome in await asyncio.gather(*ends, return_exceptions=True):
                if isinstance(outcome, Exception):
                    log.error("a pod could not be ended", exc_info=outcome)
            if late:
                log.warning("%d pods have not ended within %g s", len(late), group.seconds)
        ended = time.time()
        self._metrics.set(SHUTDOWN_END, ended)
        await asyncio.to_thread(self._note, began, ended)

    async def _end(self, pod: Pod, group: shutdown_plan.Group) -> None:
        try:
            await self._pods.end(pod, shutdown_plan.ending(pod, group))
        except PodkeepError as error:
            log.warning("pod %s/%s: %s", pod.metadata.namespace, pod.metadata.name, error)

    def _note(self, began: float, ended: float) -> None:
        """Keep when the shutdown was, for the metrics of the next process."""
        state = {"startTime": _time(began), "endTime": _time(ended)}
        try:
            atomicfile.write(self._state, json.dumps(state).encode())
        except OSError as error:
            log.warning("%s: %s", self._state, error)


def _time(seconds: float) -> str:
    return rfc3339.of_seconds(seconds) if seconds else ""
