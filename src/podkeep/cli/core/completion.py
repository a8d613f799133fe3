"""Completion of pods, containers, images and ``TYPE=CLASS`` in a shell, from what the runtime has now.

Names come from the runtime alone: nobody waits for a shell that looks through directories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from podkeep.base.errors import PodkeepError
from podkeep.cli.core.invocation import Invocation

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from podkeep.cri.client import CriClient

_TIMEOUT_S = 2.0
"""A person waits for the completion with a finger on the key."""


def targets(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the pods that run, of the namespace, and their containers that run."""
    return _names(ctx, incomplete, lambda pods: {*pods, *_slashed(pods)}, running=True)


def all_targets(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the pods of the namespace and their containers, also those that have ended."""
    return _names(ctx, incomplete, lambda pods: {*pods, *_slashed(pods)}, running=False)


def running_pods(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the pods that run, of the namespace."""
    return _names(ctx, incomplete, lambda pods: set(pods), running=True)


def pods(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the pods of the namespace, but for those that are named already."""
    named = set(ctx.params.get("pods") or ())
    return _names(ctx, incomplete, lambda found: set(found) - named, running=False)


def containers(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the containers of the pod that is named."""
    pod = str(ctx.params.get("pod") or "")
    return _names(ctx, incomplete, lambda found: set(found.get(pod, ())), running=False)


Found = Mapping[str, set[str]]
"""The names of pods, and of the containers of each."""


def _slashed(found: Found) -> set[str]:
    return {f"{pod}/{container}" for pod, held in found.items() for container in held}


def _names(
    ctx: click.Context, incomplete: str, chosen: Callable[[Found], set[str]], *, running: bool
) -> list[CompletionItem]:
    namespace = ctx.params.get("namespace") or "default"

    async def ask(client: CriClient) -> set[str]:
        from podkeep.cri.v1 import api_pb2

        listed, held = await asyncio.gather(
            client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest(), timeout=_TIMEOUT_S),
            client.runtime.ListContainers(api_pb2.ListContainersRequest(), timeout=_TIMEOUT_S),
        )
        names = {
            item.id: item.metadata.name
            for item in listed.items
            if item.metadata.namespace == namespace and (not running or item.state == api_pb2.SANDBOX_READY)
        }
        found: dict[str, set[str]] = {name: set() for name in names.values()}
        for item in held.containers:
            if item.pod_sandbox_id in names and (not running or item.state == api_pb2.CONTAINER_RUNNING):
                found[names[item.pod_sandbox_id]].add(item.metadata.name)
        return chosen(found)

    return _complete(ctx, ask, incomplete)


def assignments(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the classes that are offered where the target is, as ``TYPE=CLASS``; none without a runtime."""
    to_container = "/" in (ctx.params.get("target") or "")

    async def ask(client: CriClient) -> set[str]:
        from podkeep.cri.v1 import api_pb2

        answer = await client.runtime.Status(api_pb2.StatusRequest(), timeout=_TIMEOUT_S)
        resources = answer.status.resources
        infos = resources.container_class_resources if to_container else resources.pod_class_resources
        return {f"{info.Name}={item.Name}" for info in infos if not info.immutable for item in info.classes}

    return _complete(ctx, ask, incomplete)


def images(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of images, in full and as people write them."""

    async def ask(client: CriClient) -> set[str]:
        from podkeep.base.reference import parse
        from podkeep.cri.v1 import api_pb2

        listed = await client.images.ListImages(api_pb2.ListImagesRequest(), timeout=_TIMEOUT_S)
        tags = [tag for image in listed.images for tag in image.repo_tags]
        return {name for tag in tags for name in (tag, parse(tag).familiar())}

    return _complete(ctx, ask, incomplete)


def _complete(
    ctx: click.Context, ask: Callable[[CriClient], Awaitable[set[str]]], incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from podkeep.cli.core import connection

    # Completion parses the command line without running the group that would make it.
    options: dict[str, Any] = ctx.find_root().params
    invocation = Invocation(config_path=options.get("config_path"), debug=False, settings=options.get("settings") or ())
    try:
        names = connection.call(invocation, ask)
    except (PodkeepError, OSError, TimeoutError):
        return []
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
