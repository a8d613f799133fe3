"""``podkeep describe``: an object for people: how it is and why first, then what it is, then what happened to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from podkeep.base.errors import NotFound
from podkeep.base.text.printable import shortened
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.objects import completion, events, kinds
from podkeep.cli.objects.get import typed_name
from podkeep.cli.objects.reach import Api, Reach, api_options, run
from podkeep.cli.pods import verdicts

Object = dict[str, Any]
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_MOST = 1000
"""Characters of what is said of a container's state; `podkeep get -o yaml` has all of them."""


@click.command(name="describe")
@click.argument(
    "what", nargs=-1, required=True, metavar="TYPE [NAME...] | TYPE/NAME...", shell_complete=completion.objects
)
@api_options(everywhere=True)
@click.option("-l", "--selector", default="", metavar="LABELS", help="Those with these labels.")
@pass_invocation
def command(invocation: Invocation, reach: Reach, what: tuple[str, ...], selector: str) -> None:
    """Describe objects. The first line says how each is and, if something is wrong, why.

    \b
    Examples:
      podkeep describe pod web
      podkeep describe node/one
    """

    async def show(api: Api) -> None:
        count = 0
        for meant in kinds.meant(await api.kinds(), what):
            resource = meant.resource
            namespace = api.place_of(meant)
            if meant.names:
                found = [await api.client.get(resource, name, namespace) for name in meant.names]
            else:
                found = (await api.client.list(resource, namespace, labels=selector)).get("items") or []
            for item in found:
                known = {"apiVersion": resource.api_version, "kind": resource.kind, **item}
                if count:
                    click.echo()
                count += 1
                happened = await events_of(api, known)
                for line in described(known, happened, typed_name(resource), time.time()):
                    forms.echo_line(line)
        if not count:
            raise NotFound("No resources found")

    run(invocation, reach, show)


async def events_of(api: Api, value: Object) -> list[Object]:
    """Return the events of an object, the newest last."""
    from podkeep.client.resources import EVENTS

    metadata = value["metadata"]
    fields = f"involvedObject.name={metadata['name']},involvedObject.kind={value['kind']}"
    if value["kind"] == "Pod":  # of a pod of the same name that was before, there may be events, too
        fields += f",involvedObject.uid={verdicts.uid_of_events(value)}"
    listed = await api.client.list(EVENTS, metadata.get("namespace", ""), fields=fields)
    return sorted(listed.get("items") or (), key=verdicts.event_time)


def described(value: Object, happened: list[Object], typed: str, now: float) -> Iterator[str]:
    metadata = value["metadata"]
    where = f" in {metadata['namespace']}" if metadata.get("namespace") else ""
    yield f"{typed}/{metadata['name']}{where}: {_summary(value, happened)}"
    yield ""
    yield from _pairs(value, now)
    special = {"Pod": _pod, "Node": _node}.get(value["kind"])
    if special is not None:
        yield from special(value, now)
    else:
        yield from _plain(value)
    yield from _conditions(value, now)
    yield ""
    if happened:
        yield "Events:"
        yield from (f"  {line}" for line in events.table(happened))
    else:
        yield "Events: none"


def _summary(value: Object, happened: list[Object]) -> str:
    if value["kind"] == "Pod":
        found = verdicts.verdict(value, happened)
        return f"{found.state}: {found.why}" if found.why else found.state
    if value["kind"] == "Node":
        return node_summary(value)
    # As for a pod: what is being deleted has the phase that it had.
    deleted = value["metadata"].get("deletionTimestamp")
    phase = "Terminating" if deleted else (value.get("status") or {}).get("phase")
    age = events.ago(str(value["metadata"].get("creationTimestamp", "")), time.time())
    return f"{phase}, {age} old" if phase else f"{age} old"


