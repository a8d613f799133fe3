"""What the server asks of the rest of the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from podkeep.api.pod import Pod
from podkeep.api.status import PodStatus


@dataclass(frozen=True, kw_only=True)
class PodView:
    """A pod of this node as its worker has it. Static pods have their own UID, not their mirror's."""

    pod: Pod
    status: PodStatus
    object: Mapping[str, Any] = field(default_factory=dict)
    """The pod as the API or the manifest has it, with ``status``; empty: it is written from ``pod`` and ``status``."""


class Pods(Protocol):
    """All pods of the node."""

    def all(self) -> Sequence[PodView]:
        """Return the pods that the node has or is to have, in any order."""
        ...

    def by_name(self, namespace: str, name: str) -> PodView | None:
        """Return a pod. A mirror pod's name stands for its static pod."""
        ...

    def by_uid(self, uid: str) -> PodView | None:
        """Return a pod."""
        ...


Health = Callable[[], str]
"""Returns what is wrong; nothing if all is well."""
