"""``podkeep exec``: a command in a running container, its streams and its exit status."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import InvalidArgument
from podkeep.cli import connection
from podkeep.cli.invocation import Invocation, pass_invocation
from podkeep.cli.pods import Target, find_target, target_arguments

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1 import api_pb2


@click.command(name="exec")
@target_arguments
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--timeout", type=click.IntRange(min=0), default=0, metavar="SECONDS", help="0, the default: none.")
@click.option("-i", "--stdin", is_flag=True, help="Pass standard input on.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal.")
@click.pass_context
@pass_invocation
def command(
    invocation: Invocation,
    ctx: click.Context,
    target: Target,
    argv: tuple[str, ...],
    timeout: int,
    stdin: bool,
    tty: bool,
) -> None:
    """Run a command in a container.

    podkeep ends with the command's exit status; if podkeep is interrupted, the command is killed. With --timeout the
    output is shown when the command has ended.
    """
    if timeout and (stdin or tty):
        raise InvalidArgument("--timeout does not go with -i or -t", hint="interrupt the command instead")

    async def collect(client: CriClient) -> api_pb2.ExecSyncResponse:
        from podkeep.cri.v1 import api_pb2

        found = await find_target(client, target)
        request = api_pb2.ExecSyncRequest(container_id=found.id, cmd=argv, timeout=timeout)
        return await client.runtime.ExecSync(request)

    async def stream(client: CriClient) -> int:
        from podkeep.cli.stream_client import CommandClient
        from podkeep.cli.terminal import converse
        from podkeep.cri.v1 import api_pb2

        found = await find_target(client, target)
        request = api_pb2.ExecRequest(
            container_id=found.id, cmd=argv, stdin=stdin, stdout=True, stderr=not tty, tty=tty
        )
        answer = await client.runtime.Exec(request)
        session = await CommandClient.connect(answer.url, invocation.config.streaming.tls_cert)
        try:
            return await converse(session, stdin=stdin, terminal=tty)
        finally:
            await session.close()

    if not timeout:
        ctx.exit(connection.run(invocation, stream))
    answer = connection.run(invocation, collect)
    sys.stdout.buffer.write(answer.stdout)
    sys.stdout.buffer.flush()
    sys.stderr.buffer.write(answer.stderr)
    sys.stderr.buffer.flush()
    ctx.exit(answer.exit_code)
