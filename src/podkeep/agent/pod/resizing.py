"""Resizing a pod that runs: its cgroup and its containers get what was granted, in an order that fits at each step.

Owns when a resize that failed is tried again. Does not own: what is granted (``resources.allocations``), how cgroups
and containers are changed (``resources.resizer``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from podkeep.agent.events import Event, PodListener
from podkeep.agent.metrics import POD_RESIZE_DURATION, AgentMetrics
from podkeep.agent.observed import Observed
from podkeep.agent.pod.actions import Resize
from podkeep.agent.pod.admission import Admitted
from podkeep.agent.pod.starter import Starter
from podkeep.agent.resources.allocations import Allocations
from podkeep.agent.resources.resizer import Resizer, Running, in_order
from podkeep.api.containers import ResourceRequirements
from podkeep.api.pod import Pod
from podkeep.base.errors import FailedPrecondition, NotFound, PodkeepError

_AGAIN_S = 10.0
"""After which a resize that failed is tried again."""


class PodResizing:
    """Resizes one pod.

    :param wake: makes the pod's worker decide again.
    """

    def __init__(
        self,
        *,
        allocations: Allocations,
        resizer: Resizer,
        metrics: AgentMetrics,
        starter: Starter,
        listener: PodListener,
        wake: Callable[[], None],
    ) -> None:
        self._allocations = allocations
        self._resizer = resizer
        self._metrics = metrics
        self._starter = starter
        self._listener = listener
        self._wake = wake
        self._not_before = 0.0

    def is_held(self) -> bool:
        """Whether a resize failed so recently that it is not tried again yet."""
        return time.monotonic() < self._not_before

    def note_end(self, pod: Pod, over: Callable[[], frozenset[str]]) -> None:
        """Report a resize that has come to its end.

        :param over: returns the containers that have ended for good; asked only while there is a resize.
        """
        if self._allocations.in_progress(pod.metadata.uid):
            self._allocations.over(pod.metadata.uid, over())
            self._tell(self._allocations.finish(pod))

    async def before_start(self, pod: Pod, container: str) -> None:
        """Give the pod's cgroup what it was granted before a container starts that has more, or less, than before."""
        allocation = self._allocations.get(pod.metadata.uid)
        if allocation is None or allocation.has(container):
            return
        try:
            rest = await self._resizer.begin(pod, allocation.actuated, ())
            # As long as another container has more than it was granted, so must the pod.
            others = allocation.granted.containers.keys() - allocation.over - {container}
            if all(map(allocation.has, others)):
                await self._resizer.finish(pod, rest)
        except PodkeepError as error:
            self._tell(self._allocations.fail(pod, error.message))

    async def resize(self, pod: Pod, action: Resize, observed: Observed, admitted: Admitted) -> None:
        """Give the pod and its containers what they were granted; a failure is reported, and tried again later.

        :raises FailedPrecondition: if nothing is known of the pod's resources.
        """
        uid = pod.metadata.uid
        allocation = self._allocations.get(uid)
        if allocation is None:
            raise FailedPrecondition(f"nothing is known of the resources of pod {uid}")
        had = allocation.actuated
        started = time.monotonic()
        running = in_order([Running(id=view.id, container=item) for item, view in action.containers], had)
        try:
            rest = await self._resizer.begin(pod, had, running)
            for item in running:
                # Noted one by one: what a failure leaves behind is known, and the next attempt goes on from there.
                with suppress(NotFound):  # it has just ended
                    await self._resizer.container(pod, had, item)
                self._allocations.actuated(uid, item.container.name, item.container.resources)
            await self._resizer.finish(pod, rest)
            if observed.sandbox is not None and _classes(had.pod) != _classes(pod.spec.resources):
                await self._starter.update_classes(observed.sandbox, admitted)
            self._allocations.pod_actuated(uid, pod.spec.resources)
        except PodkeepError as error:
            self._not_before = time.monotonic() + _AGAIN_S
            asyncio.get_running_loop().call_later(_AGAIN_S, self._wake)
            event = self._allocations.fail(pod, error.message)
            done = "false"
        else:
            event = self._allocations.finish(pod)
            done = "true"
        self._metrics.observe(POD_RESIZE_DURATION, (time.monotonic() - started) * 1e3, done)
        self._tell(event)

    def _tell(self, event: Event | None) -> None:
        if event is not None:
            self._listener.event(event)


def _classes(given: ResourceRequirements | None) -> Mapping[str, str]:
    return {} if given is None else given.classes
