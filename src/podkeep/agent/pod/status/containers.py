"""Statuses of containers (v1.ContainerStatus) from their attempts, probe results and what was reported before. Pure.

Rules of kubelet 1.36 (convertToAPIContainerStatuses): restart counts never go down, and a container that the runtime
has forgotten counts as ended.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

import msgspec

from podkeep.agent.observed import MAX_ATTEMPT, ContainerView, Observed, State
from podkeep.agent.pod.plan import reported, restarting_all
from podkeep.agent.pod.restarts import RESTARTING_ALL, restarts_after
from podkeep.agent.pod.status.facts import StatusFacts, Waiting
from podkeep.agent.probes.model import NO_PROBES
from podkeep.agent.resources.requests import binary
from podkeep.api.containers import Container, ResourceRequirements, VolumeMount, is_sidecar
from podkeep.api.pod import Pod
from podkeep.api.status import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ContainerUser,
    ImageVolumeStatus,
    PodStatus,
    VolumeMountStatus,
    VolumeStatus,
)
from podkeep.base.text import quantity, rfc3339

CONTAINER_CREATING = "ContainerCreating"
POD_INITIALIZING = "PodInitializing"
STATUS_UNKNOWN = "ContainerStatusUnknown"
LOST_WHILE_ENDING = "The container could not be located when the pod was terminated"
_LOST = "The container could not be located when the pod was deleted.  The container used to be Running"
_RESET = "The container is removed because RestartAllContainers in place"
_DONE_BEFORE = (
    "Unable to get init container status from container runtime and pod has been initialized, "
    "treat it as exited normally"
)
# A kubelet reports exit code 137 (128 + SIGKILL) for a container that the runtime no longer has.
_KILLED = 137
_MAX_ID = 4096
"""Characters of a container's ID: one of megabytes would keep all of the status from being told."""
_MAX_WAITING = 256 * 1024
"""Bytes of what all containers of a pod wait for: hooks print what they like, and a status has to fit in a request."""
_MAX_WAITING_EACH = 4096
_MAX_MESSAGES = 12 * 1024
"""Bytes of the termination messages of all containers of a pod (kubelet, ``MaxPodTerminationMessageLogLength``)."""
_MAX_GROUPS = 4000
"""Groups of the users of all containers of a pod. An image's /etc/group can have 65,536 for one, and an API takes only
so many values in an object. A user with more is not told: some of the groups would be another user's."""
# The least that the kernel can be told (kubelet: cm.MinMilliCPULimit and cm.MinShares): a smaller request ends up here,
# so that these figures cannot be turned back into what was asked for.
_MIN_MILLI_CPU_LIMIT = 10
_MIN_SHARES = 2


