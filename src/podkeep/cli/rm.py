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
@click.argument("pods", nargs=-1, metavar="[POD]...")
@click.option("-a", "--all", "all_", is_flag=True, help="Every pod of every namespace, instead of POD.")
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
def command(
    invocation: Invocation, pods: tuple[str, ...], all_: bool, namespace: str, grace_period: int, output: str
) -> None:
    """Stop and remove pods.

    Nothing that was made for them stays: containers, volumes, addresses, user IDs.
    """
    if all_ == bool(pods):
        raise click.UsageError("name the pods, or give --all")

    async def remove(client: CriClient) -> list[tuple[str, str]]:
        from podkeep.agent.remove import list_pods, remove_pod

        wanted = await list_pods(client, invocation.config) if all_ else [(namespace, pod) for pod in pods]
        for pod_namespace, pod in wanted:
            await remove_pod(client, invocation.config, pod, pod_namespace, grace_period)
            if output != "json":
                click.echo(f"removed {pod_namespace}/{pod}")
        return wanted

    removed = connection.run(invocation, remove)
    if output == "json":
        forms.echo_json({"removed": [{"namespace": where, "name": pod} for where, pod in removed]})
    elif not removed:
        click.echo("no pods", err=True)
