"""``podkeep ps``: the pods of the runtime, whoever made them.

What is said of a pod is decided, by pure functions, from what the runtime reports and what its agent waits for. The
words are those of ``kubectl get pods`` where it has one (Running, Completed, Error, OOMKilled, ContainerCreating,
ImagePullBackOff).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from podkeep.base.errors import NotFound, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import rfc3339
from podkeep.base.waiting import Containers, WaitingReason
from podkeep.cli.core import connection, output
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.core.output import echo_line, output_option, show, table
from podkeep.cli.pods import targets
from podkeep.cli.pods.verdicts import verdict
from podkeep.cri.v1 import api_pb2

if TYPE_CHECKING:
    from podkeep.base.config import Config
    from podkeep.cri.client import CriClient


_CONTAINER_STATES = {
    api_pb2.CONTAINER_CREATED: "created",
    api_pb2.CONTAINER_RUNNING: "running",
    api_pb2.CONTAINER_EXITED: "exited",
    api_pb2.CONTAINER_UNKNOWN: "unknown",
}


@click.command(name="ps")
@click.option("-a", "--all", "all_", is_flag=True, help="Also pods whose sandbox has ended, or that have none.")
@output_option
@pass_invocation
def command(invocation: Invocation, all_: bool, output: str) -> None:
    """List pods.

    UIDS are the host user IDs that the pod's own user namespace maps to; "host" is a pod without one.
    """
    rows = connection.run(invocation, lambda client: list_pods(client, invocation.config, all_=all_))
    if not rows and output != "json":
        echo_line("no pods", err=True)
        return
    show(output, [row.as_json() for row in rows], table(COLUMNS, rows))


async def list_pods(client: CriClient, config: Config, *, all_: bool) -> list[PodRow]:
    """Return a row per pod, ordered by namespace, name and age.

    A pod that is removed while it is listed is left out.
    """
    sandboxes, listed = await asyncio.gather(
        client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest()),
        client.runtime.ListContainers(api_pb2.ListContainersRequest()),
    )
    wanted = [sandbox for sandbox in sandboxes.items if all_ or sandbox.state == api_pb2.SANDBOX_READY]
    newest = newest_attempts(listed.containers)

    async def row(sandbox: api_pb2.PodSandbox) -> PodRow | None:
        own = [container for container in newest if container.pod_sandbox_id == sandbox.id]
        exited = [container.id for container in own if container.state == api_pb2.CONTAINER_EXITED]
        try:
            answer = await client.runtime.PodSandboxStatus(api_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox.id))
            exits = {identity: await targets.container_status(client, identity) for identity in exited}
        except NotFound:
            return None
        return pod_row(sandbox, answer.status, own, exits, targets.told(config, sandbox))

    rows = await asyncio.gather(*(row(sandbox) for sandbox in wanted))
    found = [row for row in rows if row is not None]
    if all_:
        known = {(row.namespace, row.name) for row in found}
        found += [row for row in await _without_sandbox(config) if (row.namespace, row.name) not in known]
    return sorted(found, key=lambda row: (row.namespace, row.name, row.created_at))


async def _without_sandbox(config: Config) -> list[PodRow]:
    """Return a row for each pod that this machine's node, or none yet, has in its API; none without a node."""
    from podkeep.cli.pods.node_api import NodeApi

    with contextlib.suppress(PodkeepError):  # an API that does not answer knows no pod
        async with NodeApi(config) as api:
            here = ("", config.agent.own_name())
            return [_unstarted(pod) for pod in await api.objects() if pod["spec"].get("nodeName", "") in here]
    return []


def _unstarted(pod: Mapping[str, Any]) -> PodRow:
    metadata = pod["metadata"]
    return PodRow(
        name=metadata["name"],
        namespace=metadata["namespace"],
        id="",
        ready=False,
        status=verdict(pod).state,
        created_at=int(rfc3339.seconds(metadata["creationTimestamp"]) * 1e9),
        ip="",
        uids="",
        ready_containers=0,
        total_containers=len(pod["spec"].get("containers") or ()),
        containers=(),
    )


class ContainerRow(FrozenStruct, kw_only=True):
    """The newest attempt of one container; ``reason`` and ``message`` say why it ended."""

    name: str
    id: str
    image: str
    state: str
    restarts: int
    exit_code: int | None
    reason: str
    message: str


class WaitingRow(FrozenStruct, kw_only=True):
    """A container that its agent cannot start now, and why; ``name`` is empty for the sandbox."""

    name: str
    reason: str
    message: str


class PodRow(FrozenStruct, kw_only=True):
    """One pod; ``id`` is that of its sandbox, empty without one.

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
    ready_containers: int
    total_containers: int
    containers: tuple[ContainerRow, ...]
    waiting: tuple[WaitingRow, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return the row as values for JSON; times in RFC 3339."""
        return {**structs.asdict(self), "created_at": rfc3339.of_nanoseconds(self.created_at)}


