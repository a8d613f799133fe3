"""``podkeep rm``: stop pods and remove everything that was made for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from podkeep.cli import connection
from podkeep.cli import output as forms
from podkeep.cli.invocation import Invocation, pass_invocation
from podkeep.cli.pods import namespace_option

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient


@click.command(name="rm")
@click.argument("pods", nargs=-1, required=True, metavar="POD...")
@namespace_option
@click.option(
    "--grace-period",
    type=click.IntRange(min=0),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="Time between the stop signal and SIGKILL.",
)
@forms.output_option
@pass_invocation
def command(invocation: Invocation, pods: tuple[str, ...], namespace: str, grace_period: int, output: str) -> None:
    """Stop and remove pods.

    Nothing that was made for them stays: containers, volumes, addresses, user IDs.
    """

    async def remove(client: CriClient) -> None:
        from podkeep.agent.remove import remove_pod

        for pod in pods:
            await remove_pod(client, invocation.config, pod, namespace, grace_period)
            if output != "json":
                click.echo(f"removed {namespace}/{pod}")

    connection.run(invocation, remove)
    if output == "json":
        forms.echo_json({"removed": [{"namespace": namespace, "name": pod} for pod in pods]})
