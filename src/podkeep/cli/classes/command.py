"""``podkeep classes``: the QoS-class resources of the runtime (KEP-3008), and the classes of pods and containers.

Stock clients of CRI cannot say these fields. Owns: whom people mean, and changing classes. Does not own: what is said
of the types (``classlist``), or explaining a configuration (``check``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, Unimplemented
from podkeep.cli.classes import check
from podkeep.cli.core import completion, connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.pods.targets import Target, namespace_option

if TYPE_CHECKING:
    from podkeep.base.config import Config
    from podkeep.cli.classes.classlist import ClassReport
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1 import api_pb2


@click.group(name="classes", invoke_without_command=True)
@forms.output_option
@click.pass_context
@pass_invocation
def command(invocation: Invocation, ctx: click.Context, output: str) -> None:
    """List the classes of the node's class resources, and who is in them.

    A pod or container asks for a class by name, such as rdt=gold; what it means is this node's configuration.

    \b
      podkeep classes check rdt.yaml             what a file would mean here
      podkeep classes set web/main rdt=silver    change the class of a container
      podkeep classes set web blockio=slow       change that of the pod as a whole

    DEFAULT is the class that asking for "default" gets. A class that is not MUTABLE cannot be changed.
    """
    if ctx.invoked_subcommand is None:
        _list(invocation, form=output)


command.add_command(check.check)


def _list(invocation: Invocation, *, form: str) -> None:
    from podkeep.cli.classes.classlist import COLUMNS

    report = connection.run(invocation, ask)
    rows = report.rows()
    if not rows and form != "json":
        forms.echo_line("no classes", err=True)
    forms.show(form, report, [*(forms.table(COLUMNS, rows) if rows else ()), *report.notes()])


async def ask(client: CriClient) -> ClassReport:
    """Return what the runtime says of its class resources.

    :raises Unimplemented: if it says nothing of them: it is another one, or an older one.
    """
    from podkeep.cli.classes import classlist
    from podkeep.cri.v1 import api_pb2

    answer = await client.runtime.Status(api_pb2.StatusRequest(verbose=True))
    if not answer.status.HasField("resources"):
        raise Unimplemented(
            "the runtime reports no class resources",
            hint="it is not podkeep's, or an older one, and would ignore a class that is asked for",
        )
    return classlist.report(answer.status.resources, answer.info)


@command.command(name="set", short_help="Change classes of a pod or container.")
@click.argument("target", metavar="POD[/CONTAINER]", shell_complete=completion.targets)
@click.argument("assignments", nargs=-1, required=True, metavar="TYPE=CLASS...", shell_complete=completion.assignments)
@namespace_option
@forms.output_option
@pass_invocation
def set_(invocation: Invocation, target: str, assignments: tuple[str, ...], namespace: str, output: str) -> None:
    """Change classes of a container, or with POD alone those of the pod as a whole.

    All or none of them are changed, and other types keep their class. The class "default" is the one that the node
    chose. A container can also be NAMESPACE/POD/CONTAINER, as in the list of classes.

    \b
    Examples:
      podkeep classes set web/main rdt=silver blockio=slow
      podkeep classes set -n shop web blockio=default
    """
    from podkeep.api.class_resources import QOS
    from podkeep.cli.classes.assignments import parse

    wanted = parse(assignments)
    meant = read_target(target, namespace)
    if meant.container is None and QOS in wanted:
        raise InvalidArgument(f"class resource {QOS}: a pod's follows from the limits and requests of its containers")
    name = "/".join(part for part in (meant.namespace, meant.pod, meant.container) if part)

    async def change(client: CriClient) -> tuple[dict[str, str], dict[str, str]]:
        _check_level(await ask(client), wanted, meant)
        sandbox = await _find_pod(client, invocation.config, meant)
        if meant.container is None:
            return await _change_pod(client, sandbox, wanted)
        return await _change_container(client, sandbox, meant.container, wanted, name)

    before, after = connection.run(invocation, change)
    lines = [f"{name}: {described(type_name, before.get(type_name), after.get(type_name, ''))}" for type_name in wanted]
    forms.show(output, {"name": name, "before": before, "classes": after}, lines)


def read_target(text: str, namespace: str) -> Target:
    """Return what ``POD[/CONTAINER]`` or ``NAMESPACE/POD/CONTAINER`` names; without a container, the pod as a whole.

    :param namespace: that of ``-n``.
    :raises InvalidArgument: if it is neither, or names another namespace than ``-n`` does.
    """
    parts = text.split("/")
    if not all(parts) or len(parts) > 3:
        raise InvalidArgument(f"{text!r} is not POD[/CONTAINER]", hint="write it like web/main, or web for the pod")
    if len(parts) == 3:
        if namespace not in {"default", parts[0]}:
            raise InvalidArgument(f"{text} is not in namespace {namespace}", hint="leave one of them out")
        namespace = parts.pop(0)
    return Target(pod=parts[0], namespace=namespace, container=parts[1] if len(parts) == 2 else None)


def described(type_name: str, before: str | None, after: str) -> str:
    """Return what a change did, for a person."""
    if before == after:
        return f"{type_name}={after} already"
    return f"{type_name}={after} (was {before or 'in no class'})"


def _check_level(report: ClassReport, wanted: Mapping[str, str], target: Target) -> None:
    """Say where a type is to be had, if it is at the other level only; anything else the runtime says better."""
    level = "pod" if target.container is None else "container"
    for type_name in wanted:
        offered = report.offered(type_name)
        if offered and level not in offered:
            [other] = offered
            alone = f"name the pod alone: {target.pod}"
            hint = alone if target.container else f"name the container: {target.pod}/NAME"
            raise InvalidArgument(f"class resource {type_name}: offered for {other}s only", hint=hint)


async def _find_pod(client: CriClient, config: Config, target: Target) -> api_pb2.PodSandbox:
    from podkeep.cli.pods.targets import absent, choose_pod
    from podkeep.cri.v1 import api_pb2

    items = (await client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest())).items
    try:
        return choose_pod(items, target.pod, target.namespace)
    except NotFound as error:
        # The list of classes shows a pod as NAMESPACE/POD, which is POD/CONTAINER here.
        if any((item.metadata.namespace, item.metadata.name) == (target.pod, target.container) for item in items):
            hint = f"for pod {target.container} as a whole: -n {target.pod} {target.container}"
            raise NotFound(error.message, hint=hint) from error
        raise await absent(config, error, target.pod, target.namespace) from error


async def _change_container(
    client: CriClient, sandbox: api_pb2.PodSandbox, container: str, wanted: Mapping[str, str], name: str
) -> tuple[dict[str, str], dict[str, str]]:
    from podkeep.cli.pods.targets import find_container
    from podkeep.cri.v1 import api_pb2

    found = await find_container(client, sandbox, container)
    if found.state == api_pb2.CONTAINER_EXITED:
        hint = "when it is started again it is in those that its pod's manifest names"
        raise FailedPrecondition(f"container {name} has ended: it is in no class any more", hint=hint)
    request = api_pb2.ContainerStatusRequest(container_id=found.id, verbose=True)
    before = _in_force((await client.runtime.ContainerStatus(request)).info)
    classes = api_pb2.ContainerClassResources(classes=wanted)
    await client.runtime.UpdateContainerResources(
        api_pb2.UpdateContainerResourcesRequest(container_id=found.id, class_resources=classes)
    )
    return before, _in_force((await client.runtime.ContainerStatus(request)).info)


async def _change_pod(
    client: CriClient, sandbox: api_pb2.PodSandbox, wanted: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    from podkeep.cri.v1 import api_pb2

    request = api_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox.id, verbose=True)
    before = _in_force((await client.runtime.PodSandboxStatus(request)).info)
    classes = api_pb2.PodClassResources(**{"class": wanted})  # a word of Python
    config = api_pb2.PodSandboxConfig(metadata=sandbox.metadata, class_resources=classes)
    await client.runtime.UpdatePodSandboxConfig(
        api_pb2.UpdatePodSandboxConfigRequest(pod_sandbox_id=sandbox.id, config=config)
    )
    return before, _in_force((await client.runtime.PodSandboxStatus(request)).info)


def _in_force(info: Mapping[str, str]) -> dict[str, str]:
    details: dict[str, Any] = json.loads(info.get("info", "{}"))
    return dict(details.get("classResources") or {})
