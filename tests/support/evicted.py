"""A stand-in for the pods of a node, and for its events, where pods are ended before others or before a shutdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from podkeep.agent.eviction.ending import Ending
from podkeep.api.pod import Pod


class PodsOfNode:
    """Pods that end at once when they are told to, and what the node says."""

    def __init__(self, pods: Iterable[Pod]) -> None:
        self.running = list(pods)
        self.ended: list[str] = []
        self.said: list[str] = []

    def active(self) -> Sequence[Pod]:
        return self.running

    async def end(self, pod: Pod, ending: Ending) -> None:
        self.ended.append(pod.metadata.name)
        self.running.remove(pod)

    async def settled(self, pod: Pod) -> None: ...

    def node(self, kind: str, reason: str, message: str) -> None:
        self.said.append(message)

    def pod(
        self, pod: Pod, kind: str, reason: str, message: str, annotations: dict[str, str] | None = None
    ) -> None: ...
