"""``podkeep logs``: what a container wrote, read from its log file on this machine."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import FailedPrecondition, NotFound
from podkeep.cli.core import connection
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.core.output import echo_line
from podkeep.cli.pods.targets import Target, container_status, find_target, target_arguments
from podkeep.cri.v1 import api_pb2

if TYPE_CHECKING:
    from podkeep.agent.log_reader import LogReader
    from podkeep.base.config import Config
    from podkeep.cli.pods.crilog import Printer
    from podkeep.cri.client import CriClient

_POLL_LOG = 0.1
_POLLS_PER_STATUS = 5


@click.command(name="logs")
@target_arguments(running=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the container ends.")
@click.option("-p", "--previous", is_flag=True, help="The attempt before the newest one.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of what is there.")
@click.option("--timestamps", is_flag=True, help="Put the time of each line in front of it.")
@pass_invocation
def command(
    invocation: Invocation, target: Target, follow: bool, previous: bool, tail: int | None, timestamps: bool
) -> None:
    """Print the log of a container.

    What the container wrote to its standard error goes to standard error. Of a log that was rotated this is the
    newest file, as with kubectl; the older ones are beside it. With -f it goes on in the next.
    """
    from podkeep.agent.log_reader import LogReader
    from podkeep.cli.pods.crilog import Printer

    printer = Printer(sys.stdout.buffer, sys.stderr.buffer, timestamps=timestamps)

    async def show(client: CriClient) -> None:
        identity, path = await _locate(client, invocation.config, target)
        if previous:
            path = previous_attempt(path)
        elif follow:
            await _wait_for_log(client, identity, path)
        reader = LogReader(path, tail=tail)
        try:
            await _print(client, identity, reader, printer, follow=follow and not previous)
        finally:
            reader.close()

    connection.run(invocation, show)


async def _locate(client: CriClient, config: Config, target: Target) -> tuple[str, Path]:
    found = await find_target(client, config, target)
    status = await container_status(client, found.id)
    if not status.log_path:
        raise FailedPrecondition(f"container {found.metadata.name} of pod {target.pod} was made without a log")
    return found.id, Path(status.log_path)


def previous_attempt(path: Path) -> Path:
    """Return the log of the attempt before the one that logs to ``path``; the kubelet names logs ``<attempt>.log``.

    :raises NotFound: if ``path`` is the first attempt's, or not named so.
    """
    attempt = int(path.stem) if path.stem.isascii() and path.stem.isdigit() else 0
    if attempt == 0:
        raise NotFound(f"there is no earlier attempt than the one that logs to {path}")
    return path.with_name(f"{attempt - 1}.log")


async def _wait_for_log(client: CriClient, identity: str, path: Path) -> None:
    """Return when there is a log, or when there will be none."""
    while not (path.exists() or await _has_ended(client, identity)):  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(_POLL_LOG)


async def _print(client: CriClient, identity: str, reader: LogReader, printer: Printer, *, follow: bool) -> None:
    if not follow:
        # What is there now: a container may write faster than anybody reads.
        if there := reader.to_read():
            for record in reader.read(there):
                printer.write(record)
            printer.flush()
        _tell_left_out(reader)
        return
    polls, ended = 0, False
    while True:
        # Asked before reading: once the container has ended, reading on to the end gets all of its log.
        ended = ended or (polls % _POLLS_PER_STATUS == 0 and await _has_ended(client, identity))
        for record in reader.read():
            printer.write(record)
        printer.flush()
        _tell_left_out(reader)
        if ended and not reader.behind:
            return
        polls += 1
        # An interruption gets its turn in either case.
        await asyncio.sleep(0 if reader.behind else _POLL_LOG)


def _tell_left_out(reader: LogReader) -> None:
    for text in reader.left_out():
        echo_line(f"podkeep: {text}", err=True)


async def _has_ended(client: CriClient, identity: str) -> bool:
    try:
        status = await container_status(client, identity)
    except NotFound:
        return True
    return status.state in {api_pb2.CONTAINER_EXITED, api_pb2.CONTAINER_UNKNOWN}
