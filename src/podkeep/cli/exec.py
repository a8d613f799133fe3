"""``podkeep exec``: a command in a running container, its output and its exit status."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import Unimplemented
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
@click.option("-i", "--stdin", is_flag=True, help="Pass standard input on (not in this version).")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal (not in this version).")
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

    Its output is shown when it has ended, and podkeep ends with its exit status.
    """
    if stdin or tty:
        raise Unimplemented(
            "exec with -i or -t needs the CRI streaming calls, which this version does not serve",
            hint="without them the command runs with no input and no terminal",
        )

    async def execute(client: CriClient) -> api_pb2.ExecSyncResponse:
        from podkeep.cri.v1 import api_pb2

        found = await find_target(client, target)
        request = api_pb2.ExecSyncRequest(container_id=found.id, cmd=argv, timeout=timeout)
        return await client.runtime.ExecSync(request)

    answer = connection.run(invocation, execute)
    sys.stdout.buffer.write(answer.stdout)
    sys.stdout.buffer.flush()
    sys.stderr.buffer.write(answer.stderr)
    sys.stderr.buffer.flush()
    ctx.exit(answer.exit_code)
