"""``podkeep rm``: stop pods and remove everything that was made for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import PodkeepError, Unavailable, refused
from podkeep.cli.core import completion, connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.pods.targets import namespace_option

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient

_AT_ONCE = 32
"""How many pods are removed side by side: most of it is waiting for containers that end."""


@click.command(name="rm")
@click.argument("pods", nargs=-1, metavar="[POD]...", shell_complete=completion.pods)
@click.option("-a", "--all", "all_", is_flag=True, help="Every pod of every namespace, instead of POD.")
@namespace_option
@click.option(
    "--grace-period",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    help="Time between the stop signal and SIGKILL, instead of the pod's own.",
)
@click.option("--local", is_flag=True, help="Past the node's API: its agent, if it runs, makes the pods anew.")
@forms.output_option
@pass_invocation
def command(
    invocation: Invocation,
    pods: tuple[str, ...],
    all_: bool,
    namespace: str,
    grace_period: int | None,
    local: bool,
    output: str,
) -> None:
    """Stop and remove pods, side by side. Those of this machine's node are deleted in its API.

    Nothing that was made for them stays: containers, volumes, addresses, user IDs. A pod that cannot be removed does
    not keep the others from being removed.
    """
    if all_ == bool(pods):
        raise click.UsageError("name the pods, or give --all")
    removed: list[tuple[str, str]] = []
    failures: list[PodkeepError] = []

    async def remove(client: CriClient) -> None:
        from podkeep.agent.pod.remove import list_pods, remove_pod
        from podkeep.cli.pods.node_api import NodeApi

        at_once = asyncio.Semaphore(_AT_ONCE)

        async def one(where: str, pod: str) -> PodkeepError | None:
            try:
                async with at_once:
                    if not await api.delete(pod, where, grace_period):
                        await remove_pod(client, invocation.config, pod, where, grace_period)
            except Unavailable as error:
                return error
            except PodkeepError as error:
                if f"{where}/{pod}" not in error.message:
                    error.message = f"pod {where}/{pod}: {error.message}"
                return error
            except OSError as error:
                return refused(f"pod {where}/{pod}", error)
            removed.append((where, pod))
            if output != "json":
                click.echo(f"removed {where}/{pod}")
            return None

        async with NodeApi(None if local else invocation.config) as api:
            wanted = [(namespace, pod) for pod in pods]
            if all_:
                of_api, left = await api.pods()
                here = await list_pods(client, invocation.config)
                wanted = [pod for pod in (*of_api, *here) if pod not in left]
                for where, pod in left:
                    click.echo(f"podkeep: static pod {where}/{pod} runs for as long as its file is there", err=True)
            outcomes = await asyncio.gather(*(one(where, pod) for where, pod in dict.fromkeys(wanted)))
        # A runtime or an API that does not answer is told once, not for each pod.
        failures.extend({error.message: error for error in outcomes if error is not None}.values())

    connection.run(invocation, remove)
    if output == "json":
        forms.echo_json({"removed": [{"namespace": where, "name": pod} for where, pod in removed]})
    elif not removed and not failures:
        click.echo("no pods", err=True)
    forms.raise_last(failures)
