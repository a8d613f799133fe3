"""Completion of types and names of objects in a shell, from what the API that is meant has now. Silent without one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import PodkeepError
from podkeep.cli.core import completion
from podkeep.cli.objects import kinds, reach

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_PLAIN = re.compile(r"[\w.:][\w.:-]*", re.ASCII)
"""Names that mean themselves to a shell and to a verb, which get them as they are: a Role may be called ``$(reboot)``
or ``--all``."""


def objects(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the types, or the names of a type, that may go on with ``TYPE [NAME...]`` or ``TYPE/NAME...``."""
    words = ctx.params.get(parameter.name or "") or ()
    meant = reach.Reach(
        kubeconfig=ctx.params.get("kubeconfig") or "",
        context=ctx.params.get("context") or "",
        namespace=ctx.params.get("namespace") or "",
    )

    async def ask(api: reach.Api) -> set[str]:
        async with asyncio.timeout(completion.TIMEOUT_S):
            return await _possible(api, words, incomplete)

    try:
        return completion.items(reach.run(completion.invocation_of(ctx), meant, ask, quiet=True), incomplete)
    except (PodkeepError, OSError, TimeoutError):
        return []


async def _possible(api: reach.Api, words: Collection[str], incomplete: str) -> set[str]:
    known = await api.kinds()
    type_, slash, _ = incomplete.partition("/")
    if slash:
        return {f"{type_}/{name}" for name in await _names(api, kinds.Meant(resource=kinds.named(known, type_)))}
    first, *others = words or ("",)
    if first and "/" not in first:
        found = [await _names(api, meant) for meant in kinds.meant(known, [first])]
        return set[str]().union(*found) - set(others)
    before, comma, _ = incomplete.rpartition(",")
    types = {kind.resource.name for kind in known if "list" in kind.verbs}
    return {f"{before}{comma}{name}{'/' if first else ''}" for name in types}


async def _names(api: reach.Api, meant: kinds.Meant) -> set[str]:
    listed = await api.client.list(meant.resource, api.place_of(meant))
    names = {item["metadata"]["name"] for item in listed.get("items") or ()}
    return set(filter(_PLAIN.fullmatch, names))
