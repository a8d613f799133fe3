"""``podkeep apply``: objects of files, by server-side apply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.objects import kinds, manifests
from podkeep.cli.objects.get import echo_object, typed_name
from podkeep.cli.objects.manifests import Written
from podkeep.cli.objects.reach import Api, Reach, api_options, dry_run_option, run

MANAGER = "podkeep"

_CONFLICT = "Apply failed with "
"""How the API begins to tell of fields that others have set."""


@click.command(name="apply")
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="File or directory, - for standard input; may be given again.",
)
@api_options()
@dry_run_option
@click.option("--force-conflicts", is_flag=True, help="Take fields over that others have set.")
@forms.form_option("table", "json", "yaml", "name")
@pass_invocation
def command(
    invocation: Invocation,
    reach: Reach,
    files: tuple[Path, ...],
    dry_run: bool,
    force_conflicts: bool,
    output: str,
) -> None:
    """Make the objects in files true: create them, or change them (server-side apply).

    \b
    Examples:
      podkeep apply -f web.yaml
      podkeep apply -f manifests/ -n shop
    """
    written = manifests.read(files)
    options = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
    options |= {"dryRun": "All"} if dry_run else {}
    options |= {"force": "true"} if force_conflicts else {}

    async def each(api: Api) -> list[PodkeepError]:
        failures: list[PodkeepError] = []
        results = []
        for item in written:
            try:
                what, result = await apply(api, item, options)
            except PodkeepError as error:
                if error.message.startswith(_CONFLICT):
                    error.hint = "--force-conflicts takes these fields over; or leave them out of the file"
                error.message = f"{item.where}: {error.message}"
                failures.append(error)
                continue
            results.append(result)
            resource = kinds.of_object(await api.kinds(), item.api_version, item.kind)
            name = f"{typed_name(resource)}/{item.name}"
            if output in ("table", "name"):
                done = f"{name} {what}{' (server dry run)' if dry_run else ''}"
                forms.echo_line(name if output == "name" else done)
        if output in ("json", "yaml") and results:
            for result in results:
                result.get("metadata", {}).pop("managedFields", None)
            value = results[0] if len(results) == 1 else {"apiVersion": "v1", "kind": "List", "items": results}
            echo_object(value, output)
        return failures

    forms.raise_last(run(invocation, reach, each))


def place(api: Api, item: Written, namespaced: bool) -> str:
    """Return the namespace in which an object of a file is.

    :raises InvalidArgument: in kubectl's words, if the command line names another one than the file.
    """
    if not namespaced:
        return ""
    if api.asked and item.namespace and item.namespace != api.asked:
        raise InvalidArgument(
            f'the namespace from the provided object "{item.namespace}" does not match the namespace "{api.asked}"',
            hint=f"leave -n {api.asked} out",
        )
    return item.namespace or api.namespace


async def apply(api: Api, item: Written, options: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """Apply an object; return ``created``, ``configured`` or ``unchanged``, and what the API has then.

    :raises ApiError: if the API refuses it.
    :raises NotFound: if it has no such kind.
    """
    from podkeep.client.client import Patch

    resource = kinds.of_object(await api.kinds(), item.api_version, item.kind)
    namespace = place(api, item, resource.namespaced)
    metadata = {**item.value["metadata"], **({"namespace": namespace} if namespace else {})}
    # Asked for first: the answer of a server-side apply does not say whether it has changed anything.
    before = await _version(api, resource.path(namespace, item.name))
    result = await api.client.patch(
        resource,
        item.name,
        {**item.value, "metadata": metadata},
        namespace,
        kind=Patch.APPLY,
        query=options,
    )
    if before is None:
        return "created", result
    return "unchanged" if result["metadata"].get("resourceVersion") == before else "configured", result


async def _version(api: Api, path: str) -> str | None:
    from podkeep.client.errors import ApiError

    try:
        value = (await api.client.request("GET", path)).value
    except ApiError as error:
        if error.not_found:
            return None
        raise
    return str(value.get("metadata", {}).get("resourceVersion", ""))
