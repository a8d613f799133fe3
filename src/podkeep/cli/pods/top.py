"""``podkeep top``: what pods use of CPU and memory, as the runtime measures it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click
from msgspec import structs

from podkeep.base.frozen import FrozenStruct
from podkeep.cli.core import connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cri.v1 import api_pb2

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient

_CLEAR = "\x1b[H\x1b[2J"
_FIRST_S = 1.0
"""Between the first two looks: CPU time is a difference."""


class Usage(FrozenStruct, kw_only=True):
    """What a pod or a container uses. ``cpu`` in thousandths of a core, the others in bytes."""

    namespace: str
    pod: str
    container: str
    cpu: int
    memory: int
    received: int = 0
    sent: int = 0
    processes: int = 0


_COLUMNS: forms.Columns[Usage] = {
    "NAMESPACE": lambda row: row.namespace,
    "POD": lambda row: row.pod,
    "CPU": lambda row: f"{row.cpu}m",
    "MEMORY": lambda row: forms.size(row.memory),
    "RECEIVED": lambda row: forms.size(row.received),
    "SENT": lambda row: forms.size(row.sent),
    "PROCESSES": lambda row: str(row.processes),
}
_CONTAINER_COLUMNS: forms.Columns[Usage] = {
    "NAMESPACE": lambda row: row.namespace,
    "POD": lambda row: row.pod,
    "CONTAINER": lambda row: row.container,
    "CPU": lambda row: f"{row.cpu}m",
    "MEMORY": lambda row: forms.size(row.memory),
}


@click.command(name="top")
@click.option("--containers", is_flag=True, help="A line for each container.")
@click.option("--sort", type=click.Choice(["cpu", "memory", "name"]), default="cpu", show_default=True)
@click.option("--once", is_flag=True, help="Look once; so it is, too, where the output is no terminal.")
@click.option("--interval", type=click.FloatRange(min=0.5), default=2.0, show_default=True, metavar="SECONDS")
@forms.output_option
@pass_invocation
def command(invocation: Invocation, containers: bool, sort: str, once: bool, interval: float, output: str) -> None:
    """Show what pods use, live in a terminal until Ctrl-C."""
    live = not once and output != "json" and sys.stdout.isatty()
    columns = _CONTAINER_COLUMNS if containers else _COLUMNS

    async def show(client: CriClient) -> None:
        before = await _read(client)
        pause = _FIRST_S
        while True:
            await asyncio.sleep(pause)
            after = await _read(client)
            rows = ordered(usages(before, after, containers=containers), sort)
            if output == "json":
                forms.echo_json([structs.asdict(row) for row in rows])
                return
            lines = forms.table(columns, rows) if rows else ["no pods"]
            if live:
                click.echo(_CLEAR + f"{time.strftime('%H:%M:%S')}  {forms.number_of(len(rows), 'line')}  Ctrl-C ends")
            for line in lines:
                forms.echo_line(line)
            if not live:
                return
            before, pause = after, interval

    connection.run(invocation, show)


async def _read(client: CriClient) -> dict[str, api_pb2.PodSandboxStats]:
    answer = await client.runtime.ListPodSandboxStats(api_pb2.ListPodSandboxStatsRequest())
    return {item.attributes.id: item for item in answer.stats}


def ordered(rows: Iterable[Usage], sort: str) -> list[Usage]:
    """Return rows by what a person asked for: the largest first, or by name."""
    found = sorted(rows, key=lambda row: (row.namespace, row.pod, row.container))
    if sort == "name":
        return found
    return sorted(found, key=lambda row: row.cpu if sort == "cpu" else row.memory, reverse=True)


def usages(
    before: Mapping[str, api_pb2.PodSandboxStats],
    after: Mapping[str, api_pb2.PodSandboxStats],
    *,
    containers: bool,
) -> list[Usage]:
    """Return what was used between two looks, of each pod or each container that runs; what is new has used nothing."""
    rows = []
    for identity, stats in after.items():
        earlier = before.get(identity)
        metadata = stats.attributes.metadata
        if not containers:
            network = stats.linux.network.default_interface
            rows.append(
                Usage(
                    namespace=metadata.namespace,
                    pod=metadata.name,
                    container="",
                    cpu=millicores(None if earlier is None else earlier.linux.cpu, stats.linux.cpu),
                    memory=stats.linux.memory.working_set_bytes.value,
                    received=network.rx_bytes.value,
                    sent=network.tx_bytes.value,
                    processes=stats.linux.process.process_count.value,
                )
            )
            continue
        known = {item.attributes.id: item for item in earlier.linux.containers} if earlier is not None else {}
        for item in stats.linux.containers:
            # What has ended has a writable layer and nothing else: rows of attempts that are over say nothing.
            if not item.HasField("cpu"):
                continue
            old = known.get(item.attributes.id)
            rows.append(
                Usage(
                    namespace=metadata.namespace,
                    pod=metadata.name,
                    container=item.attributes.metadata.name,
                    cpu=millicores(None if old is None else old.cpu, item.cpu),
                    memory=item.memory.working_set_bytes.value,
                )
            )
    return rows


def millicores(before: api_pb2.CpuUsage | None, after: api_pb2.CpuUsage) -> int:
    """Return the CPU time between two looks, in thousandths of a core; else what the runtime measured last."""
    if before is not None and after.timestamp > before.timestamp:
        used = after.usage_core_nano_seconds.value - before.usage_core_nano_seconds.value
        return max(round(1000 * used / (after.timestamp - before.timestamp)), 0)
    return round(after.usage_nano_cores.value / 1e6)
