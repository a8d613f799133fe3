"""What ``podkeep ps`` says about a pod, decided from what the runtime reports, and what its agent waits for. Pure.

The words are those of ``kubectl get pods`` where it has one (Running, Completed, Error, OOMKilled, ContainerCreating,
ImagePullBackOff).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from podkeep.cli import output
from podkeep.cri.v1 import api_pb2

HEADER = ("NAME", "NAMESPACE", "READY", "STATUS", "RESTARTS", "AGE", "IP", "UIDS")

_CONTAINER_STATES = {
    api_pb2.CONTAINER_CREATED: "created",
    api_pb2.CONTAINER_RUNNING: "running",
    api_pb2.CONTAINER_EXITED: "exited",
    api_pb2.CONTAINER_UNKNOWN: "unknown",
}


@dataclass(frozen=True, kw_only=True)
class ContainerRow:
    """The newest attempt of one container."""

    name: str
    id: str
    image: str
    state: str
    restarts: int
    exit_code: int | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class WaitingRow:
    """A container that its agent cannot start now, and why; ``name`` is empty for the sandbox."""

    name: str
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class PodRow:
    """One pod.

    ``created_at`` is in nanoseconds since 1970, ``uids`` the host UIDs ``first-last`` that its user namespace maps to.
    """

    name: str
    namespace: str
    id: str
    ready: bool
    status: str
    created_at: int
    ip: str
    uids: str
    containers: tuple[ContainerRow, ...]
    waiting: tuple[WaitingRow, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return the row as values for JSON; times in RFC 3339."""
        return {**asdict(self), "created_at": output.rfc3339(self.created_at)}

    def cells(self, now: float) -> tuple[str, ...]:
        """Return the cells under :data:`HEADER`; ``now`` in seconds since 1970."""
        running = sum(1 for container in self.containers if container.state == "running")
        known = {container.name for container in self.containers} | {item.name for item in self.waiting if item.name}
        return (
            self.name,
            self.namespace,
            f"{running}/{len(known)}",
            self.status,
            str(sum(container.restarts for container in self.containers)),
            output.age(now - self.created_at / 1e9),
            self.ip or "<none>",
            self.uids or "host",
        )


def newest_attempts(containers: Sequence[api_pb2.Container]) -> list[api_pb2.Container]:
    """Return the newest attempt of each container of each sandbox, in order of sandbox and name."""
    newest: dict[tuple[str, str], api_pb2.Container] = {}
    for container in containers:
        key = (container.pod_sandbox_id, container.metadata.name)
        if key not in newest or container.metadata.attempt > newest[key].metadata.attempt:
            newest[key] = container
    return [newest[key] for key in sorted(newest)]


def pod_row(
    sandbox: api_pb2.PodSandbox,
    status: api_pb2.PodSandboxStatus,
    containers: Sequence[api_pb2.Container],
    exits: Mapping[str, api_pb2.ContainerStatus],
    waiting: Sequence[WaitingRow] = (),
) -> PodRow:
    """Return the row of a pod.

    :param containers: the newest attempts in this sandbox.
    :param exits: status by container ID, at least of the exited ones.
    :param waiting: what its agent cannot start now.
    """
    ready = sandbox.state == api_pb2.SANDBOX_READY
    rows = tuple(_container_row(container, exits.get(container.id)) for container in containers)
    return PodRow(
        name=sandbox.metadata.name,
        namespace=sandbox.metadata.namespace,
        id=sandbox.id,
        ready=ready,
        status=waiting[0].reason if waiting else status_word(ready, rows),
        created_at=sandbox.created_at,
        ip=status.network.ip,
        uids=uid_ranges(status.linux.namespaces.options.userns_options),
        containers=rows,
        waiting=tuple(waiting),
    )


def _container_row(container: api_pb2.Container, status: api_pb2.ContainerStatus | None) -> ContainerRow:
    exited = status is not None and status.state == api_pb2.CONTAINER_EXITED
    return ContainerRow(
        name=container.metadata.name,
        id=container.id,
        image=container.image.user_specified_image or container.image.image,
        state=_CONTAINER_STATES.get(container.state, "unknown"),
        restarts=container.metadata.attempt,
        exit_code=status.exit_code if status is not None and exited else None,
        reason=status.reason if status is not None and exited else "",
    )


def status_word(ready: bool, containers: Sequence[ContainerRow]) -> str:
    """Return the one word for a pod."""
    states = {container.state for container in containers}
    if "unknown" in states:
        return "Unknown"
    if "running" in states:
        return "Running" if ready else "NotReady"
    if states == {"exited"}:
        failed = [container for container in containers if container.exit_code != 0]
        return (failed[0].reason or "Error") if failed else "Completed"
    return "ContainerCreating" if ready else "NotReady"


def uid_ranges(options: api_pb2.UserNamespace) -> str:
    """Return the host UIDs of a pod's user namespace as ``first-last``, joined by commas; empty without one."""
    if options.mode != api_pb2.POD:
        return ""
    return ",".join(f"{item.host_id}-{item.host_id + item.length - 1}" for item in options.uids)
