"""The argument IMAGE of the image verbs, and its completion in a shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from podkeep.base.errors import PodkeepError
from podkeep.cli.core.invocation import Invocation

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Function = TypeVar("Function", bound=Callable[..., Any])

_TIMEOUT_S = 2.0
"""A person waits for the completion with a finger on the key."""


def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of images that begin with ``incomplete``; none if no runtime answers."""
    from click.shell_completion import CompletionItem

    try:
        names = _names(_invocation(ctx))
    except (PodkeepError, OSError, TimeoutError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _invocation(ctx: click.Context) -> Invocation:
    """Completion parses the command line without running the group that would make it."""
    options: dict[str, Any] = ctx.find_root().params
    return Invocation(config_path=options.get("config_path"), debug=False, settings=options.get("settings") or ())


def _names(invocation: Invocation) -> list[str]:
    from podkeep.cli.core import connection

    path = invocation.config.runtime.socket
    connection.check_listening(path, start="")

    async def ask() -> list[str]:
        from podkeep.base.reference import parse
        from podkeep.cri.client import CriClient
        from podkeep.cri.v1 import api_pb2

        async with CriClient(path) as client:
            images = (await client.images.ListImages(api_pb2.ListImagesRequest(), timeout=_TIMEOUT_S)).images
        # As people write them; the full name as well, for those who begin with the host.
        tags = [tag for image in images for tag in image.repo_tags]
        return sorted({name for tag in tags for name in (tag, parse(tag).familiar())})

    return asyncio.run(ask())


def image_arguments(*, required: bool) -> Callable[[Function], Function]:
    """Return the decorator that adds ``IMAGE...`` to a verb, passed to it as ``images``."""
    return click.argument(
        "images",
        nargs=-1,
        required=required,
        metavar="IMAGE..." if required else "[IMAGE]...",
        shell_complete=complete,
    )
