"""Termination messages of a pod's containers, each read once after its container has ended.

Owns which messages are kept: those of attempts that the runtime still has. Reading one is in
``volumes.container_files``, since the file is in the container's hands.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from podkeep.agent.convert import names
from podkeep.agent.observed import ContainerView, Observed, State
from podkeep.agent.poddirs import PodDirs
from podkeep.agent.volumes.container_files import (
    keep_termination_message,
    mounted_termination_log,
    termination_log,
    termination_message,
)
from podkeep.api.pod import Pod
from podkeep.base.errors import words_of
from podkeep.base.ids import parse_pod_uid


class TerminationMessages:
    """The messages of one pod.

    :param pod_logs: directory of the logs of all pods.
    """

    def __init__(self, dirs: PodDirs, pod_logs: str) -> None:
        self._dirs = dirs
        self._pod_logs = pod_logs
        self._messages: dict[str, str] = {}

    async def read(self, pod: Pod, observed: Observed) -> None:
        """Read the messages of attempts that have ended since the last call, and forget those that are gone."""
        ended = [view for views in observed.containers.values() for view in views if view.state is State.EXITED]
        missing = [view for view in ended if view.id not in self._messages]
        if missing:
            texts = await asyncio.to_thread(lambda: [self._read(pod, view) for view in missing])
            self._messages.update(zip([view.id for view in missing], texts, strict=True))
        kept = {view.id for view in ended}
        self._messages = {key: text for key, text in self._messages.items() if key in kept}

    def of(self, view: ContainerView) -> str:
        """Return the message of an attempt; empty if it has none."""
        return self._messages.get(view.id, "")

    def _read(self, pod: Pod, view: ContainerView) -> str:
        spec = pod.spec
        policies = {item.name: item.termination_message_policy for item in spec.ephemeral_containers}
        policies |= {item.name: item.termination_message_policy for item in (*spec.init_containers, *spec.containers)}
        directory = self._dirs.directory(parse_pod_uid(pod.metadata.uid))
        file = termination_log(directory, view.name, view.attempt)
        pinned = mounted_termination_log(pod, view.name, directory)
        if pinned is not None:
            try:
                keep_termination_message(file, pinned)
            except FileNotFoundError:
                pass  # the pod's directory is gone
            except OSError as error:
                return f"Error on reading termination log {pinned}: {words_of(error)}"  # in a kubelet's words
        fall_back = policies.get(view.name) == "FallbackToLogsOnError" and view.exit_code != 0
        return termination_message(file, log_of(self._pod_logs, pod, view), fall_back=fall_back)


def log_of(pod_logs: str, pod: Pod, view: ContainerView) -> Path:
    return Path(names.log_directory(pod_logs, pod)) / names.log_path(view.name, view.attempt)
