"""``podkeep classes``: the QoS-class resources of the runtime (KEP-3008), and the classes of pods and containers.

Stock clients of CRI cannot say these fields. Owns: what people type, and changing classes. Does not own: what is said
of the types (``classlist``), or explaining a configuration (``classes_check``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from podkeep.base.errors import InvalidArgument, Unimplemented
from podkeep.cli import classes_check, classes_completion, connection
from podkeep.cli import output as forms
from podkeep.cli.invocation import Invocation, pass_invocation
from podkeep.cli.pods import namespace_option

if TYPE_CHECKING:
    from podkeep.cli.classlist import ClassReport
    from podkeep.cri.client import CriClient


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


command.add_command(classes_check.check)


def _list(invocation: Invocation, *, form: str) -> None:
    from podkeep.cli.classlist import HEADER

    report = connection.run(invocation, ask)
    if form == "json":
        forms.echo_json(report.as_json())
        return
    rows = [cells for item in report.types for cells in item.cells()]
    if rows:
        forms.echo_table(HEADER, rows)
    else:
        click.echo("no classes", err=True)
    for line in report.notes():
        forms.echo_line(line)


async def ask(client: CriClient) -> ClassReport:
    """Return what the runtime says of its class resources.

    :raises Unimplemented: if it says nothing of them: it is another one, or an older one.
    """
    from podkeep.cli import classlist
    from podkeep.cri.v1 import api_pb2

    answer = await client.runtime.Status(api_pb2.StatusRequest(verbose=True))
    if not answer.status.HasField("resources"):
        raise Unimplemented(
            "the runtime reports no class resources",
            hint="it is not podkeep's, or an older one, and would ignore a class that is asked for",
        )
    return classlist.report(answer.status.resources, answer.info)


@command.command(name="set", short_help="Change classes of a pod or container.")
@click.argument("target", metavar="POD[/CONTAINER]", shell_complete=classes_completion.targets)
@click.argument(
    "assignments", nargs=-1, required=True, metavar="TYPE=CLASS...", shell_complete=classes_completion.assignments
)
@namespace_option
@forms.output_option
@pass_invocation
def set_(invocation: Invocation, target: str, assignments: tuple[str, ...], namespace: str, output: str) -> None:
    """Change classes of a container, or with POD alone those of the pod as a whole.

    All or none of them are changed, and other types keep their class. The class "default" is the one that the node
    chose.

    \b
    Examples:
      podkeep classes set web/main rdt=silver blockio=slow
      podkeep classes set -n shop web blockio=default
    """
    wanted = parse(assignments)
    pod, _, container = target.partition("/")

    async def change(client: CriClient) -> tuple[str, dict[str, str], dict[str, str]]:
        level = "container" if container else "pod"
        _check_level(await ask(client), level, wanted, target)
        if container:
            return await _change_container(client, pod, namespace, container, wanted)
        return await _change_pod(client, pod, namespace, wanted)

    name, before, after = connection.run(invocation, change)
    if output == "json":
        forms.echo_json({"name": name, "before": before, "classes": after})
        return
    for type_name in wanted:
        forms.echo_line(f"{name}: {described(type_name, before.get(type_name), after.get(type_name, ''))}")


def parse(assignments: Sequence[str]) -> dict[str, str]:
    """Return types to classes of ``TYPE=CLASS`` words.

    :raises InvalidArgument: if one is not like that, or a type is named twice.
    """
    found: dict[str, str] = {}
    for text in assignments:
        type_name, separator, class_name = text.partition("=")
        if not separator or not type_name or not class_name:
            raise InvalidArgument(f"{text!r} is not TYPE=CLASS", hint="write it like rdt=gold")
        if type_name in found:
            raise InvalidArgument(f"type {type_name} is named twice: {found[type_name]} and {class_name}")
        found[type_name] = class_name
    return found


def described(type_name: str, before: str | None, after: str) -> str:
    """Return what a change did, for a person."""
    if before == after:
        return f"{type_name}={after} already"
    return f"{type_name}={after} (was {before or 'in no class'})"


def _check_level(report: ClassReport, level: str, wanted: Mapping[str, str], target: str) -> None:
    """Say where a type is to be had, if it is at the other level only; anything else the runtime says better."""
    for type_name in wanted:
        offered = report.offered(type_name)
        if offered and level not in offered:
            [other] = offered
            hint = (
                f"name the container: {target}/NAME"
                if level == "pod"
                else f"name the pod alone: {target.partition('/')[0]}"
            )
            raise InvalidArgument(f"class resource {type_name}: offered for {other}s only", hint=hint)


async def _change_container(
    client: CriClient, pod: str, namespace: str, container: str, wanted: Mapping[str, str]
) -> tuple[str, dict[str, str], dict[str, str]]:
    from podkeep.cli.pods import Target, find_target
    from podkeep.cri.v1 import api_pb2

    found = await find_target(client, Target(pod=pod, namespace=namespace, container=container))
    request = api_pb2.ContainerStatusRequest(container_id=found.id, verbose=True)
    before = _in_force((await client.runtime.ContainerStatus(request)).info)
    classes = api_pb2.ContainerClassResources(classes=wanted)
    await client.runtime.UpdateContainerResources(
        api_pb2.UpdateContainerResourcesRequest(container_id=found.id, class_resources=classes)
    )
    after = _in_force((await client.runtime.ContainerStatus(request)).info)
    return f"{namespace}/{pod}/{container}", before, after


async def _change_pod(
    client: CriClient, pod: str, namespace: str, wanted: Mapping[str, str]
) -> tuple[str, dict[str, str], dict[str, str]]:
    from podkeep.cli.pods import find_pod
    from podkeep.cri.v1 import api_pb2

    found = await find_pod(client, pod, namespace)
    request = api_pb2.PodSandboxStatusRequest(pod_sandbox_id=found.id, verbose=True)
    before = _in_force((await client.runtime.PodSandboxStatus(request)).info)
    classes = api_pb2.PodClassResources(**{"class": wanted})  # a word of Python
    config = api_pb2.PodSandboxConfig(metadata=found.metadata, class_resources=classes)
    await client.runtime.UpdatePodSandboxConfig(
        api_pb2.UpdatePodSandboxConfigRequest(pod_sandbox_id=found.id, config=config)
    )
    after = _in_force((await client.runtime.PodSandboxStatus(request)).info)
    return f"{namespace}/{pod}", before, after


def _in_force(info: Mapping[str, str]) -> dict[str, str]:
    details: dict[str, Any] = json.loads(info.get("info", "{}"))
    return dict(details.get("classResources") or {})
