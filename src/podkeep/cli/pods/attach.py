"""``podkeep attach``: the streams of a container's own program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from podkeep.cli.core import connection
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.core.output import echo_line
from podkeep.cli.pods.targets import Target, find_target, target_arguments

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient


@click.command(name="attach")
@target_arguments
@click.option("-i", "--stdin", is_flag=True, help="Pass standard input on; the container must have been made with it.")
@click.option("-t", "--tty", is_flag=True, help="The container has a terminal: pass keys and sizes on.")
@pass_invocation
def command(invocation: Invocation, target: Target, stdin: bool, tty: bool) -> None:
    """Show what a container writes, from now on, until it ends.

    If podkeep is interrupted, the container runs on.
    """

    async def stream(client: CriClient) -> None:
        from podkeep.cli.pods.stream_client import CommandClient
        from podkeep.cli.pods.terminal import converse
        from podkeep.cri.v1 import api_pb2

        found = await find_target(client, invocation.config, target, running=True)
        terminal = tty
        if tty and await _has_no_terminal(client, found.id):
            # Keys that would interrupt us would go to a container where they mean nothing.
            echo_line(f"Unable to use a TTY - container {found.metadata.name} did not allocate one", err=True)
            terminal = False
        request = api_pb2.AttachRequest(
            container_id=found.id, stdin=stdin, stdout=True, stderr=not terminal, tty=terminal
        )
        answer = await client.runtime.Attach(request)
        session = await CommandClient.connect(answer.url, invocation.config.streaming.tls_cert)
        try:
            await converse(session, stdin=stdin, terminal=terminal)
        finally:
            await session.close()

    connection.run(invocation, stream)


async def _has_no_terminal(client: CriClient, container: str) -> bool:
    """Say whether a container was made without a terminal, as far as its runtime tells."""
    from podkeep.cri.v1 import api_pb2

    answer = await client.runtime.ContainerStatus(api_pb2.ContainerStatusRequest(container_id=container, verbose=True))
    try:
        return json.loads(answer.info["info"])["record"]["config"].get("tty", False) is False
    except (LookupError, TypeError, AttributeError, ValueError):
        return False
