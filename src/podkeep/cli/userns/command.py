"""``podkeep userns``: what people type and read. Does not own: who has what (``inventory``), repairs (``repair``)."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import Unavailable
from podkeep.cli.core import connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation

if TYPE_CHECKING:
    from podkeep.cli.userns.inventory import Limits, Row, Runtime
    from podkeep.cli.userns.repair import Done
    from podkeep.cri.client import CriClient

COLUMNS: forms.Columns[Row] = {
    "IDS": lambda row: "?" if row.first is None else ",".join((f"{row.first}-{row.last}", *row.more)),
    "NAMESPACE": lambda row: row.namespace or "?",
    "POD": lambda row: row.name or "?",
    "UID": lambda row: row.uid,
    "STATE": lambda row: row.state,
    "NOTES": lambda row: "; ".join(problem.message for problem in row.problems),
}


@click.group(name="userns")
def command() -> None:
    """User namespaces of pods: which IDs of the machine each pod has.

    \b
      podkeep userns ls               all blocks of IDs, and whose they are
      podkeep userns check            what is wrong with them
      podkeep userns check --repair   put records aside that keep the agent from starting
    """


@command.command(name="ls", short_help="List blocks of IDs and whose they are.")
@forms.output_option
@pass_invocation
def ls(invocation: Invocation, output: str) -> None:
    """List blocks of IDs, and whose they are.

    IDS are of users and groups alike, as the node sees them. They come from the records of pods of this agent and of
    kubelets, and from the runtime. NOTES are what `podkeep userns check` finds.
    """
    rows, _ = _examine(invocation)
    if not rows and output != "json":
        forms.echo_line("no blocks", err=True)
        return
    forms.show(output, [row.as_json() for row in rows], forms.table(COLUMNS, rows))


@command.command(name="check", short_help="Say what is wrong with blocks of IDs.")
@click.option("--repair", is_flag=True, help="Put records aside that no agent could read or accept.")
@forms.output_option
@click.pass_context
@pass_invocation
def check(invocation: Invocation, ctx: click.Context, repair: bool, output: str) -> None:
    """Say what is wrong with blocks of IDs: damaged records, overlaps, IDs outside of the range of this node.

    Ends with status 0 if nothing is, else with 1; a pod outside of the range is only told of, as it keeps its IDs until
    it is removed.

    With --repair a damaged record is renamed to userns.damaged, which nothing reads. Of a pod that the runtime holds,
    what the runtime says is recorded instead: no IDs are freed that are in use. Without an answer of the runtime
    nothing is changed.
    """
    done = connection.run(invocation, lambda client: _repair(client, invocation)) if repair else []
    rows, allowed = _examine(invocation, must_ask=repair)
    from podkeep.cli.userns import inventory

    problems = [(row, problem) for row in rows for problem in row.problems]
    lines = [f"{'repaired' if item.repaired else 'not repaired'} {item.file}: {item.message}" for item in done]
    lines += [f"range: {allowed.problem}"] if allowed.problem else []
    lines += [
        f"{'warning' if problem.warning else 'wrong'}: pod {inventory.pod_name(row)} ({_ids(row)}): {problem.message}"
        for row, problem in problems
    ]
    document = {
        "range": _range(allowed),
        "range_problem": allowed.problem,
        "blocks": [row.as_json() for row in rows],
        "repairs": done,
    }
    forms.show(output, document, lines or [f"{forms.number_of(len(rows), 'block')}, nothing is wrong"])
    if allowed.problem or inventory.wrong(rows):
        ctx.exit(1)


def _examine(invocation: Invocation, *, must_ask: bool = False) -> tuple[list[Row], Limits]:
    from podkeep.cli.userns import inventory

    runtime: Runtime | None = None
    try:
        runtime = connection.run(invocation, inventory.ask)
    except Unavailable as error:
        if must_ask:
            raise
        forms.echo_line(f"podkeep: {error.message}: it is not known which pods run", err=True)
    allowed = inventory.limits(invocation.config)
    return inventory.judge(inventory.records(invocation.config), runtime, allowed), allowed


async def _repair(client: CriClient, invocation: Invocation) -> list[Done]:
    """Repair what can be, under the locks under which agents take pods on."""
    import asyncio

    from podkeep.agent import poddirs
    from podkeep.cli.userns import inventory, repair

    async with AsyncExitStack() as stack:
        for _, dirs in poddirs.places(invocation.config):
            # `held` would make the directory, also where none of this configuration's is.
            if dirs.pods.is_dir():
                await stack.enter_async_context(dirs.held())
        found = await asyncio.to_thread(inventory.records, invocation.config)
        steps = repair.plan(found, await inventory.ask(client))
        return [await asyncio.to_thread(repair.execute, step) for step in steps]


def _ids(row: Row) -> str:
    return row.file if row.first is None else f"{row.first}-{row.last}"


def _range(allowed: Limits) -> dict[str, object] | None:
    if allowed.id_range is None:
        return None
    return {
        "first": allowed.id_range.first,
        "ids_per_pod": allowed.id_range.length,
        "blocks": sum(1 for _ in allowed.id_range.starts()),
    }
