"""``podkeep status``: one screen about this machine as a node: what runs, what does not, and why."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from podkeep.base.errors import PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import rfc3339
from podkeep.cli.core import node_report as report
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.core.node_report import DaemonReport, NodeReport
from podkeep.cli.objects import events
from podkeep.cli.objects.describe import node_summary
from podkeep.cli.objects.reach import Api, Reach, run
from podkeep.cli.pods import verdicts

if TYPE_CHECKING:
    from podkeep.base.config import Config

Object = dict[str, Any]
_SHOWN = 20
"""Pods that are not well and have a line each; of more the number is told."""


class Seen(FrozenStruct, kw_only=True):
    """What the API says. ``problem``: why it says nothing; ``node`` is None if it has no such node."""

    node: Object | None = None
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    problem: str = ""


class PodLine(FrozenStruct, kw_only=True):
    """A pod that is not well."""

    namespace: str
    name: str
    state: str
    age: str
    restarts: int
    why: str


class Status(FrozenStruct, kw_only=True):
    """All that is shown."""

    name: str
    summary: str
    is_well: bool
    daemons: tuple[DaemonReport, ...] = ()
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Pods by state."""
    unwell: tuple[PodLine, ...] = ()
    are_pods_known: bool = True
    """Whether the API said which pods there are."""

    def plain(self) -> dict[str, Any]:
        """Return it for JSON, with times in RFC 3339; of a daemon that never ran there is none."""
        daemons = [
            {**msgspec.structs.asdict(item), "since": rfc3339.of_nanoseconds(int(item.since * 1e9))}
            for item in self.daemons
        ]
        return {**msgspec.structs.asdict(self), "daemons": daemons}


@click.command(name="status")
@forms.output_option
@click.pass_context
@pass_invocation
def command(invocation: Invocation, ctx: click.Context, output: str) -> None:
    """Say how this node is: its daemons, its pods, and why those do not run that do not.

    The exit status is 0 if all is well, else 1.
    """
    told = report.of(invocation.config)
    name = (told.name if told is not None else "") or invocation.config.agent.own_name()
    if told is None:
        status = not_running(name, invocation.config)
    else:
        status = judged(told, name, _seen(invocation, told, name), time.time())
    forms.show(output, status.plain(), lines(status, time.time()))
    ctx.exit(0 if status.is_well else 1)


def _seen(invocation: Invocation, told: NodeReport, name: str) -> Seen:
    async def ask(api: Api) -> Seen:
        from podkeep.client.errors import ApiError
        from podkeep.client.resources import EVENTS, NODES, PODS

        # Whoever asks how the node is may do so because the API hangs.
        api.client.timeout = 5.0
        try:
            node = await api.client.get(NODES, name)
        except ApiError as error:
            if not error.not_found:
                raise
            node = None
        found = (await api.client.list(PODS, fields=f"spec.nodeName={name}")).get("items") or []
        waiting: list[Object] = []
        happened: list[Object] = []
        if told.embedded:  # in a cluster, they are somebody else's, and a node may not see them
            waiting = (await api.client.list(PODS, fields="spec.nodeName=")).get("items") or []
            happened = (await api.client.list(EVENTS, fields="type=Warning")).get("items") or []
        return Seen(node=node, pods=[*found, *waiting], events=happened)

    # It is this node that root asks about, whatever KUBECONFIG names; others have no way to it but that.
    embedded = told.embedded and invocation.config.api.unix_socket
    reach = Reach(is_own=os.geteuid() == 0) if embedded else Reach(kubeconfig=told.kubeconfig)
    try:
        return run(invocation, reach, ask)
    except PodkeepError as error:
        from podkeep.client.errors import ApiError

        refused = isinstance(error, ApiError)
        return Seen(problem=f"the API {'refuses' if refused else 'does not answer'}: {error.message}")


