"""What happens to a pod, as values: the events that ``kubectl describe`` shows, with the kubelet's reasons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from podkeep.base.errors import FailedPrecondition


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event of a pod. ``container`` is empty for an event of the pod as a whole."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    container: str = ""


class PodListener(Protocol):
    """Who wants to know what happens to a pod; called on the event loop and must not block."""

    def event(self, event: Event) -> None:
        """Something happened."""

    def started(self, container: str, attempt: int, log: Path) -> None:
        """A container runs; its output goes to ``log`` (CRI log format)."""


class StepFailed(FailedPrecondition):
    """A step on the way to a running pod failed.

    ``reason`` is the event's reason (``FailedCreatePodSandBox``), ``waiting`` the waiting reason of the container's
    status (``ErrImagePull``), ``container`` its name, empty for the pod as a whole.
    """

    def __init__(self, message: str, *, reason: str, waiting: str = "", container: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.waiting = waiting
        self.container = container

    def event(self) -> Event:
        """Return the event that reports this failure."""
        return Event(type="Warning", reason=self.reason, message=self.message, container=self.container)
