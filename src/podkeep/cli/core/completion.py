"""Completion of pods, containers, images and ``TYPE=CLASS`` in a shell, from what the runtime has now.

Names come from the runtime alone: nobody waits for a shell that looks through directories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from podkeep.base.errors import PodkeepError
from podkeep.cli.core.invocation import Invocation

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from podkeep.cri.client import CriClient

TIMEOUT_S = 2.0
"""A person waits for the completion with a finger on the key."""


Found = Mapping[str, set[str]]
"""The names of pods, and of the containers of each."""
Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def _completer(chosen: Callable[[Found, Mapping[str, Any]], set[str]], *, running: bool) -> Completer:
    """Return what completes the names that ``chosen`` takes of what is in the namespace.

    :param chosen: gets the pods and the parameters that were typed already.
    :param running: only pods and containers that run.
    """

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        async def ask(client: CriClient) -> set[str]:
            found = await _find(client, ctx.params.get("namespace") or "default", running=running)
            return chosen(found, ctx.params)

        return _complete(ctx, ask, incomplete)

    return complete


async def _find(client: CriClient, namespace: str, *, running: bool) -> Found:
    from podkeep.cri.v1 import api_pb2

    listed, held = await asyncio.gather(
        client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest(), timeout=TIMEOUT_S),
        client.runtime.ListContainers(api_pb2.ListContainersRequest(), timeout=TIMEOUT_S),
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
    return found


def _with_containers(found: Found, _: Mapping[str, Any]) -> set[str]:
    return {*found, *(f"{pod}/{container}" for pod, held in found.items() for container in held)}


targets = _completer(_with_containers, running=True)
all_targets = _completer(_with_containers, running=False)
running_pods = _completer(lambda found, _: set(found), running=True)
pods = _completer(lambda found, typed: set(found) - set(typed.get("pods") or ()), running=False)
containers = _completer(lambda found, typed: set(found.get(typed.get("pod") or "", ())), running=False)


def places(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the pods that run, as ``POD:``, and leave the paths of this machine to the shell."""
    from click.shell_completion import CompletionItem

    found = running_pods(ctx, parameter, incomplete)
    return [*(CompletionItem(f"{item.value}:") for item in found), CompletionItem(incomplete, type="file")]


def assignments(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the classes that are offered where the target is, as ``TYPE=CLASS``; none without a runtime."""
    to_container = "/" in (ctx.params.get("target") or "")

    async def ask(client: CriClient) -> set[str]:
        from podkeep.cri.v1 import api_pb2

        answer = await client.runtime.Status(api_pb2.StatusRequest(), timeout=TIMEOUT_S)
        resources = answer.status.resources
        infos = resources.container_class_resources if to_container else resources.pod_class_resources
        return {f"{info.Name}={item.Name}" for info in infos if not info.immutable for item in info.classes}

    return _complete(ctx, ask, incomplete)


def images(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of images, in full and as people write them."""

    async def ask(client: CriClient) -> set[str]:
        from podkeep.base.registries.reference import parse
        from podkeep.cri.v1 import api_pb2

        listed = await client.images.ListImages(api_pb2.ListImagesRequest(), timeout=TIMEOUT_S)
        tags = [tag for image in listed.images for tag in image.repo_tags]
        return {name for tag in tags for name in (tag, parse(tag).familiar())}

    return _complete(ctx, ask, incomplete)


def _complete(
    ctx: click.Context, ask: Callable[[CriClient], Awaitable[set[str]]], incomplete: str
) -> list[CompletionItem]:
    from podkeep.cli.core import connection

    try:
        return items(connection.call(invocation_of(ctx), ask), incomplete)
    except (PodkeepError, OSError, TimeoutError):
        return []


def invocation_of(ctx: click.Context) -> Invocation:
    """Return what the global options of the command line mean: completion parses it without running their group."""
    options: dict[str, Any] = ctx.find_root().params
    return Invocation(config_path=options.get("config_path"), debug=False, settings=options.get("settings") or ())


def items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Return those of ``names`` that go on with what was typed."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
