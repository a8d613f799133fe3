"""The status of a pod (v1.PodStatus) from what is wanted and what was observed. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from podkeep.agent.pod.events import PodRejected
from podkeep.agent.pod.observed import ContainerView, Observed, State
from podkeep.agent.pod.plan import is_sidecar
from podkeep.agent.resources.qos import qos_class
from podkeep.api.containers import Container, VolumeMount
from podkeep.api.pod import Pod
from podkeep.api.status import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    HostIP,
    ImageVolumeStatus,
    PodCondition,
    PodIP,
    PodPhase,
    PodStatus,
    VolumeMountStatus,
    VolumeStatus,
)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Why a container is not running, in the kubelet's words (``ErrImagePull``)."""

    reason: str
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class StatusFacts:
    """What the agent knows beside the runtime's answer.

    ``finished`` is set when the pod has ended: whether it failed, why, and the message of that. ``message`` returns the
    last words of an attempt of a container. Times are seconds since 1970.
    """

    since: float
    host_ips: tuple[str, ...]
    waiting: Mapping[str, Waiting]
    message: Callable[[ContainerView], str]
    finished: bool = False
    failed: bool = False
    reason: str = ""
    text: str = ""


def pod_status(pod: Pod, observed: Observed, facts: StatusFacts) -> PodStatus:
    """Return the status of ``pod``."""
    spec = pod.spec
    inits = tuple(_container(container, observed, facts, "PodInitializing") for container in spec.init_containers)
    mains = tuple(_container(container, observed, facts, _first_wait(pod, observed)) for container in spec.containers)
    ips = observed.sandbox.ips if observed.sandbox is not None else ()
    ips = facts.host_ips if spec.host_network else ips
    phase = _phase(facts, inits, mains)
    return PodStatus(
        phase=phase,
        conditions=_conditions(observed, inits, mains),
        reason=facts.reason,
        message=facts.text,
        host_ip=next(iter(facts.host_ips), ""),
        host_ips=tuple(HostIP(ip=address) for address in facts.host_ips),
        pod_ip=next(iter(ips), ""),
        pod_ips=tuple(PodIP(ip=address) for address in ips),
        start_time=_time(int(facts.since * 1e9)),
        init_container_statuses=inits,
        container_statuses=mains,
        qos_class=qos_class(pod),
    )


def rejected(pod: Pod, rejection: PodRejected) -> PodStatus:
    """Return the status of a pod that the node did not take on: as much as a kubelet says of it."""
    return PodStatus(phase="Failed", reason=rejection.reason, message=rejection.message, qos_class=qos_class(pod))


def exit_code(pod: Pod, observed: Observed) -> int:
    """Return how the pod ended: 0, or the exit code of the container that failed first (128+n: killed by signal n)."""
    sidecars = {container.name for container in pod.spec.init_containers if is_sidecar(container)}
    latest = (views[0] for name, views in observed.containers.items() if views and name not in sidecars)
    failures = [view for view in latest if view.state is State.EXITED and view.exit_code != 0]
    if not failures:
        return 0
    return min(failures, key=lambda view: view.finished_at).exit_code


def _first_wait(pod: Pod, observed: Observed) -> str:
    """Return why containers that were never tried wait: for init containers, or for being made."""
    if not pod.spec.init_containers:
        return "ContainerCreating"
    ready = all(
        (view := observed.latest(container.name)) is not None
        and (view.state is State.RUNNING if is_sidecar(container) else view.exit_code == 0 and view.finished_at > 0)
        for container in pod.spec.init_containers
    )
    return "ContainerCreating" if ready else "PodInitializing"


def _phase(facts: StatusFacts, inits: tuple[ContainerStatus, ...], mains: tuple[ContainerStatus, ...]) -> PodPhase:
    if facts.finished:
        # One that was stopped before its containers ended has not done its work (kubelet, status manager).
        done = all(status.state.terminated for status in mains)
        return "Succeeded" if done and not facts.failed else "Failed"
    started = [status for status in mains if status.state.running or status.state.terminated or status.restart_count]
    return "Running" if mains and len(started) == len(mains) else "Pending"


