"""From the names a person types to the sandboxes and containers of the runtime.

Used by the verbs that act on one pod. Several sandboxes may carry one pod's name (an old attempt that is not removed
yet); the newest is meant, and one that is ready before any that is not.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from podkeep.base import waiting
from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import parse_pod_uid
from podkeep.base.waiting import UNTOLD, Containers, WaitingReason
from podkeep.cli.core import completion
from podkeep.cri.v1 import api_pb2

if TYPE_CHECKING:
    from podkeep.base.config import Config
    from podkeep.cli.pods.node_api import NodeApi
    from podkeep.cri.client import CriClient

Function = TypeVar("Function", bound=Callable[..., Any])
_TYPES = ("pod", "pods", "po")
"""What kubectl takes before a pod's name; here a container's name is what may follow a slash."""
_STARTS = "`podkeep ps` shows when it has started"


class Target(FrozenStruct, kw_only=True):
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


def target_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``POD[/CONTAINER]``, ``-c CONTAINER`` and ``-n NAMESPACE`` to a verb, passed to it as one ``target``."""
    argument = click.argument("pod", metavar="POD[/CONTAINER]", shell_complete=completion.targets)
    option = click.option(
        "-c",
        "--container",
        metavar="NAME",
        help="Container; may be left out if the pod has one.",
        shell_complete=completion.containers,
    )

    @functools.wraps(function)
    def with_target(*args: Any, pod: str, container: str | None, namespace: str, **kwargs: Any) -> Any:
        # POD/CONTAINER: no name of Kubernetes holds a slash.
        pod, _, named = pod.partition("/")
        target = Target(pod=pod, namespace=namespace, container=container or named or None)
        return function(*args, target=target, **kwargs)

    return argument(option(namespace_option(with_target)))


async def find_target(client: CriClient, config: Config, target: Target, *, running: bool = False) -> api_pb2.Container:
    """Return the newest attempt of the container that is meant.

    :param running: whether it is to run: of one that will be started again it is said what it waits for.
    :raises NotFound: if there is no such pod or container.
    :raises FailedPrecondition: if it has not started yet, or will not any more.
    :raises InvalidArgument: if no container is named and there are several.
    """
    sandbox = await find_pod(client, config, target.pod, target.namespace)
    known, more = told(config, sandbox), _more(config, target.pod, target.namespace)
    try:
        found = choose_container(await _containers(client, sandbox), target.pod, target.container, known, more)
    except FailedPrecondition as error:
        raise await _never_started(config, error, target) from error
    name = found.metadata.name
    reason = known.waiting.get(name)
    if running and reason is not None and found.state == api_pb2.CONTAINER_EXITED:
        raise FailedPrecondition(
            _waiting_to_start(name, target.pod, reason),
            hint=f"`podkeep logs {target.pod} -c {name}{_option(target.namespace)}` shows what it wrote",
        )
    return found


def _waiting_to_start(container: str, pod: str, reason: WaitingReason) -> str:
    return f'container "{container}" in pod "{pod}" is waiting to start: {_text(reason)}'


def _option(namespace: str) -> str:
    """Return what a command needs to name a namespace."""
    return "" if namespace == "default" else f" -n {namespace}"


async def require_container(client: CriClient, config: Config, pod: str, namespace: str) -> None:
    """Return if a pod has a container that was started.

    :raises NotFound: if there is no such pod.
    :raises FailedPrecondition: if it waits for the first one, or ended before.
    """
    sandbox = await find_pod(client, config, pod, namespace)
    known = told(config, sandbox)
    named = [*known.init, *known.main]
    if named and not await _containers(client, sandbox):
        first = next((name for name in named if name in known.waiting), named[0])
        await find_target(client, config, Target(pod=pod, namespace=namespace, container=first))


def _more(config: Config, pod: str, namespace: str) -> str:
    """Return where more is said of a pod that waits: an API has its events."""
    from podkeep.cli.core import node_report

    told = node_report.of(config)
    return _describe(pod, namespace) if told is not None and told.embedded else _STARTS


async def _never_started(config: Config, error: PodkeepError, target: Target) -> PodkeepError:
    """Return the error for a container that has not run: a better one, if this node's API knows that it never will."""
    said = await _ask_api(config, lambda api: api.why_ended(target.pod, target.namespace))
    if not said:
        return error
    return FailedPrecondition(said, hint=_describe(target.pod, target.namespace))


async def _ask_api(config: Config, ask: Callable[[NodeApi], Awaitable[str]]) -> str:
    """Return what this node's API answers; nothing if there is none, or it does not answer."""
    from podkeep.cli.pods.node_api import NodeApi

    with contextlib.suppress(PodkeepError):
        async with NodeApi(config) as api:
            return await ask(api)
    return ""


def _describe(pod: str, namespace: str) -> str:
    return f"`podkeep describe pod {pod}{_option(namespace)}` says more"


def told(config: Config, sandbox: api_pb2.PodSandbox) -> Containers:
    """Return what the agent says of a sandbox's pod."""
    try:
        return waiting.read(Path(config.agent.root) / "pods" / parse_pod_uid(sandbox.metadata.uid))
    except InvalidArgument:
        return UNTOLD  # somebody else's pod: the runtime takes any text as UID


