"""``podkeep image inspect``: everything that is known about images."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from podkeep.base.printable import printable
from podkeep.cli.core import connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.images import described
from podkeep.cli.images.names import image_arguments

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1.podkeep_pb2 import ImageDescription

_LAYERS = ("LAYER", "KIND", "DRIVER", "SIZE", "INODES", "IMAGES", "FILE")


@click.command(name="inspect")
@image_arguments(required=True)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "table"]),
    default="json",
    show_default=True,
    help="Form of the output.",
)
@pass_invocation
def command(invocation: Invocation, images: tuple[str, ...], output: str) -> None:
    """Show everything that is known about images and artifacts.

    Names, digests, manifests and configuration, layers and how each is kept, and the containers that use the image.

    \b
    Examples:
      podkeep image inspect busybox:1
      podkeep image inspect -o table busybox:1
    """

    async def ask(client: CriClient) -> list[ImageDescription]:
        return await described.ask(client, images, documents=True)

    found = connection.run(invocation, ask)
    if output == "json":
        forms.echo_json([described.whole_values(image) for image in found])
    else:
        click.echo("\n\n".join(page(image, time.time()) for image in found))


def page(image: ImageDescription, now: float) -> str:
    """Return what is known about an image as lines for people; ``now`` in seconds since 1970."""
    size = forms.size(image.size)
    if image.shared_size:
        size += f", {forms.size(image.shared_size)} of it shared with other images"
    facts = [
        ("ID", [image.id]),
        ("Type", [described.type_of(image)]),
        ("Names", list(image.repo_tags)),
        ("Digests", list(image.repo_digests)),
        ("Size", [size]),
        ("Pulled", [f"{described.age(image, now)} ago" if image.pulled_at else "unknown"]),
        ("Pinned", ["yes" if image.pinned else "no"]),
        ("Used by", [described.user(user) for user in image.users]),
        ("Documents", [f"{document.digest} {document.role}" for document in image.documents]),
    ]
    width = max(len(name) for name, _ in facts) + 2
    lines = []
    for name, values in facts:
        first, *more = values or [described.NONE]
        lines.append(f"{name + ':':<{width}}{printable(first)}")
        lines += [" " * width + printable(value) for value in more]
    rows = [
        [
            layer.id,
            layer.kind,
            layer.driver,
            forms.size(layer.bytes),
            str(layer.inodes),
            str(layer.images),
            layer.title or "-",
        ]
        for layer in image.layers
    ]
    return "\n".join([*lines, "", forms.table(_LAYERS, rows)])
