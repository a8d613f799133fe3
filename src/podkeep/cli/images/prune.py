"""``podkeep image prune``: remove images that no container uses."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from podkeep.cli.core import connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.images import described

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1.podkeep_pb2 import PruneImagesResponse

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def seconds(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Return ``12h``, ``7d`` or ``1h30m`` (numbers with units, added up) in seconds.

    :raises click.BadParameter: if it is not one.
    """
    if text is None:
        return None
    if not re.fullmatch(r"([0-9]{1,9}[smhdw])+", text):
        raise click.BadParameter(f"{text!r} is no duration; write it like 12h, 7d or 1h30m")
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9]+)([smhdw])", text))


@click.command(name="prune")
@click.option("-a", "--all", "tagged", is_flag=True, help="Also images that have a tag.")
@click.option(
    "--older-than",
    callback=seconds,
    metavar="DURATION",
    help="Only images that were pulled longer ago than this, like 12h or 7d.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("-f", "--force", is_flag=True, help="Do not ask, also at a terminal.")
@forms.output_option
@pass_invocation
def command(
    invocation: Invocation, tagged: bool, older_than: int | None, dry_run: bool, force: bool, output: str
) -> None:
    """Remove images that no container uses.

    Only dangling ones, whose tag went to another image, unless --all is given. Pinned images stay.

    \b
    Examples:
      podkeep image prune
      podkeep image prune --all --older-than 7d --dry-run
    """
    if not (dry_run or force) and sys.stdin.isatty():
        which = "all images that no container uses" if tagged else "all dangling images that no container uses"
        click.confirm(f"Remove {which}?", abort=True, err=True)

    async def prune(client: CriClient) -> PruneImagesResponse:
        from podkeep.cri.v1 import podkeep_pb2

        before = time.time_ns() - older_than * 10**9 if older_than is not None else 0
        request = podkeep_pb2.PruneImagesRequest(all=tagged, pulled_before=before, dry_run=dry_run)
        return await client.node.PruneImages(request)

    answer = connection.run(invocation, prune)
    images = map(described.values, answer.images)
    found = {"images": images, "reclaimed_bytes": answer.reclaimed_bytes, "dry_run": dry_run}
    forms.show(output, found, _lines(answer, dry_run=dry_run))


def _lines(answer: PruneImagesResponse, *, dry_run: bool) -> Iterator[str]:
    for image in answer.images:
        names = ", ".join(image.repo_tags or image.repo_digests) or described.NONE
        yield f"{'would remove' if dry_run else 'removed'} {forms.short(image.id)} {names}"
    reclaimed = f"{forms.size(answer.reclaimed_bytes)} {'would be ' if dry_run else ''}reclaimed"
    yield f"{forms.number_of(len(answer.images), 'image')}, {reclaimed}"