def node_summary(node: Object) -> str:
    """Return how a node is: ``Ready``, or why not; and what presses on it."""
    conditions = {item.get("type"): item for item in (node.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    if ready.get("status") == "True":
        words = ["Ready"]
    else:
        message = ready.get("message") or "its kubelet has said nothing"
        words = [f"NotReady: {message}"]
    words += [str(name) for name, item in conditions.items() if name != "Ready" and item.get("status") == "True"]
    if (node.get("spec") or {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ", ".join(words)


def _pairs(value: Object, now: float) -> Iterator[str]:
    metadata = value["metadata"]
    created = str(metadata.get("creationTimestamp", ""))
    yield _pair("Created", f"{created} ({events.ago(created, now)} ago)")
    yield _pair("UID", metadata.get("uid", ""))
    if metadata.get("deletionTimestamp"):
        grace = metadata.get("deletionGracePeriodSeconds")
        yield _pair("Deleted", f"{metadata['deletionTimestamp']} (grace period {grace} s)")
    yield from _mapping("Labels", metadata.get("labels"))
    shown = {key: text for key, text in (metadata.get("annotations") or {}).items() if key != _LAST_APPLIED}
    yield from _mapping("Annotations", shown)
    owners = [f"{item.get('kind')}/{item.get('name')}" for item in metadata.get("ownerReferences") or ()]
    if owners:
        yield _pair("Owned by", ", ".join(owners))
    if metadata.get("finalizers"):
        yield _pair("Finalizers", ", ".join(metadata["finalizers"]))


def _pod(pod: Object, now: float) -> Iterator[str]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    addresses = ", ".join(str(item.get("ip")) for item in status.get("podIPs") or ())
    yield _pair("Node", f"{spec.get('nodeName') or 'none yet'}{_in_parentheses(status.get('hostIP'))}")
    yield _pair("Addresses", addresses or "none yet")
    yield _pair("Phase", status.get("phase", ""))
    yield _pair("QoS class", status.get("qosClass", ""))
    if spec.get("serviceAccountName"):  # a static pod has none
        yield _pair("Account", spec["serviceAccountName"])
    for title, name in (("Requests", "requests"), ("Limits", "limits")):
        if wanted := (spec.get("resources") or {}).get(name):
            yield _pair(title, _amounts(wanted))
    for title, key, statuses in (
        ("Init containers", "initContainers", "initContainerStatuses"),
        ("Containers", "containers", "containerStatuses"),
        ("Ephemeral containers", "ephemeralContainers", "ephemeralContainerStatuses"),
    ):
        told = {item.get("name"): item for item in status.get(statuses) or ()}
        if spec.get(key):
            yield f"{title}:"
        for container in spec.get(key) or ():
            yield from _container(container, told.get(container.get("name")) or {}, now)
    if spec.get("volumes"):
        yield "Volumes:"
        for volume in spec["volumes"]:
            kind = next((name for name in volume if name != "name"), "")
            yield f"  {volume.get('name')}: {kind}{_in_parentheses(_source(volume.get(kind)))}"


def _container(container: Object, told: Object, now: float) -> Iterator[str]:
    yield f"  {container.get('name')}: {_state(told.get('state') or {}, now) or 'not started'}"
    yield f"    image: {container.get('image')}{_in_parentheses(told.get('imageID'))}"
    command = [*(container.get("command") or ()), *(container.get("args") or ())]
    if command:
        yield f"    command: {' '.join(command)[:500]}"
    ports = [f"{item.get('containerPort')}/{item.get('protocol', 'TCP')}" for item in container.get("ports") or ()]
    if ports:
        yield f"    ports: {', '.join(ports)}"
    if told:
        yield f"    ready: {'yes' if told.get('ready') else 'no'}, restarts: {told.get('restartCount', 0)}"
    if told.get("lastState"):
        yield f"    before: {_state(told['lastState'], now)}"
    for name in ("requests", "limits"):
        wanted = (container.get("resources") or {}).get(name)
        if wanted:
            yield f"    {name}: {_amounts(wanted)}"
    mounts = [
        f"{item.get('name')} on {item.get('mountPath')}{' (read-only)' if item.get('readOnly') else ''}"
        for item in container.get("volumeMounts") or ()
    ]
    if mounts:
        yield f"    mounts: {', '.join(mounts)}"


def _amounts(wanted: Object) -> str:
    return ", ".join(f"{name} {text}" for name, text in sorted(wanted.items()))


def _state(state: Object, now: float) -> str:
    if "running" in state:
        return f"running for {events.ago(str(state['running'].get('startedAt', '')), now)}"
    if "terminated" in state:
        ended = state["terminated"]
        message = _message(ended)
        when = events.ago(str(ended.get("finishedAt", "")), now)
        return f"ended {when} ago, {ended.get('reason', 'Error')}, exit status {ended.get('exitCode', 0)}{message}"
    if "waiting" in state:
        waits = state["waiting"]
        return f"waiting, {waits.get('reason', '')}{_message(waits)}"
    return ""


def _message(state: Object) -> str:
    """Return in one line what is said of a state; a container may have written 4096 bytes of it."""
    words = " ".join(str(state.get("message") or "").split())
    return f": {shortened(words, _MOST)}" if words else ""


def _source(value: Any) -> str:
    """Return what a volume's source names: the first text in it."""
    if not isinstance(value, dict):
        return ""
    return next((str(item) for item in value.values() if isinstance(item, str)), "")


def _node(node: Object, _: float) -> Iterator[str]:
    status = node.get("status") or {}
    for item in status.get("addresses") or ():
        yield _pair(str(item.get("type")), item.get("address", ""))
    info = status.get("nodeInfo") or {}
    for title, key in (
        ("System", "osImage"),
        ("Kernel", "kernelVersion"),
        ("Runtime", "containerRuntimeVersion"),
        ("Kubelet", "kubeletVersion"),
    ):
        yield _pair(title, info.get(key, ""))
    taints = [
        f"{item.get('key')}={item.get('value', '')}:{item.get('effect')}" for item in node["spec"].get("taints") or ()
    ]
    yield _pair("Taints", ", ".join(taints) or "none")
    yield from _mapping("Capacity", status.get("capacity"))
    yield from _mapping("Allocatable", status.get("allocatable"))


def _plain(value: Object) -> Iterator[str]:
    """Yield the fields of a kind that is not known better, as YAML; of a Secret no values."""
    from podkeep.base.text.yaml_text import to_yaml

    for key, content in value.items():
        if key in ("apiVersion", "kind", "metadata"):
            continue
        if value["kind"] == "Secret" and key in ("data", "stringData"):
            yield f"{key}:"
            yield from (f"  {name}: {len(str(text))} characters of base64" for name, text in (content or {}).items())
            continue
        shown = (
            {name: item for name, item in content.items() if name != "conditions"}
            if isinstance(content, dict)
            else content
        )
        if shown not in (None, {}, []):
            yield from to_yaml({key: shown}).rstrip().split("\n")


def _conditions(value: Object, now: float) -> Iterator[str]:
    conditions = (value.get("status") or {}).get("conditions") or ()
    if not conditions:
        return
    yield "Conditions:"
    rows = [
        (
            str(item.get("type", "")),
            str(item.get("status", "")),
            events.ago(str(item.get("lastTransitionTime", "")), now),
            ": ".join(str(item[key]) for key in ("reason", "message") if item.get(key)),
        )
        for item in conditions
    ]
    yield from (f"  {line}" for line in forms.aligned([("TYPE", "STATUS", "SINCE", "WHY"), *rows]))


def _mapping(title: str, values: Any) -> Iterator[str]:
    items = [f"{key}={text}" for key, text in sorted((values or {}).items())]
    for index, item in enumerate(items):
        yield _pair(title if not index else "", item)


def _pair(title: str, text: object) -> str:
    return f"{f'{title}:' if title else '':<14} {text}"


def _in_parentheses(text: object) -> str:
    return f" ({text})" if text else ""