COLUMNS: output.Columns[PodRow] = {
    "NAME": lambda pod: pod.name,
    "NAMESPACE": lambda pod: pod.namespace,
    "READY": lambda pod: f"{pod.ready_containers}/{pod.total_containers}",
    "STATUS": lambda pod: pod.status,
    "RESTARTS": lambda pod: str(sum(container.restarts for container in pod.containers)),
    "AGE": lambda pod: output.since(pod.created_at),
    "IP": lambda pod: pod.ip or "<none>",
    "UIDS": lambda pod: pod.uids or ("host" if pod.id else "<none>"),
}


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
    told: Containers,
) -> PodRow:
    """Return the row of a pod.

    :param containers: the newest attempts in this sandbox.
    :param exits: status by container ID, at least of the exited ones.
    :param told: what its agent says of it.
    """
    ready = sandbox.state == api_pb2.SANDBOX_READY
    rows = tuple(_container_row(container, exits.get(container.id)) for container in containers)
    counted = [row for row in rows if _is_main(row.name, told) or row.name in told.sidecars]
    names = {row.name for row in counted} | {*told.main, *told.sidecars}
    return PodRow(
        name=sandbox.metadata.name,
        namespace=sandbox.metadata.namespace,
        id=sandbox.id,
        ready=ready,
        status=status_word(ready, rows, told),
        created_at=sandbox.created_at,
        ip=status.network.ip,
        uids=uid_ranges(status.linux.namespaces.options.userns_options),
        ready_containers=sum(row.state == "running" for row in counted),
        total_containers=len(names),
        containers=rows,
        waiting=tuple(
            WaitingRow(name=name, reason=item.reason, message=item.message)
            for name, item in waiting(rows, told).items()
        ),
    )


def waiting(containers: Sequence[ContainerRow], told: Containers) -> dict[str, WaitingReason]:
    """Return what waits in a pod that its agent works on, by name, and why: it failed to start, or never ran."""
    if not told.followed:
        return {}
    done = [row.name for row in containers if _is_past(row, told)]
    first = WaitingReason(reason=told.first_wait(done), message="")
    known = {row.name for row in containers}
    reasons = {**{name: first for name in told.main if name not in known}, **told.waiting}
    return {name: reasons[name] for name in ("", *told.init, *told.main) if name in reasons}


def _is_past(row: ContainerRow, told: Containers) -> bool:
    """Say whether an init container keeps no other waiting any more."""
    return row.exit_code == 0 or (row.name in told.sidecars and row.state == "running")


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
        message=status.message if status is not None and exited else "",
    )


def status_word(ready: bool, containers: Sequence[ContainerRow], told: Containers) -> str:
    rows = {row.name: row for row in containers}
    if told.init and not any(name in rows for name in told.main):
        for index, name in enumerate(told.init):
            row = rows.get(name)
            if row is None or not _is_past(row, told):
                return _init_word(index, row, told)
    waits = [item.reason for name, item in told.waiting.items() if not name or _is_main(name, told)]
    return waits[0] if waits else _main_word(ready, [row for row in containers if _is_main(row.name, told)])


def _is_main(name: str, told: Containers) -> bool:
    """Say whether a container is one of the containers proper, which the ephemeral ones (kubectl debug) are not.

    Where no agent says which they are, every container is.
    """
    return name in told.main if told.main else name not in told.init


def _init_word(index: int, row: ContainerRow | None, told: Containers) -> str:
    """Return the word for a pod whose init containers before ``index`` are done; ``row`` is that of the next."""
    if reason := told.waiting.get(told.init[index], told.waiting.get("")):
        return f"Init:{reason.reason}" if told.init[index] in told.waiting else reason.reason
    if row is not None and row.state == "exited":
        return f"Init:{row.reason or 'Error'}"
    return f"Init:{index}/{len(told.init)}"


def _main_word(ready: bool, containers: Sequence[ContainerRow]) -> str:
    states = {container.state for container in containers}
    failed = [container for container in containers if container.state == "exited" and container.exit_code != 0]
    if "unknown" in states:
        return "Unknown"
    if failed and states <= {"exited", "running"}:  # whatever else runs: kubectl's printPod
        return failed[0].reason or "Error"
    if "running" in states:
        return "Running" if ready else "NotReady"
    if states == {"exited"}:
        return "Completed"
    return "ContainerCreating" if ready else "NotReady"


def uid_ranges(options: api_pb2.UserNamespace) -> str:
    """Return the host UIDs of a pod's user namespace as ``first-last``, joined by commas; empty without one."""
    if options.mode != api_pb2.POD:
        return ""
    return ",".join(f"{item.host_id}-{item.host_id + item.length - 1}" for item in options.uids)
