"""What happens to a pod, as values: the events that ``kubectl describe`` shows, with the kubelet's reasons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from podkeep.base.errors import FailedPrecondition
from podkeep.base.frozen import FrozenStruct


class Event(FrozenStruct, kw_only=True):
    """One event of a pod. ``container`` is empty for an event of the pod as a whole."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    container: str = ""


class PodListener(Protocol):
    """Is told what happens to a pod, on the event loop; must not block."""

    def event(self, event: Event) -> None:
        """Take an event of the pod or of one of its containers."""

    def waiting(self, container: str, reason: str, message: str) -> None:
        """A container waits to be tried again (``ImagePullBackOff``); ``container`` is empty for the sandbox."""

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
        self.detail = message
        """The message of the waiting reason."""
        self.again: float | None = None
        """Seconds after which the step is worth trying again; ``None`` leaves it to the pod's own back-off."""

    def event(self) -> Event:
        return Event(type="Warning", reason=self.reason, message=self.message, container=self.container)

    def events(self) -> Sequence[Event]:
        """Return all events that report this failure: several volumes may have failed at once."""
        return (self.event(),)


class PostStartFailed(StepFailed):
    """The postStart hook of a container that was started failed: it is to be killed.

    What the hook printed is in its status, and in no event: those are read by many (kubelet, startContainer).

    :param started: ID of the container.
    """

    def __init__(self, message: str, *, container: str, started: str) -> None:
        super().__init__(message, reason="FailedPostStartHook", waiting="PostStartHookError", container=container)
        self.started = started
        # The container has run and ended: the back-off of its restarts is all that it waits for, as in a kubelet.
        self.again = 0.0

    def event(self) -> Event:
        return Event(type="Warning", reason=self.reason, message="PostStartHook failed", container=self.container)


class PodRejected(StepFailed):
    """The node does not take a pod on, before anything of it exists; the pod is Failed and not tried again.

    Its status says so after ``Pod was rejected: ``, its event without (kubelet, pod admission).
    """

    def __init__(self, message: str, *, reason: str, hint: str = "") -> None:
        super().__init__(f"Pod was rejected: {message}", reason=reason, hint=hint)
        self.detail = message

    def event(self) -> Event:
        return Event(type="Warning", reason=self.reason, message=self.detail)


class PullFailed(StepFailed):
    """An image is not to be had. What happened to the image was reported where it happened.

    :param waiting: waiting reason of the containers that need it.
    :param detail: what their status says beside the reason.
    :param again: seconds after which to ask again.
    """

    def __init__(self, message: str, *, waiting: str, detail: str, again: float, hint: str = "") -> None:
        super().__init__(message, reason="Failed", waiting=waiting, hint=hint)
        self.detail = detail
        self.again = again

    def of(self, container: str) -> PullFailed:
        """Return this failure as that of ``container``, which needs the image."""
        failure = PullFailed(
            self.message, waiting=self.waiting, detail=self.detail, again=self.again or 0.0, hint=self.hint
        )
        failure.container = container
        return failure

    def event(self) -> Event:
        return Event(type="Warning", reason="Failed", message=f"Error: {self.waiting}", container=self.container)
