"""The phase of a pod from the statuses of its containers (kubelet 1.36, getPhase), and its last status. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set

import msgspec

from podkeep.agent.pod.restarts import RESTARTING_ALL, restarts_after
from podkeep.agent.pod.status.containers import LOST_WHILE_ENDING, STATUS_UNKNOWN
from podkeep.agent.resources.critical import is_static
from podkeep.api.containers import Container, is_sidecar
from podkeep.api.pod import Pod
from podkeep.api.status import ContainerState, ContainerStateTerminated, ContainerStatus, PodPhase, PodStatus

_KILLED = 137


def phase(
    pod: Pod,
    inits: Sequence[ContainerStatus],
    mains: Sequence[ContainerStatus],
    *,
    terminal: bool,
    initialized: bool,
    replaced: Set[str] = frozenset(),
) -> PodPhase:
    """Return the phase.

    :param terminal: nothing of the pod is started again, whatever its restart policy.
    :param initialized: one of its containers proper has been made in this sandbox.
    :param replaced: containers that are between two attempts, and count as running: a kubelet tells nothing of that.
    """
    by_name = {status.name: status for status in (*inits, *mains)}
    pending_init = pending_sidecar = waiting = running = unknown = 0
    for container in pod.spec.init_containers:
        status = by_name.get(container.name)
        if is_sidecar(container):
            unknown += status is None or _is_stateless(status)
            running += status is not None and status.state.running is not None
            pending_sidecar += status is not None and _is_pending_sidecar(status)
            waiting += status is not None and _never_ran(status)
            continue
        ended = None if status is None else _ended(status)
        if ended is None:
            pending_init += 1
        elif ended.exit_code != 0 and not _restarts(container, pod, ended):
            return "Failed"
    ends: list[tuple[Container, ContainerStateTerminated]] = []
    for container in pod.spec.containers:
        status = by_name.get(container.name)
        if status is None or _is_stateless(status):
            unknown += 1
        elif status.state.running is not None or container.name in replaced:
            running += 1
        elif (ended := _ended(status)) is not None:
            ends.append((container, ended))
        else:
            waiting += 1
    if pending_init or (pending_sidecar and not initialized) or waiting:
        return "Pending"
    if unknown or not (running or ends):
        return "Pending"
    if running:
        return "Running"
    return _ended_phase(pod, ends, by_name, terminal=terminal)


def _ended_phase(
    pod: Pod,
    ends: Sequence[tuple[Container, ContainerStateTerminated]],
    by_name: dict[str, ContainerStatus],
    *,
    terminal: bool,
) -> PodPhase:
    """Return the phase of a pod of which nothing runs."""
    # One that waits to be started again has not succeeded, whatever its last exit code.
    good = all(ended.exit_code == 0 and by_name[item.name].state.terminated is not None for item, ended in ends)
    if not (terminal and not is_static(pod)) and any(_restarts(item, pod, ended) for item, ended in ends):
        return "Running"
    return "Succeeded" if good else "Failed"


def _restarts(container: Container, pod: Pod, ended: ContainerStateTerminated) -> bool:
    return restarts_after(container, pod.spec, ended.exit_code) or ended.reason == RESTARTING_ALL


def _ended(status: ContainerStatus) -> ContainerStateTerminated | None:
    """Return the end of a container that ended last, or of the one before if it waits to be started again."""
    if status.state.terminated is not None:
        return status.state.terminated
    return status.last_state.terminated if status.state.waiting is not None else None


def _is_stateless(status: ContainerStatus) -> bool:
    return status.state == ContainerState()


def _never_ran(status: ContainerStatus) -> bool:
    return status.state.waiting is not None and status.last_state.terminated is None


def _is_pending_sidecar(status: ContainerStatus) -> bool:
    if status.state.running is not None:
        return not status.started
    return _never_ran(status) or _is_stateless(status)


def at_its_end(pod: Pod, status: PodStatus) -> PodStatus:
    """Return the last status of a pod of which nothing runs any more: every container that was begun has ended.

    What is not known to have ended well has failed (kubelet, TerminatePod).
    """
    mains, inits = status.container_statuses, status.init_container_statuses
    if _was_initialized(pod, status):
        mains = tuple(_ended_for_good(item) for item in mains)
    begun = max((index + 1 for index, item in enumerate(inits) if not _never_ran(item)), default=min(1, len(inits)))
    inits = (*(_ended_for_good(item) for item in inits[:begun]), *inits[begun:])
    last = status.phase
    if last not in {"Succeeded", "Failed"} and not is_static(pod):
        last = "Failed"
    return msgspec.structs.replace(status, container_statuses=mains, init_container_statuses=inits, phase=last)


def _ended_for_good(status: ContainerStatus) -> ContainerStatus:
    if status.state.terminated is not None:
        return status
    ended = ContainerStateTerminated(exit_code=_KILLED, reason=STATUS_UNKNOWN, message=LOST_WHILE_ENDING)
    return msgspec.structs.replace(status, state=ContainerState(terminated=ended))


def _was_initialized(pod: Pod, status: PodStatus) -> bool:
    if not pod.spec.init_containers:
        return True
    if any(not _never_ran(item) for item in status.container_statuses):
        return True
    if not status.init_container_statuses:
        return False
    last = status.init_container_statuses[-1]
    if is_sidecar(pod.spec.init_containers[-1]):
        return last.state.running is not None and last.started is True
    ends = (last.state.terminated, last.last_state.terminated)
    return any(ended is not None and ended.exit_code == 0 for ended in ends)
