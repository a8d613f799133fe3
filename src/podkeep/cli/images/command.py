"""``podkeep image``: the images and artifacts of the runtime. A verb is a module of ``podkeep.cli.images``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from podkeep.cli.core import completion
from podkeep.cli.core.verbs import LazyGroup, Verb

Function = TypeVar("Function", bound=Callable[..., Any])

VERBS = {
    "inspect": Verb("podkeep.cli.images.inspect", "Show everything that is known about images."),
    "load": Verb("podkeep.cli.images.load", "Load images from an archive, a layout or standard input."),
    "ls": Verb("podkeep.cli.images.ls", "List images."),
    "prune": Verb("podkeep.cli.images.prune", "Remove images that no container uses."),
    "pull": Verb("podkeep.cli.images.pull", "Pull images from their registries."),
    "rm": Verb("podkeep.cli.images.rm", "Remove images, or names of them."),
    "save": Verb("podkeep.cli.images.save", "Save images as an archive or a layout."),
    "verify": Verb("podkeep.cli.images.verify", "Compare what is stored with its digests."),
}


@click.command(name="image", cls=LazyGroup, verbs=VERBS)
def command() -> None:
    """Pull, list, save, check and remove images and artifacts."""


def image_arguments(*, required: bool = True, name: str = "images") -> Callable[[Function], Function]:
    """Add ``IMAGE...`` to a verb, passed to it as ``name``."""
    metavar = "IMAGE..." if required else "[IMAGE]..."
    return click.argument(name, nargs=-1, required=required, metavar=metavar, shell_complete=completion.images)
