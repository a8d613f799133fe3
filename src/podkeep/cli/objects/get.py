"""``podkeep get``: objects of the API, as the table that it makes of them, or as they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from podkeep.base.errors import InvalidArgument, PodkeepError, Unavailable
from podkeep.cli.core import output as forms
from podkeep.cli.core.bundles import bundle
from podkeep.cli.core.following import ANEW, Pace, Shown, back
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.objects import completion, kinds, tables
from podkeep.cli.objects.reach import Api, Reach, api_options, run

if TYPE_CHECKING:
    from podkeep.cli.objects.kinds import Meant
    from podkeep.client.resources import Resource

# As kubectl (--chunk-size).
_PAGE = 500


def _query(selector: str, field_selector: str) -> dict[str, str]:
    return {"labelSelector": selector, "fieldSelector": field_selector}


@click.command(name="get")
@click.argument("what", nargs=-1, metavar="TYPE[,TYPE...] [NAME...] | TYPE/NAME...", shell_complete=completion.objects)
@api_options(everywhere=True)
@click.option("-l", "--selector", default="", metavar="LABELS", help="Only with these labels, such as app=web.")
@click.option("--field-selector", default="", metavar="FIELDS", help="Only with these fields.")
@click.option("-w", "--watch", is_flag=True, help="Go on with what changes.")
@click.option("--show-managed-fields", is_flag=True, help="With managedFields, in YAML and JSON.")
@forms.form_option("table", "wide", "json", "yaml", "name")
@bundle("query", _query, "selector", "field_selector")
@pass_invocation
def command(
    invocation: Invocation,
    reach: Reach,
    what: tuple[str, ...],
    query: dict[str, str],
    watch: bool,
    show_managed_fields: bool,
    output: str,
) -> None:
    """Show objects of the Kubernetes API.

    \b
    Examples:
      podkeep get pods
      podkeep get pod web -o yaml
      podkeep get pods,services -A -o wide
      podkeep get pods -l app=web -w
    """
    check_watch(output, watch=watch)

    async def show(api: Api) -> None:
        meant = kinds.meant(await api.kinds(), what)
        _check(meant, any(query.values()), api.everywhere, watch)
        if output in ("json", "yaml"):
            await _as_they_are(api, meant, query, output, managed=show_managed_fields)
            return
        form = _Form(api, query, wide=output == "wide", names=output == "name", typed=len(meant) > 1)
        shown = [await form.show(item, watch=watch) for item in meant]
        forms.raise_last(form.failures)
        if not any(shown) and not watch and output != "name":
            where = "" if api.everywhere or not meant[0].resource.namespaced else f" in {api.namespace} namespace"
            forms.echo_line(f"No resources found{where}.", err=True)

    run(invocation, reach, show)


def check_watch(form: str, *, watch: bool) -> None:
    """Refuse to watch what is printed as a whole.

    :raises InvalidArgument: with JSON or YAML.
    """
    if watch and form in ("json", "yaml"):
        raise InvalidArgument(f"-w and -o {form} do not go together", hint="leave one of them out")


def _check(meant: list[Meant], selected: bool, everywhere: bool, watch: bool) -> None:
    if watch and (len(meant) > 1 or any(len(item.names) > 1 for item in meant)):
        raise InvalidArgument("-w follows one kind of objects, or one object", hint="name one, or use -l")
    if any(item.names for item in meant):
        if selected:
            raise InvalidArgument("a name and a selector do not go together", hint="leave one of them out")
        if everywhere:
            raise InvalidArgument("a resource cannot be retrieved by name across all namespaces", hint="use -n")


async def _as_they_are(api: Api, meant: list[Meant], query: dict[str, str], form: str, *, managed: bool) -> None:
    from podkeep.client.errors import ApiError

    found: list[dict[str, Any]] = []
    failures: list[PodkeepError] = []
    single = len(meant) == 1 and len(meant[0].names) == 1
    for item in meant:
        namespace = api.place_of(item)
        for name in item.names:
            try:
                found.append(await api.client.get(item.resource, name, namespace))
            except ApiError as error:
                failures.append(error)
        if not item.names:
            listed = await api.client.list(
                item.resource, namespace, labels=query["labelSelector"], fields=query["fieldSelector"], limit=_PAGE
            )
            # Of the items of a list the API says neither: it is said once, for the list.
            known = {"apiVersion": item.resource.api_version, "kind": item.resource.kind}
            found += [{**known, **entry} for entry in listed.get("items") or ()]
    if not managed:
        for entry in found:
            entry.get("metadata", {}).pop("managedFields", None)
    if found or not failures:
        echo_object(found[0] if single else {"apiVersion": "v1", "kind": "List", "items": found}, form)
    forms.raise_last(failures)


def echo_object(value: dict[str, Any], form: str) -> None:
    if form == "json":
        forms.echo_json(value)
        return
    from podkeep.base.text.yaml_text import to_yaml

    click.echo(to_yaml(value), nl=False)


class _Form:
    """Shows tables of objects, or only their names.

    :param typed: with the kind in front of each name.
    """

    def __init__(self, api: Api, query: dict[str, str], *, wide: bool, names: bool, typed: bool) -> None:
        self._api, self._query = api, query
        self._wide, self._names, self._typed = wide, names, typed
        self._count = 0
        self.failures: list[PodkeepError] = []
        """Of objects that were named: the others are shown nevertheless."""

    async def show(self, meant: Meant, *, watch: bool) -> bool:
        """Show what is there, and then what changes; return whether there was anything."""
        from podkeep.client.errors import ApiError

        resource = meant.resource
        namespace = self._api.place_of(meant)
        prefix = f"{typed_name(resource)}/" if self._typed or self._names else ""
        spaced = self._api.everywhere and resource.namespaced and not self._names
        printer = tables.Printer(wide=self._wide, namespaces=spaced, prefix=prefix)
        table: dict[str, Any] = {}
        for name in meant.names or ("",):
            query = {} if name else {**self._query, "limit": str(_PAGE)}
            try:
                found = await self._table(resource, namespace, name, query)
            except ApiError as error:
                if not name:
                    raise
                self.failures.append(error)
                continue
            # Of several objects one table: the widths of its columns are those of all of them.
            table = {**found, "rows": [*(table.get("rows") or ()), *(found.get("rows") or ())]}
        any_ = self._print(printer, table)
        if watch and not self.failures:
            query = {**self._query, "watch": "true", "allowWatchBookmarks": "true"}
            version = table.get("metadata", {}).get("resourceVersion", "")
            if meant.names:
                # An object may have been written so long ago that the API does not know what followed.
                query["fieldSelector"], version = f"metadata.name={meant.names[0]}", ANEW
            shown = Shown()
            _unseen(table, shown)
            columns = table.get("columnDefinitions")
            await self._follow(printer, resource.path(namespace, query=query), version, shown, columns)
        return any_

    async def _table(self, resource: Resource, namespace: str, name: str, query: dict[str, str]) -> dict[str, Any]:
        path = resource.path(namespace, name, query=query)
        table: dict[str, Any] = (await self._api.client.request("GET", path, accept=tables.MEDIA_TYPE)).value
        rest: str = table.get("metadata", {}).get("continue", "")
        while rest:
            path = resource.path(namespace, query={**query, "continue": rest})
            page = (await self._api.client.request("GET", path, accept=tables.MEDIA_TYPE)).value
            table["rows"] += page.get("rows") or ()
            rest = page.get("metadata", {}).get("continue", "")
        return table

    def _print(self, printer: tables.Printer, table: dict[str, Any]) -> bool:
        rows = table.get("rows") or ()
        if self._names:
            # Without the printer there is no header.
            table = {**table, "columnDefinitions": (table.get("columnDefinitions") or ())[:1]}
            lines = printer.lines(table)[0 if self._count else 1 :] if rows else []
        elif rows:
            if self._count and self._typed and not getattr(printer, "_columns", ()):
                click.echo()
            lines = printer.lines(table)
        else:
            lines = []
        for line in lines:
            forms.echo_line(line)
        self._count += bool(rows)
        return bool(rows)

    async def _follow(self, printer: tables.Printer, path: str, version: str, shown: Shown, columns: Any) -> None:
        """Show what changes after a version, until that is broken off.

        :param columns: definitions of events without their own: the API sends them once a watch, maybe in a bookmark.
        """
        from podkeep.client.errors import ApiError

        pace = Pace()
        while True:
            await pace.begin()
            try:
                async with aclosing(self._events(f"{path}&resourceVersion={version}")) as events:
                    async for kind, table in events:
                        version = table["metadata"]["resourceVersion"]
                        if kind == "BOOKMARK":
                            continue
                        table["columnDefinitions"] = table.get("columnDefinitions") or columns
                        self._print(printer, _unseen(table, shown))
                        if kind == "DELETED":
                            for row in table["rows"]:
                                shown.forget(row["object"]["metadata"])
            except ApiError as error:
                if not error.gone:
                    raise
                version = ANEW
            except Unavailable as error:
                await back(self._api.client, error)

    async def _events(self, path: str) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Yield the type and the Table of each event of a watch."""
        import msgspec

        rest = b""
        async with aclosing(self._api.client.stream(path, accept=tables.MEDIA_TYPE)) as pieces:
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(None, lines):
                    event = msgspec.json.decode(line)
                    if event.get("type") == "ERROR":
                        from podkeep.client.errors import status_error

                        raise status_error(event.get("object") or {})
                    yield event["type"], event["object"]
                await asyncio.sleep(0)


def _unseen(table: dict[str, Any], shown: Shown) -> dict[str, Any]:
    """Return a Table with those rows whose objects were not shown as they are now."""
    return {**table, "rows": [row for row in table.get("rows") or () if shown.is_new(row["object"]["metadata"])]}


def typed_name(resource: Resource) -> str:
    """Return what stands before an object's name: ``pod``, ``deployment.apps``."""
    singular = resource.kind.lower()
    return f"{singular}.{resource.group}" if resource.group else singular
