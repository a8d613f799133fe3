"""``podkeep image ls``: list images and artifacts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from podkeep.cli.core import connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.images import described
from podkeep.cli.images.names import complete

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1.podkeep_pb2 import ImageDescription

_FILTERS: Mapping[str, tuple[str, ...]] = {
    "reference": (),
    "dangling": ("true", "false"),
    "kind": ("image", "artifact"),
}
"""Keys, and the values of those that do not take any."""


def _filter(_ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return ``KEY=VALUE`` as pairs.

    :raises click.BadParameter: if a key is not known or its value impossible.
    """
    pairs = []
    for text in given:
        key, _, value = text.partition("=")
        if not value or key not in _FILTERS or value not in (_FILTERS[key] or (value,)):
            raise click.BadParameter(
                f"{text!r} is none of reference=PATTERN, dangling=true|false and kind=image|artifact"
            )
        pairs.append((key, value))
    return pairs


@click.command(name="ls")
@click.argument("pattern", required=False, metavar="[NAME]", shell_complete=complete)
@click.option(
    "-f",
    "--filter",
    "filters",
    callback=_filter,
    multiple=True,
    metavar="KEY=VALUE",
    help="reference=PATTERN, dangling=true|false (without a tag) or kind=image|artifact; all that are given must fit.",
)
@click.option("--digests", is_flag=True, help="Show the digest of each name, too.")
@click.option("--no-trunc", is_flag=True, help="Show whole IDs.")
@click.option("-q", "--quiet", is_flag=True, help="Show whole IDs and nothing else.")
@forms.output_option
@pass_invocation
def command(
    invocation: Invocation,
    pattern: str | None,
    filters: list[tuple[str, str]],
    digests: bool,
    no_trunc: bool,
    quiet: bool,
    output: str,
) -> None:
    """List images and artifacts.

    NAME, as a filter reference=NAME, is a repository with or without a tag; * and ? stand for any characters.

    \b
    Examples:
      podkeep image ls busybox
      podkeep image ls -f kind=artifact
      podkeep image ls -q -f dangling=true
    """
    wanted = [*filters, *([("reference", pattern)] if pattern else [])]

    async def ask(client: CriClient) -> list[ImageDescription]:
        return await described.ask(client, [])

    images = [image for image in connection.run(invocation, ask) if chosen(image, wanted)]
    if quiet:
        click.echo("".join(f"{image.id}\n" for image in images), nl=False)
    elif output == "json":
        forms.echo_json([described.values(image) for image in images])
    else:
        forms.echo_table(*table(images, time.time(), digests=digests, whole=no_trunc))


def chosen(image: ImageDescription, filters: Sequence[tuple[str, str]]) -> bool:
    """Return whether an image fits all filters."""
    return all(_passes(image, key, value) for key, value in filters)


def _passes(image: ImageDescription, key: str, value: str) -> bool:
    if key == "reference":
        return any(_fits(name, value) for name in (*image.repo_tags, *image.repo_digests))
    if key == "dangling":
        return (not image.repo_tags) == (value == "true")
    return image.kind == value


def _fits(name: str, pattern: str) -> bool:
    """Compare a name with a pattern: with its tag or digest and without, and from any slash on."""
    from podkeep.base.reference import parse

    parsed = parse(name)
    bare = parsed.name
    short = parsed.familiar()
    cut = short.partition("@")[0] if parsed.digest else short.rpartition(":")[0]
    return any(fnmatchcase(form, wanted) for form in (name, bare, short, cut) for wanted in (pattern, f"*/{pattern}"))


def table(
    images: Sequence[ImageDescription], now: float, *, digests: bool, whole: bool
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows, sorted; ``now`` in seconds since 1970."""
    header = ["REPOSITORY", "TAG", *(["DIGEST"] if digests else []), "ID", "TYPE", "SIZE", "AGE"]
    rows = []
    for image in images:
        identity = image.id if whole else described.short(image.id)
        rest = [identity, described.type_of(image), forms.size(image.size), described.age(image, now)]
        for repository, tag, digest in described.names(image):
            rows.append([repository, tag, *([digest] if digests else []), *rest])
    return header, sorted(rows)
