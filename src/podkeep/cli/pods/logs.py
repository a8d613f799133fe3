"""``podkeep logs``: what a container wrote, read from its log file on this machine."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.cli.core import completion, connection
from podkeep.cli.core.bundles import bundle
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.core.output import echo_line
from podkeep.cli.pods.targets import (
    Target,
    choose_pod,
    container_status,
    find_target,
    namespace_option,
    require_container,
    told,
)
from podkeep.cri.v1 import api_pb2

if TYPE_CHECKING:
    from podkeep.agent.logs.reader import LogReader, Record
    from podkeep.apiserver.meta.selectors import LabelSelector
    from podkeep.base.config import Config
    from podkeep.base.waiting import Containers
    from podkeep.cli.pods.crilog import Printer
    from podkeep.cri.client import CriClient

_POLL_LOG = 0.1
_POLLS_PER_STATUS = 5
_STATUS_S = 2.0
"""How long a log that is followed waits for the runtime to say whether its container runs."""


class _Wanted(FrozenStruct, kw_only=True):
    """Which records are shown, and how. ``since``: nanoseconds since 1970, 0: from the beginning."""

    follow: bool
    previous: bool
    tail: int | None
    timestamps: bool
    since: int


def _wanted(*, since: str, since_time: str, **same: Any) -> _Wanted:
    if since and since_time:
        raise click.UsageError("--since and --since-time do not go together")
    return _Wanted(since=moment(since=since, since_time=since_time), **same)


def moment(*, since: str, since_time: str) -> int:
    """Return the nanoseconds since 1970 that two options mean, one of which is empty; 0: from the beginning.

    :raises InvalidArgument: if they mean none.
    """
    if since:
        # No record is older than 1970; what has 400 digits is infinite, of which there is no integer.
        return int(max(time.time() - duration(since), 0) * 1e9)
    return _moment(since_time) if since_time else 0


def duration(text: str) -> float:
    """Return the seconds in ``90s``, ``5m`` or ``1h30m``.

    :raises InvalidArgument: if it is no such time.
    """
    if not re.fullmatch(r"(?:\d+(?:\.\d+)?(?:ms|[dhms]))+", text, flags=re.ASCII):
        raise InvalidArgument(f"--since={text}: not a duration", hint="write it like 90s, 5m or 1h30m")
    units = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|[dhms])", text))


def _moment(text: str) -> int:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return int((found if found.tzinfo else found.astimezone()).timestamp() * 1e9)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"--since-time={text}: not a time", hint="write it like 2026-01-31T12:00:00Z") from error


class _Chosen(FrozenStruct, kw_only=True):
    """Whose logs: of a pod, or of all that a selector means."""

    pod: str
    container: str | None
    namespace: str
    selector: str
    all_containers: bool

    def check(self) -> None:
        if bool(self.pod) == bool(self.selector):
            raise click.UsageError("name a pod, or give -l")
        if self.container and self.all_containers:
            raise click.UsageError("-c does not go with --all-containers")


def _chosen(*, pod: str | None, **same: Any) -> _Chosen:
    name, _, container = (pod or "").partition("/")
    same["container"] = same["container"] or container or None
    return _Chosen(pod=name, **same)


class _Source(FrozenStruct, kw_only=True):
    """A log. ``identity``: of its container."""

    pod: str
    container: str
    identity: str
    path: Path


@click.command(name="logs")
@click.argument("pod", required=False, metavar="[POD[/CONTAINER]]", shell_complete=completion.all_targets)
@click.option("-c", "--container", metavar="NAME", help="Container.", shell_complete=completion.containers)
@namespace_option
@click.option("-l", "--selector", default="", metavar="LABELS", help="Of all pods with these labels, such as app=web.")
@click.option("--all-containers", is_flag=True, help="Of all containers of the pods.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the container ends.")
@click.option("-p", "--previous", is_flag=True, help="The attempt before the newest one.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of what is there.")
@click.option("--since", default="", metavar="TIME", help="Only what is newer, such as 5m.")
@click.option("--since-time", default="", metavar="MOMENT", help="Only what is newer, such as 2026-01-31T12:00:00Z.")
@click.option("--timestamps", is_flag=True, help="Put the time of each line in front of it.")
@bundle("chosen", _chosen, "pod", "container", "namespace", "selector", "all_containers")
@bundle("wanted", _wanted, "follow", "previous", "tail", "since", "since_time", "timestamps")
@pass_invocation
def command(invocation: Invocation, chosen: _Chosen, wanted: _Wanted) -> None:
    """Print the logs of containers; of several with their names in front of each line.

    What the container wrote to its standard error goes to standard error. Of a log that was rotated this is the
    newest file, as with kubectl; the older ones are beside it. With -f it goes on in the next.

    \b
    Examples:
      podkeep logs web
      podkeep logs web/main -f --since 5m
      podkeep logs -l app=web --all-containers --tail 20
    """
    chosen.check()

    async def show(client: CriClient) -> None:
        if not chosen.selector and not chosen.all_containers:
            target = Target(pod=chosen.pod, namespace=chosen.namespace, container=chosen.container)
            sources = [await _locate(client, invocation.config, target)]
        else:
            sources = await _several(client, invocation.config, chosen)
        prefixed = len(sources) > 1
        ends = _Ends(client)

        async def each(source: _Source) -> None:
            try:
                await _show(ends, source, wanted, prefixed=prefixed)
            except PodkeepError as error:
                if not prefixed:
                    raise
                # The others are shown all the same.
                echo_line(f"podkeep: {source.pod}/{source.container}: {error}", err=True)
                failed.append(source)

        if wanted.follow and not wanted.previous:
            await asyncio.gather(*map(each, sources))
            return
        for source in sources:
            await each(source)

    failed: list[_Source] = []
    connection.run(invocation, show)
    if failed:
        click.get_current_context().exit(1)


async def _several(client: CriClient, config: Config, chosen: _Chosen) -> list[_Source]:
    """Return the logs of the containers that are meant: of each the newest attempt; those without a log are left out.

    :raises NotFound: if there is none.
    """
    selector = parse_selector(chosen.selector)
    sandboxes = (await client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest())).items
    meant = [
        item
        for item in sandboxes
        if item.metadata.namespace == chosen.namespace
        and (item.metadata.name == chosen.pod or not chosen.pod)
        and selector.matches(item.labels)
    ]
    newest_of = {name: choose_pod(meant, name, chosen.namespace) for name in {item.metadata.name for item in meant}}
    pods = {
        # Not those of a pod that had the name before, and is not removed yet.
        item.id: item.metadata.name
        for item in meant
        if item.metadata.uid == newest_of[item.metadata.name].metadata.uid
    }
    listed = (await client.runtime.ListContainers(api_pb2.ListContainersRequest())).containers
    newest: dict[tuple[str, str], api_pb2.Container] = {}
    for item in sorted(listed, key=lambda item: (item.metadata.attempt, item.created_at)):
        if item.pod_sandbox_id in pods and chosen.container in (None, item.metadata.name):
            newest[pods[item.pod_sandbox_id], item.metadata.name] = item
    first = {
        pod: first_container({name for of, name in newest if of == pod}, told(config, sandbox))
        for pod, sandbox in newest_of.items()
    }
    found = []
    for (pod, name), item in sorted(newest.items()):
        path = (await container_status(client, item.id)).log_path
        if path and (chosen.all_containers or chosen.container or name == first[pod]):
            found.append(_Source(pod=pod, container=name, identity=item.id, path=Path(path)))
    if not found:
        if chosen.pod:
            await require_container(client, config, chosen.pod, chosen.namespace)  # says why there is none
        what = f"pod {chosen.pod}" if chosen.pod else f"pods with {chosen.selector}"
        raise NotFound(
            f"no containers of {what} in namespace {chosen.namespace}", hint="`podkeep ps -a` lists all pods"
        )
    return found


def first_container(names: Collection[str], told: Containers) -> str:
    """Return which container of a pod is meant by its name alone: as with kubectl the first of its manifest, if known.

    :param names: of those that have run.
    """
    return next((name for name in told.main if name in names), min(names, default=""))


def parse_selector(selector: str) -> LabelSelector:
    """Return what a selector means, which is what it means to every other verb; nothing: all.

    :raises InvalidArgument: if it is none.
    """
    from podkeep.apiserver.meta.selectors import parse_labels
    from podkeep.apiserver.meta.status import StatusError

    try:
        return parse_labels(selector)
    except StatusError as error:
        hint = "write it like app=web,tier=front or app in (web, db)"
        raise InvalidArgument(f"-l {selector}: {error.message}", hint=hint) from error


class _Ends:
    """Says of containers whose logs are followed whether they have ended.

    A runtime that is away, or does not answer in time, says nothing of them: they run on and write to their logs, so
    these are followed on. That it is away is told once.
    """

    def __init__(self, client: CriClient) -> None:
        self._client = client
        self._is_away = False

    async def has_ended(self, identity: str) -> bool:
        try:
            status = await container_status(self._client, identity, timeout=_STATUS_S)
        except NotFound:
            return True
        except PodkeepError as error:
            if not self._is_away:
                echo_line(f"podkeep: {error.message}; the log is followed on", err=True)
            self._is_away = True
            return False
        self._is_away = False
        return status.state in {api_pb2.CONTAINER_EXITED, api_pb2.CONTAINER_UNKNOWN}


async def _show(ends: _Ends, source: _Source, wanted: _Wanted, *, prefixed: bool) -> None:
    from podkeep.agent.logs.reader import LogReader
    from podkeep.cli.pods.crilog import Printer

    prefix = f"[{source.pod}/{source.container}] ".encode() if prefixed else b""
    printer = Printer(sys.stdout.buffer, sys.stderr.buffer, timestamps=wanted.timestamps, prefix=prefix)
    path = source.path
    if wanted.previous:
        path = previous_attempt(path)
    elif wanted.follow:
        await _wait_for_log(ends, source.identity, path)
    reader = LogReader(path, tail=wanted.tail)
    try:
        follow = wanted.follow and not wanted.previous
        await _print(ends, source.identity, reader, _Since(printer, wanted.since), follow=follow)
    finally:
        reader.close()


class _Since:
    """Passes on the records from a moment on; times of a log only grow, so the first one decides for all after it."""

    def __init__(self, printer: Printer, since: int) -> None:
        self._printer, self._since = printer, since
        self.flush = printer.flush

    def write(self, record: Record) -> None:
        if self._since:
            if _nanoseconds(record.time) < self._since:
                return
            self._since = 0
        self._printer.write(record)


def _nanoseconds(moment: bytes) -> int:
    try:
        return int(datetime.fromisoformat(moment.decode().replace("Z", "+00:00")).timestamp() * 1e9)
    except ValueError:
        return 0


async def _locate(client: CriClient, config: Config, target: Target) -> _Source:
    found = await find_target(client, config, target)
    status = await container_status(client, found.id)
    if not status.log_path:
        raise FailedPrecondition(f"container {found.metadata.name} of pod {target.pod} was made without a log")
    return _Source(pod=target.pod, container=found.metadata.name, identity=found.id, path=Path(status.log_path))


def previous_attempt(path: Path) -> Path:
    """Return the log of the attempt before the one that logs to ``path``; the kubelet names logs ``<attempt>.log``.

    :raises NotFound: if ``path`` is the first attempt's, or not named so.
    """
    attempt = int(path.stem) if path.stem.isascii() and path.stem.isdigit() else 0
    if attempt == 0:
        raise NotFound(f"there is no earlier attempt than the one that logs to {path}")
    return path.with_name(f"{attempt - 1}.log")


async def _wait_for_log(ends: _Ends, identity: str, path: Path) -> None:
    """Return when there is a log, or when there will be none."""
    from podkeep.agent.logs import files

    while not (files.exists(path) or await ends.has_ended(identity)):  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(_POLL_LOG)


async def _print(ends: _Ends, identity: str, reader: LogReader, printer: _Since, *, follow: bool) -> None:
    if not follow:
        # What is there now: a container may write faster than anybody reads.
        if there := reader.to_read():
            for record in reader.read(there):
                printer.write(record)
            printer.flush()
        _tell_left_out(reader)
        return
    polls, ended = 0, False
    while True:
        # Asked before reading: once the container has ended, reading on to the end gets all of its log.
        ended = ended or (polls % _POLLS_PER_STATUS == 0 and await ends.has_ended(identity))
        for record in reader.read():
            printer.write(record)
        printer.flush()
        _tell_left_out(reader)
        if ended and not reader.behind:
            return
        polls += 1
        # An interruption gets its turn in either case.
        await asyncio.sleep(0 if reader.behind else _POLL_LOG)


def _tell_left_out(reader: LogReader) -> None:
    for text in reader.left_out():
        echo_line(f"podkeep: {text}", err=True)
