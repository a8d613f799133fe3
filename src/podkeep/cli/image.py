"""``podkeep image``: the images and artifacts of the runtime. A verb is a module of ``podkeep.cli.images``."""

from __future__ import annotations

import click

from podkeep.cli.verbs import LazyGroup, Verb

VERBS = {
    "inspect": Verb(module="podkeep.cli.images.inspect", help="Show everything that is known about images."),
    "load": Verb(module="podkeep.cli.images.load", help="Load images from an archive, a layout or standard input."),
    "ls": Verb(module="podkeep.cli.images.ls", help="List images."),
    "prune": Verb(module="podkeep.cli.images.prune", help="Remove images that no container uses."),
    "pull": Verb(module="podkeep.cli.images.pull", help="Pull images from their registries."),
    "rm": Verb(module="podkeep.cli.images.rm", help="Remove images, or names of them."),
    "save": Verb(module="podkeep.cli.images.save", help="Save images as an archive or a layout."),
    "verify": Verb(module="podkeep.cli.images.verify", help="Compare what is stored with its digests."),
}


@click.command(name="image", cls=LazyGroup, verbs=VERBS)
def command() -> None:
    """Pull, list, save, check and remove images and artifacts."""