class ContainerStatuses:
    """Makes the statuses of one pod's containers."""

    def __init__(self, pod: Pod, observed: Observed, facts: StatusFacts, previous: PodStatus) -> None:
        self._pod = pod
        self._observed = observed
        self._facts = facts
        self._before = {status.name: status for status in reported(previous)}
        spec = pod.spec
        count = len(spec.containers) + len(spec.init_containers) + len(spec.ephemeral_containers)
        self._max_groups = _MAX_GROUPS // max(count, 1)
        self._max_message = _MAX_MESSAGES // max(count, 1)
        self._max_waiting = min(_MAX_WAITING_EACH, _MAX_WAITING // max(count, 1))
        self._deleted = pod.metadata.deletion_timestamp is not None
        self._all_restart = restarting_all(pod, observed, previous)
        self._main_created = any(
            (view := observed.latest(container.name)) is not None and view.state is not State.UNKNOWN
            for container in pod.spec.containers
        )

    def init(self) -> tuple[ContainerStatus, ...]:
        """Return the statuses of the init containers, in their order."""
        return tuple(self._init(container) for container in self._pod.spec.init_containers)

    def main(self) -> tuple[ContainerStatus, ...]:
        """Return the statuses of the containers proper, by name."""
        statuses = (self._probed(container, self._waits(container)) for container in self._pod.spec.containers)
        return tuple(sorted(statuses, key=lambda status: status.name))

    def ephemeral(self, containers: Sequence[Container]) -> tuple[ContainerStatus, ...]:
        """Return the statuses of ephemeral containers, by name; those are neither probed nor ready."""
        statuses = (self._waits(container) for container in containers)
        return tuple(sorted(statuses, key=lambda status: status.name))

    # ----------------------------------------------------------------------------------------------------- one status

    def _init(self, container: Container) -> ContainerStatus:
        view = self._observed.latest(container.name)
        if view is not None and view.state is State.EXITED and view.exit_code == 0:
            status = self._state(container)
        elif view is None and self._main_created and not self._all_restart and not is_sidecar(container):
            status = self._state(container)
            if status.state.waiting is not None:
                done = ContainerStateTerminated(exit_code=0, reason="Completed", message=_DONE_BEFORE)
                status = msgspec.structs.replace(status, state=ContainerState(terminated=done))
        else:
            status = self._waits(container)
        if is_sidecar(container):
            return self._probed(container, status)
        ended = status.state.terminated
        return msgspec.structs.replace(
            status, started=self._started(container, status), ready=ended is not None and ended.exit_code == 0
        )

    def _probed(self, container: Container, status: ContainerStatus) -> ContainerStatus:
        started = self._started(container, status)
        return msgspec.structs.replace(status, started=started, ready=started and self._ready(container))

    def _started(self, container: Container, status: ContainerStatus) -> bool:
        view = self._observed.latest(container.name)
        if status.state.running is None or view is None:
            return False
        result = self._facts.probes.get(view.id, NO_PROBES).started
        if result is not None:
            return result
        before = self._same_before(view)
        # An agent that was started anew does not take back what the one before it has found.
        return (before is not None and before.started is True) or container.startup_probe is None

    def _ready(self, container: Container) -> bool:
        view = self._observed.latest(container.name)
        if container.readiness_probe is None or view is None:
            return True
        result = self._facts.probes.get(view.id, NO_PROBES).ready
        if result is not None:
            return result
        before = self._same_before(view)
        return before is not None and before.ready

    def _same_before(self, view: ContainerView) -> ContainerStatus | None:
        """Return what was reported of this very attempt."""
        before = self._before.get(view.name)
        return before if before is not None and before.container_id == self._id(view) else None

    def replaced(self) -> frozenset[str]:
        """Return the containers proper that the agent ended to start them anew, and that have not been started yet."""
        containers = self._pod.spec.containers
        return frozenset(item.name for item in containers if self._is_replaced(self._observed.latest(item.name)))

    def _is_replaced(self, view: ContainerView | None) -> bool:
        if view is None or view.state is not State.EXITED or self._deleted or self._facts.finished:
            return False
        return view.id in self._facts.replaced

    def _waits(self, container: Container) -> ContainerStatus:
        """Return the status; of a container that will be started again and could not be, it says why."""
        status = self._state(container)
        waiting = self._facts.waiting.get(container.name)
        if waiting is None and self._is_replaced(self._observed.latest(container.name)):
            # An end, once told, is final where the policy restarts nothing: the API takes no status after it.
            waiting = Waiting(reason=CONTAINER_CREATING)
        if waiting is None or self._facts.finished or not self._is_started_again(container):
            return status
        last = status.last_state if status.state.terminated is None else status.state
        message = _cut(waiting.message, self._max_waiting)
        state = ContainerState(waiting=ContainerStateWaiting(reason=waiting.reason, message=message))
        return msgspec.structs.replace(status, state=state, last_state=last)

    def _is_started_again(self, container: Container) -> bool:
        if self._deleted:
            return False
        view = self._observed.latest(container.name)
        if view is None:
            return True
        if view.state is State.RUNNING:
            return False
        if view.state is not State.EXITED or self._is_replaced(view):
            return True
        return restarts_after(container, self._pod.spec, view.exit_code)

    def _state(self, container: Container) -> ContainerStatus:
        attempts = self._observed.containers.get(container.name, ())
        before = self._before.get(container.name)
        mounts = tuple(self._mount(mount, attempts[0] if attempts else None) for mount in container.volume_mounts)
        if not attempts:
            return self._missing(container, before, mounts)
        view = attempts[0]
        return ContainerStatus(
            name=container.name,
            state=self._converted(view, before),
            last_state=self._last(attempts, before),
            ready=False,
            restart_count=self._restarts(view, before),
            image=view.image,
            image_id=view.image_ref,
            container_id=self._id(view),
            volume_mounts=mounts,
            allocated_resources=dict(container.resources.requests),
            resources=self._resources(container, view, before),
            user=self._user(view),
            stop_signal=_stop_signal(container, view),
        )

    def _user(self, view: ContainerView) -> ContainerUser | None:
        if view.user is None or view.user.linux is None:
            return view.user
        return view.user if len(view.user.linux.supplemental_groups) <= self._max_groups else None

    def _missing(
        self, container: Container, before: ContainerStatus | None, mounts: tuple[VolumeMountStatus, ...]
    ) -> ContainerStatus:
        """Return the status of a container of which the runtime knows nothing."""
        reason = POD_INITIALIZING if self._pod.spec.init_containers else CONTAINER_CREATING
        status = ContainerStatus(
            name=container.name,
            state=ContainerState(waiting=ContainerStateWaiting(reason=reason)),
            ready=False,
            restart_count=0 if before is None else before.restart_count,
            last_state=ContainerState() if before is None else before.last_state,
            image=container.image,
            image_id="",
            volume_mounts=mounts,
        )
        if before is None:
            return status
        if self._all_restart and before.state.waiting is None:
            return self._was_reset(status, before)
        if before.state.terminated is not None:
            return msgspec.structs.replace(before, volume_mounts=before.volume_mounts or mounts)
        if before.state.running is None or status.last_state.terminated is not None:
            return status
        lost = ContainerStateTerminated(exit_code=_KILLED, reason=STATUS_UNKNOWN, message=_LOST)
        return msgspec.structs.replace(
            status,
            last_state=ContainerState(terminated=lost),
            restart_count=status.restart_count if self._deleted else _one_more(status.restart_count),
        )

    def _was_reset(self, status: ContainerStatus, before: ContainerStatus) -> ContainerStatus:
        ended = ContainerStateTerminated(exit_code=_KILLED, reason=RESTARTING_ALL, message=_RESET)
        return msgspec.structs.replace(
            status,
            state=ContainerState(waiting=ContainerStateWaiting(reason=RESTARTING_ALL, message=_RESET)),
            last_state=ContainerState(terminated=ended),
            restart_count=_one_more(before.restart_count),
        )

    def _id(self, view: ContainerView) -> str:
        return f"{self._facts.runtime}://{view.id[:_MAX_ID]}"

    def _restarts(self, view: ContainerView, before: ContainerStatus | None) -> int:
        if before is None:
            return view.attempt
        count = max(view.attempt, before.restart_count)
        # A runtime that counts from 0 again must not hide that the container was started again.
        another = before.state.terminated is not None and before.container_id != self._id(view)
        again = another and view.state is State.RUNNING and before.restart_count >= view.attempt
        return _one_more(count) if again else count

    def _last(self, attempts: Sequence[ContainerView], before: ContainerStatus | None) -> ContainerState:
        if len(attempts) > 1:
            return self._converted(attempts[1], None)
        if before is None:
            return ContainerState()
        if before.container_id != self._id(attempts[0]) and before.state.terminated is not None:
            return ContainerState(terminated=before.state.terminated)
        return ContainerState(terminated=before.last_state.terminated)

    def _converted(self, view: ContainerView, before: ContainerStatus | None) -> ContainerState:
        if view.state is State.RUNNING:
            return ContainerState(running=ContainerStateRunning(started_at=rfc3339.of_nanoseconds(view.started_at)))
        if view.state is State.EXITED:
            return ContainerState(terminated=self._terminated(view))
        if view.state is State.UNKNOWN and before is not None and before.state.running is not None:
            reason = RESTARTING_ALL if self._all_restart else STATUS_UNKNOWN
            lost = ContainerStateTerminated(exit_code=_KILLED, reason=reason, message=LOST_WHILE_ENDING)
            return ContainerState(terminated=lost)
        return ContainerState(waiting=ContainerStateWaiting())

    def _terminated(self, view: ContainerView) -> ContainerStateTerminated:
        words = [text for text in (view.message, self._facts.message(view)) if text]
        return ContainerStateTerminated(
            exit_code=view.exit_code,
            reason=view.reason or ("Completed" if view.exit_code == 0 else "Error"),
            message=_cut(": ".join(words), self._max_message),
            started_at=rfc3339.of_nanoseconds(view.started_at),
            finished_at=rfc3339.of_nanoseconds(view.finished_at),
            container_id=self._id(view),
        )

    # ------------------------------------------------------------------------------------------------------- resources

    def _mount(self, mount: VolumeMount, view: ContainerView | None) -> VolumeMountStatus:
        """Return the status of a mount; of an image volume it says which image was found (KEP-4639)."""
        path = posixpath.join("/", mount.mount_path)
        ref = None if view is None else view.mounted_images.get(path)
        recursive = mount.recursive_read_only == "Enabled" or (view is not None and path in view.recursive_mounts)
        return VolumeMountStatus(
            name=mount.name,
            mount_path=mount.mount_path,
            read_only=mount.read_only,
            recursive_read_only=("Enabled" if recursive else "Disabled") if mount.read_only else None,
            volume_status=None if ref is None else VolumeStatus(image=ImageVolumeStatus(image_ref=ref)),
        )

    def _resources(
        self, container: Container, view: ContainerView, before: ContainerStatus | None
    ) -> ResourceRequirements:
        """Return what a container has: of one that runs what the runtime says, where it says something."""
        allocated = container.resources
        limits, requests = dict(allocated.limits), dict(allocated.requests)
        if view.state is not State.RUNNING:
            return ResourceRequirements(limits=limits, requests=requests, claims=allocated.claims)
        same = before if before is not None and before.state.running and before.container_id == self._id(view) else None
        old = same.resources if same is not None and same.resources is not None else ResourceRequirements()
        cpu_limit, cpu_request, memory_limit = _confined(view)
        if limits:
            _set_cpu(limits, cpu_limit, old.limits, above=_MIN_MILLI_CPU_LIMIT)
            if memory_limit:
                limits["memory"] = _same_amount(allocated.limits.get("memory", ""), memory_limit)
            elif "memory" in old.limits:
                limits["memory"] = old.limits["memory"]
        if requests:
            _set_cpu(requests, cpu_request, old.requests, above=_MIN_SHARES)
        return ResourceRequirements(limits=limits, requests=requests, claims=allocated.claims)


def _one_more(restarts: int) -> int:
    return min(restarts, MAX_ATTEMPT) + 1


def _stop_signal(container: Container, view: ContainerView) -> str | None:
    """Return the signal with which a container is stopped, if it chose one (KEP-4960, off unless asked for)."""
    chosen = container.lifecycle is not None and container.lifecycle.stop_signal is not None
    return view.stop_signal if chosen and view.stop_signal else None


def _confined(view: ContainerView) -> tuple[int, int, int]:
    """Return the CPU limit and request in thousandths and the memory limit in bytes; 0 for none."""
    confinement = view.resources
    if confinement is None:
        return 0, 0, 0
    quota, period = confinement.cpu_quota_us, confinement.cpu_period_us
    cpu_limit = quota * 1000 // period if quota > 0 and period > 0 else 0
    # Rounded up, as shares were rounded down when they were made (kubelet: sharesToMilliCPU).
    return cpu_limit, -(-confinement.cpu_shares * 1000 // 1024), confinement.memory_limit_bytes


def _set_cpu(amounts: dict[str, str], milli: int, old: dict[str, str], *, above: int) -> None:
    """Set the CPU to ``milli`` thousandths; a figure at the kernel's lower end says nothing about what was wanted."""
    allocated = quantity.milli(amounts["cpu"]) if "cpu" in amounts else 0
    if not milli:
        if "cpu" in old:
            amounts["cpu"] = old["cpu"]
    elif (milli > above or allocated > above) and milli != allocated:
        amounts["cpu"] = quantity.canonical(f"{milli}m")


def _same_amount(text: str, size: int) -> str:
    """Return ``size`` bytes, in the words of ``text`` if that is the same amount."""
    return text if text and quantity.units(text) == size else binary(size)


def _cut(text: str, most: int) -> str:
    """Return the first bytes of a text, in whole characters."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")