def _conditions(
    observed: Observed, inits: tuple[ContainerStatus, ...], mains: tuple[ContainerStatus, ...]
) -> tuple[PodCondition, ...]:
    sandbox = observed.sandbox is not None and observed.sandbox.ready
    initialized = all(status.ready or status.started for status in inits)
    ready = bool(mains) and all(status.ready for status in mains)
    values = {
        "PodReadyToStartContainers": sandbox,
        "Initialized": initialized,
        "Ready": ready and initialized,
        "ContainersReady": ready,
        "PodScheduled": True,
    }
    return tuple(PodCondition(type=name, status="True" if value else "False") for name, value in values.items())


def _container(container: Container, observed: Observed, facts: StatusFacts, first_wait: str) -> ContainerStatus:
    attempts = observed.containers.get(container.name, ())
    latest = attempts[0] if attempts else None
    waiting = facts.waiting.get(container.name)
    last = ContainerState()
    if latest is None:
        wait = waiting or Waiting(reason=first_wait)
        state = ContainerState(waiting=ContainerStateWaiting(reason=wait.reason, message=wait.message))
    elif waiting is not None and latest.state is State.EXITED and not facts.finished:
        state = ContainerState(waiting=ContainerStateWaiting(reason=waiting.reason, message=waiting.message))
        last = _state(latest, facts)
    else:
        state = _state(latest, facts)
        last = _state(attempts[1], facts) if len(attempts) > 1 else last
    running = latest is not None and latest.state is State.RUNNING
    done = latest is not None and latest.state is State.EXITED and latest.exit_code == 0
    return ContainerStatus(
        name=container.name,
        state=state,
        last_state=last,
        ready=running or (done and first_wait == "PodInitializing" and not is_sidecar(container)),
        restart_count=0 if latest is None else latest.attempt,
        image=container.image if latest is None else latest.image,
        image_id="" if latest is None else latest.image_ref,
        container_id="" if latest is None else f"cri://{latest.id}",
        started=running,
        volume_mounts=() if latest is None else tuple(_mount(mount, latest) for mount in container.volume_mounts),
    )


def _mount(mount: VolumeMount, view: ContainerView) -> VolumeMountStatus:
    """Return the status of a mount; of an image volume it says which image was found (KEP-4639)."""
    ref = view.mounted_images.get(posixpath.join("/", mount.mount_path))
    return VolumeMountStatus(
        name=mount.name,
        mount_path=mount.mount_path,
        read_only=mount.read_only,
        recursive_read_only=(mount.recursive_read_only or "Disabled") if mount.read_only else None,
        volume_status=None if ref is None else VolumeStatus(image=ImageVolumeStatus(image_ref=ref)),
    )


def _state(view: ContainerView, facts: StatusFacts) -> ContainerState:
    if view.state is State.RUNNING:
        return ContainerState(running=ContainerStateRunning(started_at=_time(view.started_at)))
    if view.state is not State.EXITED:
        return ContainerState(waiting=ContainerStateWaiting(reason="ContainerCreating"))
    return ContainerState(
        terminated=ContainerStateTerminated(
            exit_code=view.exit_code,
            reason=view.reason or ("Completed" if view.exit_code == 0 else "Error"),
            message=facts.message(view) or view.message,
            started_at=_time(view.started_at),
            finished_at=_time(view.finished_at),
            container_id=f"cri://{view.id}",
        )
    )


def seconds_of(text: str | None) -> float | None:
    """Return a time of the API in seconds since 1970; ``None`` if there is none."""
    return None if text is None else datetime.fromisoformat(text.upper().replace("Z", "+00:00")).timestamp()


def _time(nanoseconds: int) -> str | None:
    if nanoseconds <= 0:
        return None
    return datetime.fromtimestamp(nanoseconds // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
