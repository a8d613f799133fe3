"""``podkeep image rm``: remove images, or names of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from podkeep.base.errors import PodkeepError
from podkeep.cli.core import connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.images.command import image_arguments

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1.podkeep_pb2 import RemoveImageNameResponse


@click.command(name="rm")
@image_arguments()
@forms.output_option
@pass_invocation
def command(invocation: Invocation, images: tuple[str, ...], output: str) -> None:
    """Remove images, or names of them.

    An image that has several names loses the one that is given; with its last name, or named by ID or digest, it is
    removed. An image that a container uses stays.

    \b
    Examples:
      podkeep image rm busybox:1
      podkeep image rm $(podkeep image ls -q -f dangling=true)
    """
    failures: list[PodkeepError] = []

    async def remove(client: CriClient) -> list[dict[str, object]]:
        from podkeep.cri.v1 import podkeep_pb2

        done: list[dict[str, object]] = []
        for image in images:
            try:
                answer = await client.node.RemoveImageName(podkeep_pb2.RemoveImageNameRequest(image=image))
            except PodkeepError as error:
                failures.append(error)
                continue
            if output != "json":
                _tell(answer)
            done.append(
                {
                    "image": image,
                    "untagged": answer.untagged,
                    "removed": answer.removed or None,
                    "reclaimed_bytes": answer.reclaimed_bytes,
                }
            )
        return done

    done = connection.run(invocation, remove)
    if done or len(images) > 1:
        forms.show(output, done, ())
    forms.raise_last(failures)


def _tell(answer: RemoveImageNameResponse) -> None:
    for name in answer.untagged:
        forms.echo_line(f"untagged {name}")
    if answer.removed:
        forms.echo_line(f"removed {answer.removed} ({forms.size(answer.reclaimed_bytes)})")
