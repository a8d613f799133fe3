"""``podkeep delete``: objects of the API, by name, label or file; it returns when they are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from podkeep.base.errors import DeadlineExceeded, InvalidArgument, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.cli.core import following
from podkeep.cli.core import output as forms
from podkeep.cli.core.bundles import bundle
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.objects import completion, kinds, manifests
from podkeep.cli.objects.apply import place
from podkeep.cli.objects.get import typed_name
from podkeep.cli.objects.reach import Api, Reach, api_options, dry_run_option, run
from podkeep.cli.objects.wait import seconds

if TYPE_CHECKING:
    from podkeep.client.resources import Resource

_AT_ONCE = 16
_TELL_S = 2.0
"""After which it is said what an object still has to wait for."""


class Options(FrozenStruct, kw_only=True):
    """How to delete. ``grace`` in seconds, None: what the object says; ``timeout`` likewise, None: no end."""

    grace: int | None = None
    wait: bool = True
    timeout: float | None = None
    ignore_not_found: bool = False
    dry_run: bool = False
    propagation: Literal["", "Background", "Foreground", "Orphan"] = "Background"


class _Target(FrozenStruct, kw_only=True):
    resource: Resource
    name: str
    namespace: str
    is_listed: bool = False
    """Whether nobody named it: then it is no error that somebody else was faster."""

    def __str__(self) -> str:
        return f"{typed_name(self.resource)}/{self.name}"


class _Chosen(FrozenStruct, kw_only=True):
    """What is to be deleted, as the command line says it."""

    what: tuple[str, ...]
    files: tuple[Path, ...]
    selector: str
    all_: bool


def _options(
    *,
    grace_period: int | None,
    now: bool,
    force: bool,
    wait: bool,
    no_wait: bool,
    timeout: str,
    cascade: str,
    **same: Any,
) -> Options:
    """Return what the options of the verb mean.

    :raises UsageError: if two of them contradict each other, in kubectl's words.
    :raises InvalidArgument: if the timeout is none.
    """
    if now and grace_period is not None:
        raise click.UsageError("--now and --grace-period cannot be specified together")
    if force and (now or grace_period):
        raise click.UsageError("--force and --grace-period greater than 0 cannot be specified together")
    propagations: dict[str, Literal["Background", "Foreground", "Orphan"]] = {
        "background": "Background",
        "foreground": "Foreground",
        "orphan": "Orphan",
    }
    # 0 without --force is 1, as with kubectl: an object without its grace period is gone while its pod may run on.
    grace = 0 if force else 1 if now or grace_period == 0 else grace_period
    limit = seconds(timeout) or None
    return Options(grace=grace, wait=wait and not no_wait, timeout=limit, propagation=propagations[cascade], **same)


@click.command(name="delete")
@click.argument("what", nargs=-1, metavar="[TYPE [NAME...] | TYPE/NAME...]", shell_complete=completion.objects)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="The objects in a file or directory; may be given again.",
)
@api_options(everywhere=True)
@click.option("-l", "--selector", default="", metavar="LABELS", help="Those with these labels.")
@click.option("--all", "all_", is_flag=True, help="All of TYPE in the namespace.")
@click.option(
    "--grace-period",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    help="Instead of the object's own; 0 without --force is 1.",
)
@click.option("--now", is_flag=True, help="As --grace-period 1.")
@click.option("--force", is_flag=True, help="At once, without waiting for what the object stands for: pods may run on.")
@click.option("--wait", type=bool, default=True, metavar="BOOL", help="As kubectl's: --wait=false is --no-wait.")
@click.option("--no-wait", is_flag=True, help="Do not wait until they are gone.")
@click.option(
    "--timeout", default="0", metavar="TIME", help="How long to wait, such as 30s or 2m; 0, the default: no end."
)
@click.option("--cascade", type=click.Choice(["background", "foreground", "orphan"]), default="background")
@dry_run_option
@click.option("--ignore-not-found", is_flag=True, help="That there is none is no error.")
@forms.form_option("table", "name")
@bundle("chosen", _Chosen, "what", "files", "selector", "all_")
@bundle(
    "options",
    _options,
    *("grace_period", "now", "force", "wait", "no_wait", "timeout", "cascade", "ignore_not_found", "dry_run"),
)
@pass_invocation
def command(invocation: Invocation, reach: Reach, chosen: _Chosen, options: Options, output: str) -> None:
    """Delete objects of the Kubernetes API, and wait until they are gone.

    \b
    Examples:
      podkeep delete pod web
      podkeep delete -f web.yaml
      podkeep delete pods -l app=web --no-wait
    """
    if bool(chosen.what) == bool(chosen.files):
        raise click.UsageError("name TYPE and NAME, or -f FILE")

    async def each(api: Api) -> list[PodkeepError]:
        targets = await (_of_files(api, chosen.files) if chosen.files else _of_words(api, chosen))
        if not targets:
            forms.echo_line("No resources found", err=True)
        said = " (server dry run)" if options.dry_run else ""
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def one(target: _Target) -> PodkeepError | None:
            async with at_once:
                try:
                    deleted = await _delete(api, target, options)
                except PodkeepError as error:
                    return error
            if deleted:
                forms.echo_line(str(target) if output == "name" else f"{target} deleted{said}")
            return None

        return [error for error in await asyncio.gather(*map(one, targets)) if error is not None]

    forms.raise_last(run(invocation, reach, each))


async def _of_files(api: Api, files: tuple[Path, ...]) -> list[_Target]:
    found = []
    for item in manifests.read(files):
        resource = kinds.of_object(await api.kinds(), item.api_version, item.kind)
        found.append(_Target(resource=resource, name=item.name, namespace=place(api, item, resource.namespaced)))
    return found


async def _of_words(api: Api, chosen: _Chosen) -> list[_Target]:
    found = []
    for meant in kinds.meant(await api.kinds(), chosen.what):
        namespace = api.place_of(meant)
        if meant.names:
            if chosen.selector or chosen.all_:
                raise InvalidArgument("a name does not go with --all or a selector", hint="leave one of them out")
            found += [_Target(resource=meant.resource, name=name, namespace=namespace) for name in meant.names]
            continue
        if not chosen.selector and not chosen.all_:
            raise InvalidArgument("resource(s) were provided, but no name was specified", hint="or use -l or --all")
        listed = await api.client.list(meant.resource, namespace, labels=chosen.selector)
        found += [
            _Target(
                resource=meant.resource,
                name=item["metadata"]["name"],
                namespace=item["metadata"].get("namespace", ""),
                is_listed=True,
            )
            for item in listed.get("items") or ()
        ]
    return found


async def _delete(api: Api, target: _Target, options: Options) -> bool:
    """Delete an object and wait until it is gone; return whether there was one."""
    from podkeep.client.errors import ApiError

    try:
        answer = await api.client.delete(
            target.resource,
            target.name,
            target.namespace,
            grace=options.grace,
            propagation=options.propagation,
            dry_run=options.dry_run,
        )
    except ApiError as error:
        if error.not_found and (options.ignore_not_found or target.is_listed):
            return False
        raise
    # The object if it is still there; else a Status that has the UID of what it was.
    uid = answer.get("metadata", {}).get("uid") or answer.get("details", {}).get("uid", "")
    if options.wait and uid and not options.dry_run:
        telling = asyncio.get_running_loop().call_later(_TELL_S, _tell_finalizers, target, answer)
        try:
            await wait_until_gone(api, target.resource, target.name, target.namespace, uid, options.timeout)
        finally:
            telling.cancel()
    return True


def _tell_finalizers(target: _Target, deleted: Mapping[str, Any]) -> None:
    """Say what has to be done before the object goes; what controllers do at once is not worth a word."""
    if finalizers := deleted.get("metadata", {}).get("finalizers"):
        forms.echo_line(f"{target} goes when this is done: {', '.join(finalizers)} (--no-wait does not wait)", err=True)


async def wait_until_gone(
    api: Api, resource: Resource, name: str, namespace: str, uid: str, timeout: float | None
) -> None:
    """Return when there is no object with that UID.

    :raises DeadlineExceeded: if there still is after ``timeout`` seconds.
    """
    try:
        async with asyncio.timeout(timeout):
            await following.until_gone(api.client, resource, name, namespace, uid)
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"{typed_name(resource)}/{name} is not gone after {timeout:g} s",
            hint=f"`podkeep describe {typed_name(resource)}/{name}` says what it waits for",
        ) from error
