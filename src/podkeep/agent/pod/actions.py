"""What a decision about a pod is made of: actions, and what the worker keeps from one decision to the next.

Values only; ``plan.decide`` makes them, ``worker`` carries them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from podkeep.agent.observed import ContainerView, SandboxView
from podkeep.agent.probes.model import ProbeResult
from podkeep.api.containers import Container, ResourceRequirements
from podkeep.api.status import PodStatus
from podkeep.base.frozen import FrozenStruct

ContainerKind = Literal["container", "init container", "ephemeral container"]
KillReason = Literal[
    "", "LivenessProbe", "StartupProbe", "Unknown", "Definition", "Resize", "Replaced", "RestartAllContainers"
]
"""Why a container is killed. That of a failed postStart hook is with who runs hooks."""


class StopSandbox(FrozenStruct, kw_only=True):
    """Stop what is left of a sandbox that is not ready any more, or is one too many."""

    sandbox: SandboxView


class CreateSandbox(FrozenStruct, kw_only=True):
    """Make a sandbox; ``attempt`` counts from 0."""

    attempt: int


class StartContainer(FrozenStruct, kw_only=True):
    """Pull, create and start one container; ``previous`` is the attempt before it.

    :param target: of an ephemeral container, the name of the container whose processes it sees; empty for none.
    """

    container: Container
    attempt: int
    kind: ContainerKind = "container"
    previous: ContainerView | None = None
    target: str = ""

    @property
    def init(self) -> bool:
        """Whether it is one of the init containers, sidecars included."""
        return self.kind == "init container"


class KillContainer(FrozenStruct, kw_only=True):
    """Stop one container: its preStop hook, its stop signal, SIGKILL. The next decision starts it again if it is to.

    :param message: of the event ``Killing``.
    :param grace: seconds, of the probe that failed or of the pod; hooks count into it.
    :param replace: it is started again whatever its restart policy says.
    :param hook: its preStop hook runs.
    """

    view: ContainerView
    container: Container
    reason: KillReason
    message: str
    grace: int
    replace: bool = False
    hook: bool = True


class ResetContainer(FrozenStruct, kw_only=True):
    """Remove one attempt of a container from the runtime, after stopping it within two seconds if it runs.

    The logs stay. The trigger of the restart comes last, so that a reset that was interrupted goes on.
    """

    view: ContainerView


class Resize(FrozenStruct, kw_only=True):
    """Give the pod's cgroup and these running containers the resources that the specification says.

    What shrinks comes first. Empty ``containers``: those of the pod as a whole changed alone.
    """

    containers: tuple[tuple[Container, ContainerView], ...]


class Wait(FrozenStruct, kw_only=True):
    """Nothing to do before ``until`` (by the clock of the decision) or before something changes."""

    until: float | None = None


class Finish(FrozenStruct, kw_only=True):
    """The pod is done: stop what is left of it."""

    failed: bool
    reason: str = ""
    message: str = ""


Action = StopSandbox | CreateSandbox | StartContainer | KillContainer | ResetContainer | Resize | Wait | Finish


class Decision(FrozenStruct, kw_only=True):
    """What to do now, at least one action, and why."""

    actions: tuple[Action, ...]
    why: str
    backing_off: tuple[str, ...] = ()
    """Containers that ended and are started again after their back-off: they wait with ``CrashLoopBackOff``."""

    @property
    def action(self) -> Action:
        return self.actions[0]


class WorkerState(FrozenStruct, kw_only=True):
    """What the worker of a pod keeps from one decision to the next; the rest is what the runtime says.

    ``probes`` is by container ID.
    """

    probes: Mapping[str, ProbeResult] = msgspec.field(default_factory=dict)
    killed: Mapping[str, KillContainer] = msgspec.field(default_factory=dict)
    """By container ID: what this agent stops, or has stopped, because it was decided so."""
    actuated: Mapping[str, ResourceRequirements] | None = None
    """By container: the resources it was last given. ``None`` if nothing of this pod can be resized in place."""
    actuated_pod: ResourceRequirements | None = None
    """The pod's own resources that its cgroup was last given."""
    previous: PodStatus | None = None
    """The status that was last reported: attempts of containers that the runtime has forgotten are counted in it."""
    ended: Mapping[str, float] = msgspec.field(default_factory=dict)
    """By container ID: when it ended, by the clock that decisions go by; of others the runtime's time of day counts."""
    ran: Mapping[str, float] = msgspec.field(default_factory=dict)
    """By container ID: for how many seconds of that clock it ran, likewise."""


NO_STATE = WorkerState()
