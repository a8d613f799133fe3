"""Garbage collection of containers that have ended, of sandboxes without any, and of logs without a pod.

Rules: pkg/kubelet/kuberuntime/kuberuntime_gc.go. It looks at pods that the agent runs alone: what no source wants is
removed by who looks for orphans, what other programs keep in the same runtime is theirs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from podkeep.agent.convert import names
from podkeep.agent.events import Event
from podkeep.agent.logs import rotation
from podkeep.agent.poddirs import PodDirs
from podkeep.base.config import AgentConfig
from podkeep.base.errors import InvalidArgument, PodkeepError, words_of
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import parse_pod_uid
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from podkeep.kernel.files.removal import remove_tree

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
"""Between two collections, as a kubelet has it."""


class EndedContainer(FrozenStruct, kw_only=True):
    """A container that does not run. ``created_at`` in nanoseconds since 1970; ``log`` in the directory of all logs.

    Of the attempts of one container ``attempt`` says which is newer: the clock may have been set between them.
    """

    id: str
    pod: str
    name: str
    created_at: int
    attempt: int = 0
    log: str = ""


class Policy(FrozenStruct, kw_only=True):
    """How many are kept; negative: all. ``min_age`` in seconds."""

    per_container: int = 1
    in_all: int = -1
    min_age: float = 0.0

    @classmethod
    def of(cls, agent: AgentConfig) -> Policy:
        return cls(
            per_container=agent.maximum_dead_containers_per_container,
            in_all=agent.maximum_dead_containers,
            min_age=agent.minimum_container_ttl,
        )


class ContainerGarbage:
    """Removes what is left of containers, on demand and every minute.

    :param knows: tells whether the agent has the pod with a UID.
    :param ended: tells whether a pod has ended, so that nothing of it will run again.
    :param report: takes events of the node.
    """

    def __init__(
        self,
        *,
        client: CriClient,
        agent: AgentConfig,
        dirs: PodDirs,
        knows: Callable[[str], bool],
        ended: Callable[[str], bool],
        report: Callable[[Event], None],
    ) -> None:
        self._client = client
        self._policy = Policy.of(agent)
        self._logs = Path(agent.pod_logs)
        self._dirs = dirs
        self._knows = knows
        self._ended = ended
        self._report = report

    async def run(self) -> None:
        """Collect until cancelled. Begins when all pods are known: the caller waits for that."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.attempt()

    async def attempt(self) -> None:
        """Collect once; what fails is told."""
        try:
            await self.collect()
        except (PodkeepError, OSError) as error:
            log.warning("garbage collection of containers: %s", error)
            self._report(Event(type="Warning", reason="ContainerGCFailed", message=words_of(error)))

    async def remove_unused(self) -> None:
        """Remove every container that is not needed, also of pods that have ended: the disk is full.

        :raises PodkeepError: if the runtime does not answer.
        """
        await self.collect(all_of_ended=True)

    async def collect(self, *, all_of_ended: bool = False) -> None:
        """Remove what is too much.

        :raises PodkeepError: if the runtime does not answer.
        """
        containers = (await self._client.runtime.ListContainers(api_pb2.ListContainersRequest())).containers
        sandboxes = (await self._client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest())).items
        dead = [
            EndedContainer(
                id=item.id,
                pod=item.labels[names.POD_UID],
                name=item.metadata.name,
                created_at=item.created_at,
                attempt=item.metadata.attempt,
                log=log_of(item),
            )
            for item in containers
            if item.state == api_pb2.CONTAINER_EXITED and self._knows(item.labels.get(names.POD_UID, ""))
        ]
        removed = excess(dead, self._policy, now=time.time(), all_of=(lambda uid: all_of_ended and self._ended(uid)))
        for item in removed:
            if item.log:
                await rotation.remove(self._logs / item.log)
            await self._remove(api_pb2.RemoveContainerRequest(container_id=item.id))
        gone = {item.id for item in removed}
        used = {item.pod_sandbox_id for item in containers if item.id not in gone}
        await self._sandboxes(sandboxes, used, all_of_ended=all_of_ended)
        await asyncio.to_thread(self._remove_logs, {item.metadata.uid for item in sandboxes})

    async def _sandboxes(self, sandboxes: Iterable[api_pb2.PodSandbox], used: set[str], *, all_of_ended: bool) -> None:
        """Remove sandboxes without containers, but for the newest of a pod that may still need it."""
        by_pod: dict[str, list[api_pb2.PodSandbox]] = {}
        for item in sandboxes:
            if self._knows(item.metadata.uid):
                by_pod.setdefault(item.metadata.uid, []).append(item)
        for uid, items in by_pod.items():
            items.sort(key=lambda item: (item.metadata.attempt, item.created_at), reverse=True)
            for item in items if all_of_ended and self._ended(uid) else items[1:]:
                if item.state != api_pb2.SANDBOX_READY and item.id not in used:
                    await self._remove(api_pb2.RemovePodSandboxRequest(pod_sandbox_id=item.id))

    async def _remove(self, request: api_pb2.RemoveContainerRequest | api_pb2.RemovePodSandboxRequest) -> None:
        try:
            if isinstance(request, api_pb2.RemoveContainerRequest):
                await self._client.runtime.RemoveContainer(request)
            else:
                await self._client.runtime.RemovePodSandbox(request)
        except PodkeepError as error:
            log.warning("garbage collection of containers: %s", error.message)

    def _remove_logs(self, in_runtime: set[str]) -> None:
        """Remove logs of pods of which nothing else is left."""
        try:
            entries = os.listdir(self._logs)
        except FileNotFoundError:
            return
        for entry in entries:
            uid = uid_of_logs(entry)
            # The directory of logs may be shared: what `podkeep run` or another agent runs has a directory or a
            # sandbox, too.
            if not uid or uid in in_runtime or self._knows(uid) or self._dirs.is_taken(parse_pod_uid(uid)):
                continue
            log.info("removing logs of a pod that is gone: %s", entry)
            try:
                remove_tree(self._logs / entry)
            except (PodkeepError, OSError) as error:
                log.warning("logs of a pod that is gone: %s", error)


