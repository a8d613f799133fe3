"""``podkeep events``: what has happened to objects, the newest last."""

from __future__ import annotations

import time
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from podkeep.base.errors import InvalidArgument, Unavailable
from podkeep.cli.core import output as forms
from podkeep.cli.core.following import ANEW, Pace, Shown, back
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.objects import kinds
from podkeep.cli.objects.get import check_watch, echo_object
from podkeep.cli.objects.reach import Api, Reach, api_options, run
from podkeep.cli.pods import verdicts

if TYPE_CHECKING:
    from podkeep.client.client import Client

_TYPES = frozenset({"normal", "warning"})
COLUMNS: forms.Columns[dict[str, Any]] = {
    "LAST SEEN": lambda event: seen(event, time.time()),
    "TYPE": lambda event: str(event.get("type", "")),
    "REASON": lambda event: str(event.get("reason", "")),
    "OBJECT": lambda event: object_of(event),
    "MESSAGE": lambda event: " ".join(str(event.get("message", "")).split()),
}


@click.command(name="events")
@click.argument("object_", required=False, metavar="[TYPE/NAME]")
@api_options(everywhere=True)
@click.option("--types", default="", metavar="TYPES", help="Only these: Normal, Warning.")
@click.option("-w", "--watch", is_flag=True, help="Go on with what happens.")
@forms.form_option("table", "json", "yaml")
@pass_invocation
def command(invocation: Invocation, reach: Reach, object_: str | None, types: str, watch: bool, output: str) -> None:
    """Show events, the newest last: of one object, or of a namespace.

    \b
    Examples:
      podkeep events
      podkeep events pod/web -w
      podkeep events -A --types Warning
    """
    check_watch(output, watch=watch)
    wanted = {word.strip().lower() for word in types.split(",") if word.strip()}
    if wanted - _TYPES:
        raise InvalidArgument(f"--types={types}: valid types are Normal and Warning")

    async def show(api: Api) -> None:
        from podkeep.client.resources import EVENTS

        fields, namespace = "", api.searched
        if object_:
            [meant] = kinds.meant(await api.kinds(), [object_ if "/" in object_ else f"pod/{object_}"])
            fields = f"involvedObject.kind={meant.resource.kind},involvedObject.name={meant.names[0]}"
            namespace = api.searched if meant.resource.namespaced else ""
        listed = await api.client.list(EVENTS, namespace, fields=fields)
        found = sorted((item for item in listed.get("items") or () if _is(item, wanted)), key=verdicts.event_time)
        if output != "table":
            echo_object({"apiVersion": "v1", "kind": "List", "items": found}, output)
            return
        for line in table(found, namespaces=api.everywhere) if found else ():
            forms.echo_line(line)
        if not found and not watch:
            forms.echo_line(f"No events found{'' if api.everywhere else f' in {api.namespace} namespace'}.", err=True)
        if watch:
            await _follow(api.client, namespace, fields, wanted, listed)

    run(invocation, reach, show)


async def _follow(client: Client, namespace: str, fields: str, wanted: set[str], listed: dict[str, Any]) -> None:
    """Show events that come after those of a list, which were shown, until that is broken off."""
    from podkeep.client.errors import ApiError
    from podkeep.client.resources import EVENTS

    shown = Shown()
    for event in listed.get("items") or ():
        shown.is_new(event["metadata"])
    version = listed["metadata"]["resourceVersion"]
    pace = Pace()
    while True:
        await pace.begin()
        try:
            async with aclosing(client.watch(EVENTS, namespace, fields=fields, version=version)) as changes:
                async for change in changes:
                    metadata = change.object["metadata"]
                    version = metadata["resourceVersion"]
                    if change.type == "DELETED":
                        shown.forget(metadata)
                    elif change.type != "BOOKMARK" and _is(change.object, wanted) and shown.is_new(metadata):
                        forms.echo_line("   ".join(forms.cells(COLUMNS, change.object)))
        except ApiError as error:
            if not error.gone:
                raise
            version = ANEW
        except Unavailable as error:
            await back(client, error)


def _is(event: dict[str, Any], types: set[str]) -> bool:
    return not types or str(event.get("type", "")).lower() in types


def table(events: list[dict[str, Any]], *, namespaces: bool = False) -> list[str]:
    columns = dict(COLUMNS)
    if namespaces:
        columns = {"NAMESPACE": lambda event: str(event["metadata"].get("namespace", "")), **columns}
    return forms.table(columns, events)


def object_of(event: dict[str, Any]) -> str:
    """Return what an event is about, as ``pod/web``."""
    about = event.get("involvedObject") or event.get("regarding") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def seen(event: dict[str, Any], now: float) -> str:
    """Return how long ago an event was seen last, and how often since when, if more than once."""
    last = ago(verdicts.event_time(event), now)
    count = (event.get("series") or {}).get("count") or event.get("count") or 1
    if count <= 1:
        return last
    first = event.get("firstTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp", "")
    return f"{last} (x{count} over {ago(str(first), now)})"


def ago(rfc3339: str, now: float) -> str:
    """Return how long ago a time of an object was; ``<unknown>`` for none."""
    try:
        moment = datetime.fromisoformat(rfc3339.replace("Z", "+00:00"))
    except ValueError:
        return "<unknown>"
    return forms.age(now - (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
