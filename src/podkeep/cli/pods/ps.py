"""``podkeep ps``: the pods of the runtime, whoever made them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import NotFound
from podkeep.cli.core import connection
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.core.output import echo_line, output_option, show, table
from podkeep.cli.pods import podlist, targets
from podkeep.cli.pods.podlist import COLUMNS, PodRow
from podkeep.cri.v1 import api_pb2

if TYPE_CHECKING:
    from podkeep.base.config import Config
    from podkeep.cri.client import CriClient


@click.command(name="ps")
@click.option("-a", "--all", "all_", is_flag=True, help="Also pods whose sandbox is no longer ready.")
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
    newest = podlist.newest_attempts(listed.containers)

    async def row(sandbox: api_pb2.PodSandbox) -> PodRow | None:
        own = [container for container in newest if container.pod_sandbox_id == sandbox.id]
        exited = [container.id for container in own if container.state == api_pb2.CONTAINER_EXITED]
        try:
            answer = await client.runtime.PodSandboxStatus(api_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox.id))
            exits = {identity: await targets.container_status(client, identity) for identity in exited}
        except NotFound:
            return None
        return podlist.pod_row(sandbox, answer.status, own, exits, targets.told(config, sandbox))

    rows = await asyncio.gather(*(row(sandbox) for sandbox in wanted))
    found = [row for row in rows if row is not None]
    return sorted(found, key=lambda row: (row.namespace, row.name, row.created_at))
