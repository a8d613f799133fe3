"""``podkeep image inspect``: everything that is known about images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from podkeep.cli.core import connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.images import described
from podkeep.cli.images.command import image_arguments

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1.podkeep_pb2 import ImageDescription, ImageLayer, ImageUser

_LAYERS: forms.Columns[ImageLayer] = {
    "LAYER": lambda layer: layer.id,
    "KIND": lambda layer: layer.kind,
    "DRIVER": lambda layer: layer.driver,
    "SIZE": lambda layer: forms.size(layer.bytes),
    "INODES": lambda layer: str(layer.inodes),
    "IMAGES": lambda layer: str(layer.images),
    "FILE": lambda layer: layer.title or "-",
}


@click.command(name="inspect")
@image_arguments()
@forms.form_option("json", "table")
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
    pages = [line for image in found for line in ("", *page(image))]
    forms.show(output, [described.whole_values(image) for image in found], pages[1:])


def page(image: ImageDescription) -> list[str]:
    """Return what is known about an image as lines for people."""
    size = forms.size(image.size)
    if image.shared_size:
        size += f", {forms.size(image.shared_size)} of it shared with other images"
    facts: dict[str, Sequence[str]] = {
        "ID": [image.id],
        "Type": [described.type_of(image)],
        "Names": image.repo_tags,
        "Digests": image.repo_digests,
        "Size": [size],
        "Pulled": [f"{described.age(image)} ago" if image.pulled_at else "unknown"],
        "Pinned": ["yes" if image.pinned else "no"],
        "Used by": [_user(user) for user in image.users],
        "Documents": [f"{document.digest} {document.role}" for document in image.documents],
    }
    rows = [
        ("" if number else f"{name}:", value)
        for name, values in facts.items()
        for number, value in enumerate(values or [described.NONE])
    ]
    return [*forms.aligned(rows, gap=1), "", *forms.table(_LAYERS, image.layers)]


def _user(found: ImageUser) -> str:
    how = " (volume)" if found.volume else ""
    return f"{found.pod_namespace}/{found.pod_name}/{found.container_name}{how}"
