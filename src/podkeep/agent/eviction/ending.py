"""How the agent ends a pod against its will: eviction, preemption, shutdown of the machine. Pure."""

from __future__ import annotations

from podkeep.agent.pod.actions import Finish
from podkeep.agent.pod.status.conditions import DISRUPTION_TARGET
from podkeep.api.pod import Pod
from podkeep.api.status import PodCondition
from podkeep.base.frozen import FrozenStruct

TERMINATION_BY_KUBELET = "TerminationByKubelet"


class Ending(FrozenStruct, kw_only=True):
    """Why and how fast a pod is ended. It has failed, with this reason and message.

    :param grace: seconds between the stop signal and SIGKILL; ``None``: the pod's own.
    :param disruption: message of the pod's condition ``DisruptionTarget``; empty: it gets none.
    """

    reason: str
    message: str
    grace: int | None = None
    disruption: str = ""

    def finish(self) -> Finish:
        """Return what the pod's worker is told."""
        return Finish(failed=True, reason=self.reason, message=self.message)

    def grace_of(self, pod: Pod) -> int:
        """Return the grace period for ``pod``, in seconds."""
        if self.grace is not None:
            return self.grace
        own = pod.spec.termination_grace_period_seconds
        return 30 if own is None else own

    def conditions(self, pod: Pod) -> tuple[PodCondition, ...]:
        """Return what the pod's status says beside."""
        if not self.disruption:
            return ()
        condition = PodCondition(
            type=DISRUPTION_TARGET,
            observed_generation=pod.metadata.generation,
            status="True",
            reason=TERMINATION_BY_KUBELET,
            message=self.disruption,
        )
        return (condition,)
