"""Completion of ``POD[/CONTAINER]`` and ``TYPE=CLASS`` in a shell, from what the runtime has now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from podkeep.base.errors import PodkeepError
from podkeep.cli.invocation import Invocation

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from podkeep.cri.client import CriClient

_PATIENCE_S = 2.0
"""A person waits for the completion with a finger on the key."""


def targets(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the pods of the namespace and their containers that begin with ``incomplete``; none without a runtime."""
    namespace = ctx.params.get("namespace") or "default"

    async def ask(client: CriClient) -> set[str]:
        from podkeep.cri.v1 import api_pb2

        filter_ = api_pb2.PodSandboxFilter(state=api_pb2.PodSandboxStateValue(state=api_pb2.SANDBOX_READY))
        listed, held = await asyncio.gather(
            client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest(filter=filter_), timeout=_PATIENCE_S),
            client.runtime.ListContainers(api_pb2.ListContainersRequest(), timeout=_PATIENCE_S),
        )
        pods = {item.id: item.metadata.name for item in listed.items if item.metadata.namespace == namespace}
        containers = {
            f"{pods[item.pod_sandbox_id]}/{item.metadata.name}"
            for item in held.containers
            if item.pod_sandbox_id in pods and item.state == api_pb2.CONTAINER_RUNNING
        }
        return {*pods.values(), *containers}

    return _complete(ctx, ask, incomplete)


def assignments(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the classes that are offered where the target is, as ``TYPE=CLASS``; none without a runtime."""
    to_container = "/" in (ctx.params.get("target") or "")

    async def ask(client: CriClient) -> set[str]:
        from podkeep.cri.v1 import api_pb2

        answer = await client.runtime.Status(api_pb2.StatusRequest(), timeout=_PATIENCE_S)
        resources = answer.status.resources
        infos = resources.container_class_resources if to_container else resources.pod_class_resources
        return {f"{info.Name}={item.Name}" for info in infos if not info.immutable for item in info.classes}

    return _complete(ctx, ask, incomplete)


def _complete(
    ctx: click.Context, ask: Callable[[CriClient], Awaitable[set[str]]], incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    # Completion parses the command line without running the group that would make it.
    options: dict[str, Any] = ctx.find_root().params
    invocation = Invocation(config_path=options.get("config_path"), debug=False, settings=options.get("settings") or ())
    from podkeep.cli import connection

    try:
        names = connection.run(invocation, ask)
    except (PodkeepError, OSError, TimeoutError):
        return []
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
