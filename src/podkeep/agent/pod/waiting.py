"""What the containers of a pod wait for: in its status, in an event, and in a file that ``podkeep ps`` reads."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from podkeep.agent.events import PodListener
from podkeep.agent.pod.status.facts import Waiting
from podkeep.api.containers import is_sidecar
from podkeep.api.pod import Pod
from podkeep.base import waiting as waiting_file
from podkeep.base.waiting import Containers, WaitingReason

log = logging.getLogger(__name__)


class WaitingContainers:
    """The containers of one pod that wait.

    :ivar reasons: by container; the empty name is the pod's, which waits for its sandbox.
    """

    def __init__(self, listener: PodListener) -> None:
        self._listener = listener
        self.reasons: dict[str, Waiting] = {}

    async def note(self, pod: Pod, directory: Path, container: str, waiting: Waiting | None) -> None:
        """Note why a container waits; ``None``: it waits no longer."""
        if waiting == self.reasons.get(container):
            return
        if waiting is None:
            del self.reasons[container]
        else:
            self.reasons[container] = waiting
            self._listener.waiting(container, waiting.reason, waiting.message)
        await self.write(pod, directory)

    async def write(self, pod: Pod, directory: Path) -> None:
        """Write down what the pod consists of and waits for.

        :param directory: the pod's.
        """
        spec = pod.spec
        containers = Containers(
            init=tuple(container.name for container in spec.init_containers),
            sidecars=tuple(container.name for container in spec.init_containers if is_sidecar(container)),
            main=tuple(container.name for container in spec.containers),
            grace=spec.termination_grace_period_seconds or 0,
            waiting={
                name: WaitingReason(reason=item.reason, message=item.message) for name, item in self.reasons.items()
            },
        )
        try:
            await asyncio.to_thread(waiting_file.tell, directory, containers)
        except OSError as error:
            # Only the command line reads it: a full disk must not end a pod that waits.
            log.warning("what pod %s waits for cannot be noted: %s", pod.metadata.uid, error)