def not_running(name: str, config: Config) -> Status:
    """Return the status of a machine on which no ``podkeep node`` runs."""
    from podkeep.cli.core.connection import check_listening
    from podkeep.cli.core.left_running import running_without, words

    socket = config.runtime.socket
    try:
        check_listening(socket)
        runtime = f"; a runtime serves {socket} (`podkeep ps` lists its pods)"
    except PodkeepError:
        left = running_without(config)
        runtime = f"; {words(left)} without it" if left else ""
    return Status(name=name, summary=f"does not run: start it with `podkeep node`{runtime}", is_well=False)


def judged(told: NodeReport, name: str, seen: Seen, now: float) -> Status:
    """Return what is to be shown: the worst comes into the first line."""
    down = [daemon for daemon in told.daemons if daemon.state != "ready"]
    problems = [daemon.problem for daemon in told.daemons if daemon.problem]
    by_pod: dict[str, list[Object]] = {}
    for event in seen.events:
        by_pod.setdefault(str((event.get("involvedObject") or {}).get("uid", "")), []).append(event)
    found = [(pod, verdicts.verdict(pod, by_pod.get(verdicts.uid_of_events(pod), ()))) for pod in seen.pods]
    unwell = tuple(
        PodLine(
            namespace=pod["metadata"].get("namespace", ""),
            name=pod["metadata"]["name"],
            state=verdict.state,
            age=events.ago(str(pod["metadata"].get("creationTimestamp", "")), now),
            restarts=verdicts.restarts(pod),
            why=verdict.why,
        )
        for pod, verdict in found
        if not verdict.is_well
    )
    node = node_summary(seen.node) if seen.node is not None else ""
    summary = "; ".join([_summary(down, seen, node, len(unwell)), *problems])
    return Status(
        name=name,
        summary=summary,
        is_well=not down and not seen.problem and node == "Ready" and not unwell and not problems,
        daemons=told.daemons,
        counts=dict(Counter(verdict.state for _, verdict in found)),
        unwell=unwell,
        are_pods_known=not seen.problem,
    )


def _summary(down: Sequence[DaemonReport], seen: Seen, node: str, unwell: int) -> str:
    failed = [daemon for daemon in down if daemon.reason]
    # Who waits for one that failed is no news.
    parts = [
        f"{daemon.name} {'has ended' if daemon.had_served else 'cannot start'}: {daemon.reason}" for daemon in failed
    ] or [f"{daemon.name} is {daemon.state}" for daemon in down]
    if not down and seen.problem:
        parts.append(seen.problem)
    if node and (node != "Ready" or not parts):
        parts.append(node)
    if not node and not parts:
        parts.append("not registered yet")
    if unwell:
        parts.append(f"{forms.number_of(unwell, 'pod')} not well")
    return "; ".join(parts)


def lines(status: Status, now: float) -> Iterable[str]:
    yield f"node {status.name}: {status.summary}"
    if status.daemons:
        yield ""
        rows = [(item.name, item.state, str(item.pid or ""), _since(item, now), _said(item)) for item in status.daemons]
        yield from forms.aligned([("DAEMON", "STATE", "PID", "SINCE", ""), *rows])
    if status.counts:
        yield ""
        counts = ", ".join(f"{count} {state}" for state, count in sorted(status.counts.items()))
        yield f"pods: {counts}"
    elif status.daemons:
        yield ""
        yield "pods: none" if status.are_pods_known else "pods: not known, the API does not say; they run on"
    if status.unwell:
        yield ""
        rows_ = [
            (item.namespace, item.name, item.state, str(item.restarts), item.age, item.why)
            for item in status.unwell[:_SHOWN]
        ]
        yield from forms.aligned([("NAMESPACE", "NAME", "STATE", "RESTARTS", "AGE", "WHY"), *rows_])
        if len(status.unwell) > _SHOWN:
            yield f"and {len(status.unwell) - _SHOWN} more: podkeep get pods -A"


def _since(daemon: DaemonReport, now: float) -> str:
    return forms.age(now - daemon.since) if daemon.since else ""


def _said(daemon: DaemonReport) -> str:
    if daemon.reason:
        return f"{daemon.reason}{f' ({daemon.hint})' if daemon.hint else ''}"
    again = f", started again {daemon.restarts} times" if daemon.restarts > 1 else ""
    return f"{daemon.status}{again or (', started again once' if daemon.restarts else '')}"
