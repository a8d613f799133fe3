"""From the names a person types to the sandboxes and containers of the runtime.

Used by the verbs that act on one pod. Several sandboxes may carry one pod's name (an old attempt that is not removed
yet); the newest is meant, and one that is ready before any that is not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.cli import completion
from podkeep.cri.v1 import api_pb2

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Target:
    """The container a person named: of ``container`` ``None`` there must be just one."""

    pod: str
    namespace: str
    container: str | None


def namespace_option(function: Function) -> Function:
    """Add ``-n NAMESPACE`` to a verb, passed to it as ``namespace``."""
    option = click.option(
        "-n", "--namespace", default="default", show_default=True, help="Kubernetes namespace of the pod."
    )
    return option(function)


def target_arguments(*, running: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``POD[/CONTAINER]``, ``-c CONTAINER`` and ``-n NAMESPACE`` to a verb, passed to it as one ``target``.

    :param running: whether a shell completes only what runs.
    """
    argument = click.argument(
        "pod",
        metavar="POD[/CONTAINER]",
        shell_complete=completion.targets if running else completion.all_targets,
    )
    option = click.option(
        "-c",
        "--container",
        metavar="NAME",
        help="Container; may be left out if the pod has one.",
        shell_complete=completion.containers,
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_target(*args: Any, pod: str, container: str | None, namespace: str, **kwargs: Any) -> Any:
            # POD/CONTAINER: no name of Kubernetes holds a slash.
            pod, _, named = pod.partition("/")
            target = Target(pod=pod, namespace=namespace, container=container or named or None)
            return function(*args, target=target, **kwargs)

        return argument(option(namespace_option(with_target)))

    return decorate


async def find_target(client: CriClient, target: Target) -> api_pb2.Container:
    """Return the newest attempt of the container that is meant.

    :raises NotFound: if there is no such pod or container.
    :raises InvalidArgument: if no container is named and there are several.
    """
    return await find_container(client, await find_pod(client, target.pod, target.namespace), target.container)


async def find_pod(client: CriClient, name: str, namespace: str) -> api_pb2.PodSandbox:
    """Return the sandbox of a pod.

    :raises NotFound: if there is none.
    """
    answer = await client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest())
    return choose_pod(answer.items, name, namespace)


def choose_pod(sandboxes: Iterable[api_pb2.PodSandbox], name: str, namespace: str) -> api_pb2.PodSandbox:
    """Return the sandbox meant by a pod's name.

    :raises NotFound: if there is none; the hint names the namespaces in which there is one.
    """
    same_name = [sandbox for sandbox in sandboxes if sandbox.metadata.name == name]
    matching = [sandbox for sandbox in same_name if sandbox.metadata.namespace == namespace]
    if not matching:
        others = sorted({sandbox.metadata.namespace for sandbox in same_name})
        hint = (
            f"there is one in {', '.join(others)}: add -n {others[0]}" if others else "`podkeep ps -a` lists all pods"
        )
        raise NotFound(f"no pod {name} in namespace {namespace}", hint=hint)
    return max(matching, key=lambda sandbox: (sandbox.state == api_pb2.SANDBOX_READY, sandbox.created_at))


async def find_container(client: CriClient, sandbox: api_pb2.PodSandbox, name: str | None) -> api_pb2.Container:
    """Return the newest attempt of a pod's container.

    :param name: of the container; ``None``: the only one.
    :raises NotFound: if there is none.
    :raises InvalidArgument: if ``name`` is ``None`` and there are several.
    """
    request = api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(pod_sandbox_id=sandbox.id))
    answer = await client.runtime.ListContainers(request)
    return choose_container(answer.containers, sandbox.metadata.name, name)


def choose_container(containers: Iterable[api_pb2.Container], pod: str, name: str | None) -> api_pb2.Container:
    """Return the container meant by ``name`` (see :func:`find_container`).

    :raises NotFound: if there is none.
    :raises InvalidArgument: if ``name`` is ``None`` and there are several.
    """
    attempts = list(containers)
    names = sorted({container.metadata.name for container in attempts})
    if not names:
        raise NotFound(f"pod {pod} has no container")
    if name is None:
        if len(names) > 1:
            raise InvalidArgument(f"pod {pod} has containers {', '.join(names)}", hint=f"choose one with -c {names[0]}")
        name = names[0]
    matching = [container for container in attempts if container.metadata.name == name]
    if not matching:
        raise NotFound(f"pod {pod} has no container {name}", hint=f"it has {', '.join(names)}")
    return max(matching, key=lambda container: (container.metadata.attempt, container.created_at))
