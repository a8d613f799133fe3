"""``podkeep wait``: return when a condition of objects holds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import click

from podkeep.base.errors import DeadlineExceeded, InvalidArgument, NotFound, PodkeepError
from podkeep.cli.core import following
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.objects import completion, kinds, paths
from podkeep.cli.objects.get import typed_name
from podkeep.cli.objects.reach import Api, Reach, api_options, run

Holds = Callable[[dict[str, Any] | None], bool]
"""Whether what was waited for holds of an object; None: there is none."""

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[hms]))+")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def condition(text: str) -> Holds:
    """Return what ``--for`` means.

    :raises InvalidArgument: if it is nothing that can be waited for.
    """
    kind, _, rest = text.partition("=")
    if text == "delete":
        return lambda value: value is None
    if text == "create":
        return lambda value: value is not None
    if kind == "condition" and rest:
        name, _, wanted = rest.partition("=")
        return lambda value: _has_condition(value, name, wanted or "True")
    if kind == "jsonpath" and rest:
        path, shown = _path_and_value(rest)
        steps = paths.parse(path)
        return lambda value: value is not None and _has_value(value, steps, shown)
    raise InvalidArgument(
        f"--for={text}: not a condition", hint="use condition=NAME, jsonpath='{PATH}'=VALUE, delete or create"
    )


def _path_and_value(text: str) -> tuple[str, str | None]:
    """Split ``{PATH}=VALUE``; a filter has ``==`` in it. Without a value any will do."""
    text = text.strip("'\"")
    end = text.rfind("}") + 1 or (text.find("=") if "=" in text else len(text))
    path, rest = text[:end], text[end:].strip("'\"")
    if not rest:
        return path, None
    if not rest.startswith("="):
        raise InvalidArgument(
            f"jsonpath: {rest!r} is not =VALUE", hint="write it as jsonpath='{.status.phase}'=Running"
        )
    return path, rest[1:].strip("'\"")


def _has_condition(value: dict[str, Any] | None, name: str, wanted: str) -> bool:
    """Return whether a condition is there, of the object as it is now (kubectl: not one that was observed before)."""
    if value is None:
        return False
    generation = value.get("metadata", {}).get("generation", 0)
    for item in value.get("status", {}).get("conditions") or ():
        if item.get("type", "").lower() == name.lower():
            observed = item.get("observedGeneration") or value.get("status", {}).get("observedGeneration")
            is_current = not observed or bool(observed >= generation)
            return is_current and str(item.get("status", "")).lower() == wanted.lower()
    return False


def _has_value(value: dict[str, Any], steps: list[paths.Step], wanted: str | None) -> bool:
    found = list(paths.texts(value, steps))
    return bool(found) if wanted is None else found == [wanted]


def seconds(text: str) -> float | None:
    """Return a timeout: ``30s``, ``1m30s``, ``5`` (seconds); negative: a week, as kubectl.

    :raises InvalidArgument: if it is not one.
    """
    if text.startswith("-"):
        return 7 * 24 * 3600.0
    if text.isdecimal() and text.isascii():
        return float(text)
    if not _DURATION.fullmatch(text):
        raise InvalidArgument(f"--timeout={text}: not a duration", hint="write it like 30s or 2m")
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|[hms])", text))


@click.command(name="wait")
@click.argument(
    "what", nargs=-1, required=True, metavar="TYPE [NAME...] | TYPE/NAME...", shell_complete=completion.objects
)
@click.option(
    "--for", "for_", required=True, metavar="WHAT", help="condition=NAME, jsonpath={PATH}=VALUE, delete, create."
)
@api_options(everywhere=True)
@click.option("-l", "--selector", default="", metavar="LABELS", help="Of those with these labels.")
@click.option("--all", "all_", is_flag=True, help="Of all of TYPE in the namespace.")
@click.option("--timeout", default="30s", show_default=True, metavar="TIME", help="How long to wait; 0: look once.")
@pass_invocation
def command(
    invocation: Invocation,
    reach: Reach,
    what: tuple[str, ...],
    for_: str,
    selector: str,
    all_: bool,
    timeout: str,
) -> None:
    """Wait until something holds of objects.

    \b
    Examples:
      podkeep wait pod/web --for=condition=Ready
      podkeep wait pod/web --for=jsonpath={.status.phase}=Succeeded --timeout 2m
      podkeep wait pod web --for=delete
    """
    holds = condition(for_)
    limit = seconds(timeout)

    async def each(api: Api) -> list[PodkeepError]:
        tasks = []
        for meant in kinds.meant(await api.kinds(), what):
            resource = meant.resource
            namespace = api.place_of(meant)
            places = [(name, namespace) for name in meant.names]
            if not meant.names:
                if not selector and not all_:
                    raise InvalidArgument("no name was specified", hint="name objects, or use -l or --all")
                listed = await api.client.list(resource, namespace, labels=selector)
                places = [(item["metadata"]["name"], item["metadata"].get("namespace", "")) for item in listed["items"]]
            tasks += [_wait(api, resource, *where, for_, holds, limit) for where in places]
        if not tasks:
            if for_ == "delete":
                return []
            raise NotFound("no matching resources found")
        return [error for error in await asyncio.gather(*tasks) if error is not None]

    forms.raise_last(run(invocation, reach, each))


async def _wait(
    api: Api, resource: Any, name: str, namespace: str, text: str, holds: Holds, limit: float | None
) -> PodkeepError | None:
    shown = f"{typed_name(resource)}/{name}"
    missing_is_error = text not in ("delete", "create")
    try:
        async with (
            asyncio.timeout(limit or None),
            aclosing(following.states(api.client, resource, name, namespace)) as states,
        ):
            async for state in states:
                if holds(state):
                    forms.echo_line(f"{shown} {'deleted' if text == 'delete' else 'condition met'}")
                    return None
                if state is None and missing_is_error:
                    return NotFound(f'{resource} "{name}" not found')
                if limit == 0:
                    break
    except TimeoutError:
        pass
    except PodkeepError as error:
        return error
    return DeadlineExceeded(
        f"timed out waiting for the condition on {shown}", hint=f"`podkeep describe {shown}` says how it is"
    )