async def absent(config: Config, error: NotFound, name: str, namespace: str) -> PodkeepError:
    """Return what to say of a pod that the runtime does not have: why, if its agent or this node's API knows it."""
    if reason := _before_sandbox(config, name, namespace):
        hint = _more(config, name, namespace)
        waits = FailedPrecondition(f'pod "{name}" is waiting to start: {reason}', hint=hint)
        # Or it has ended, and what the runtime had of it was removed, as its disk was full.
        return await _never_started(config, waits, Target(pod=name, namespace=namespace, container=None))
    said = await _ask_api(config, lambda api: api.why_not_here(name, namespace))
    return FailedPrecondition(said, hint=_describe(name, namespace)) if said else error


def _before_sandbox(config: Config, name: str, namespace: str) -> str:
    """Return what a pod waits for of which the runtime knows nothing yet; empty if its agent does not, either."""
    from podkeep.agent.poddirs import PodDirs, PodIdentity

    dirs = PodDirs.of(config)
    for uid in dirs.find(PodIdentity(namespace=namespace, name=name)):
        said = waiting.read(dirs.directory(uid).path)
        if said.followed:
            return _text(said.waiting.get("", WaitingReason(reason=said.first_wait(()), message="")))
    return ""


def _text(reason: WaitingReason) -> str:
    return f"{reason.reason}: {reason.message}" if reason.message else reason.reason


async def find_pod(client: CriClient, config: Config, name: str, namespace: str) -> api_pb2.PodSandbox:
    """Return the sandbox of a pod.

    :raises NotFound: if there is no such pod.
    :raises FailedPrecondition: if it has no sandbox.
    """
    answer = await client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest())
    try:
        return choose_pod(answer.items, name, namespace)
    except NotFound as error:
        raise await absent(config, error, name, namespace) from error


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
        if "/" in name or (name in _TYPES and not others):
            hint = "a pod is named without its type: web, not pod/web"
        raise NotFound(f"no pod {name} in namespace {namespace}", hint=hint)
    return max(matching, key=lambda sandbox: (sandbox.state == api_pb2.SANDBOX_READY, sandbox.created_at))


async def find_container(client: CriClient, sandbox: api_pb2.PodSandbox, name: str | None) -> api_pb2.Container:
    """Return the newest attempt of a pod's container.

    :param name: of the container; ``None``: the only one.
    :raises NotFound: if there is none.
    :raises InvalidArgument: if ``name`` is ``None`` and there are several.
    """
    return choose_container(await _containers(client, sandbox), sandbox.metadata.name, name)


async def container_status(
    client: CriClient, identity: str, *, timeout: float | None = None
) -> api_pb2.ContainerStatus:
    """Return what the runtime says of a container.

    :param timeout: seconds that it may take; None: as long as any call.
    :raises NotFound: if there is none.
    """
    request = api_pb2.ContainerStatusRequest(container_id=identity)
    return (await client.runtime.ContainerStatus(request, timeout=timeout)).status


async def _containers(client: CriClient, sandbox: api_pb2.PodSandbox) -> Sequence[api_pb2.Container]:
    request = api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(pod_sandbox_id=sandbox.id))
    return (await client.runtime.ListContainers(request)).containers


def choose_container(
    containers: Iterable[api_pb2.Container],
    pod: str,
    name: str | None,
    told: Containers = UNTOLD,
    more: str = _STARTS,
) -> api_pb2.Container:
    """Return the container meant by ``name`` (see :func:`find_container`).

    :param told: what the pod's agent says: init and ephemeral containers are not counted when one is chosen, and
        others may be still to come.
    :param more: the hint for one that has not started yet.
    :raises NotFound: if there is none.
    :raises FailedPrecondition: if it has not started yet.
    :raises InvalidArgument: if ``name`` is ``None`` and there are several.
    """
    attempts = list(containers)
    names = sorted({container.metadata.name for container in attempts} | {*told.init, *told.main})
    if not names:
        raise NotFound(f"pod {pod} has no container")
    if name is None:
        # Whoever debugs a pod, by an ephemeral container, means the same as before.
        candidates = sorted(told.main) or [item for item in names if item not in told.init]
        if len(candidates) > 1:
            hint = f"choose one with -c {told.main[0] if told.main else candidates[0]}"
            raise InvalidArgument(f"pod {pod} has containers {', '.join(names)}", hint=hint)
        name = candidates[0]
    matching = [container for container in attempts if container.metadata.name == name]
    if matching:
        return max(matching, key=lambda container: (container.metadata.attempt, container.created_at))
    if name not in names:
        raise NotFound(f"pod {pod} has no container {name}", hint=f"it has {', '.join(names)}")
    if not told.followed:
        text = f'container "{name}" in pod "{pod}" has not run, and nobody starts it'
        raise FailedPrecondition(text, hint=f"what ran the pod has ended; `podkeep rm {pod}` removes it")
    reason = told.waiting.get(name, WaitingReason(reason=told.first_wait(()), message=""))
    raise FailedPrecondition(_waiting_to_start(name, pod, reason), hint=more)
