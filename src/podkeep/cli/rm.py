"""``podkeep rm``: stop pods and remove everything that was made for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from podkeep.base.errors import PodkeepError, Unavailable
from podkeep.cli import completion, connection
from podkeep.cli import output as forms
from podkeep.cli.invocation import Invocation, pass_invocation
from podkeep.cli.pods import namespace_option

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient


@click.command(name="rm")
@click.argument("pods", nargs=-1, metavar="[POD]...", shell_complete=completion.pods)
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

    Nothing that was made for them stays: containers, volumes, addresses, user IDs. One that cannot be removed keeps no
    other from it.
    """
    if all_ == bool(pods):
        raise click.UsageError("name the pods, or give --all")
    removed: list[tuple[str, str]] = []
    failures: list[PodkeepError] = []

    async def remove(client: CriClient) -> None:
        from podkeep.agent.remove import list_pods, remove_pod

        wanted = await list_pods(client, invocation.config) if all_ else [(namespace, pod) for pod in pods]
        for where, pod in wanted:
            try:
                await remove_pod(client, invocation.config, pod, where, grace_period)
            except Unavailable:
                raise
            except PodkeepError as error:
                if f"{where}/{pod}" not in error.message:
                    error.message = f"pod {where}/{pod}: {error.message}"
                failures.append(error)
            else:
                removed.append((where, pod))
                if output != "json":
                    click.echo(f"removed {where}/{pod}")

    connection.run(invocation, remove)
    if output == "json":
        forms.echo_json({"removed": [{"namespace": where, "name": pod} for where, pod in removed]})
    elif not removed and not failures:
        click.echo("no pods", err=True)
    if failures:
        for error in failures[:-1]:
            click.echo(forms.error_text(error), err=True)
        raise failures[-1]
