"""What the server asks of the rest of the agent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from podkeep.api.pod import Pod
from podkeep.api.status import PodStatus


class Pods(Protocol):
    """All pods of the node (``manager.PodManager``)."""

    def pods(self) -> Iterable[tuple[Pod, PodStatus]]:
        """Return the pods that the node has or is to have, in any order."""
        ...

    def find(self, namespace: str, name: str) -> tuple[Pod, PodStatus] | None:
        """Return the pod of that name, if there is one. A mirror pod's name stands for its static pod."""
        ...