def excess(
    dead: Iterable[EndedContainer], policy: Policy, *, now: float, all_of: Callable[[str], bool] = lambda _: False
) -> list[EndedContainer]:
    """Return the containers that are too many, oldest first for each.

    :param now: seconds since 1970.
    :param all_of: tells whether nothing of a pod, by its UID, is to be kept.
    """
    found: list[EndedContainer] = []
    units: dict[tuple[str, str], list[EndedContainer]] = {}
    for item in sorted(dead, key=lambda item: (item.attempt, item.created_at), reverse=True):
        if all_of(item.pod):
            found.append(item)
        elif not 0 <= now - item.created_at / 1e9 < policy.min_age:  # one from the future: the clock was set
            units.setdefault((item.pod, item.name), []).append(item)
    if policy.per_container >= 0:
        found += _cut(units, policy.per_container)
    count = sum(map(len, units.values()))
    if 0 <= policy.in_all < count:
        # As upstream (evictContainers): first the same number of each container, at least one, then the oldest of all.
        found += _cut(units, max(policy.in_all // len(units), 1))
        rest = sorted((item for unit in units.values() for item in unit), key=lambda item: -item.created_at)
        found += rest[policy.in_all :]
    return found


def log_of(item: api_pb2.Container) -> str:
    """Return where a container's log is in the directory of all logs; empty if it is not in there by these names."""
    labels, name = item.labels, item.metadata.name
    directory = names.log_directory_of(labels[names.POD_NAMESPACE], labels[names.POD_NAME], labels[names.POD_UID])
    # They are the runtime's word, and what is there is removed.
    if not names.is_directory_name(directory) or not names.is_directory_name(name):
        return ""
    return f"{directory}/{names.log_path(name, item.metadata.attempt)}"


def _cut(units: dict[tuple[str, str], list[EndedContainer]], most: int) -> list[EndedContainer]:
    """Take from each unit what is beyond its newest ``most``, and return it."""
    cut: list[EndedContainer] = []
    for key, items in units.items():
        cut += items[most:]
        units[key] = items[:most]
    return cut


def uid_of_logs(name: str) -> str:
    """Return the UID of the pod whose logs a directory has by its name, empty if it is not one of a pod."""
    namespace, _, rest = name.partition("_")
    pod, _, uid = rest.partition("_")
    try:
        return parse_pod_uid(uid) if namespace and pod else ""
    except InvalidArgument:
        return ""
