"""What the agent knows of a pod beside the runtime's answer, for its status. Values alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

import msgspec

from podkeep.agent.observed import ContainerView
from podkeep.agent.probes.model import ProbeResult
from podkeep.api.status import PodCondition, PodStatus
from podkeep.base.frozen import FrozenStruct
from podkeep.cri import RUNTIME_NAME


class Waiting(FrozenStruct, kw_only=True):
    """Why a container is not running, in the kubelet's words (``ErrImagePull``)."""

    reason: str
    message: str = ""


class StatusFacts(FrozenStruct, kw_only=True):
    """What the agent knows beside the runtime's answer. Times are seconds since 1970.

    :param since: when the pod became active: its start time.
    :param message: returns the termination message of an attempt of a container.
    :param waiting: by container name, why its last start failed.
    :param replaced: attempts (IDs) that the agent ended to start the container anew, whatever its restart policy.
    :param finished: the pod has ended, or is being removed, and nothing of it is started again.
    :param failed: it ended in failure whatever its containers say.
    :param reason: why the agent ended it (``DeadlineExceeded``, ``Evicted``): the pod has failed once nothing of it
        runs any more; ``text`` is the message of that.
    :param now: the present; conditions that change do so now.
    :param previous: the status that was last reported; without it that of the pod's object.
    :param conditions: of the agent, beside those that follow from containers: ``PodResizePending``,
        ``PodResizeInProgress``, ``DisruptionTarget``.
    :param runtime: name of the runtime, of which container IDs begin.
    """

    since: float
    now: float
    host_ips: tuple[str, ...]
    waiting: Mapping[str, Waiting]
    message: Callable[[ContainerView], str]
    replaced: Set[str] = frozenset()
    finished: bool = False
    failed: bool = False
    reason: str = ""
    text: str = ""
    probes: Mapping[str, ProbeResult] = msgspec.field(default_factory=dict)
    previous: PodStatus | None = None
    conditions: tuple[PodCondition, ...] = ()
    runtime: str = RUNTIME_NAME
