"""``podkeep image ls``: list images and artifacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from podkeep.cli.core import completion, connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.images import described
from podkeep.cli.images.described import NONE

if TYPE_CHECKING:
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
                f"{text!r} is not one of reference=PATTERN, dangling=true|false and kind=image|artifact"
            )
        pairs.append((key, value))
    return pairs


@click.command(name="ls")
@click.argument("pattern", required=False, metavar="[NAME]", shell_complete=completion.images)
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

    images = [image for image in connection.run(invocation, described.ask) if chosen(image, wanted)]
    if quiet:
        click.echo("".join(f"{image.id}\n" for image in images), nl=False)
    else:
        forms.show(output, map(described.values, images), table(images, digests=digests, whole=no_trunc))


def chosen(image: ImageDescription, filters: Sequence[tuple[str, str]]) -> bool:
    return all(_passes(image, key, value) for key, value in filters)


def _passes(image: ImageDescription, key: str, value: str) -> bool:
    if key == "reference":
        return any(_fits(name, value) for name in (*image.repo_tags, *image.repo_digests))
    if key == "dangling":
        return (not image.repo_tags) == (value == "true")
    return image.kind == value


def _fits(name: str, pattern: str) -> bool:
    """Compare a name with a pattern: with its tag or digest and without, and from any slash on."""
    from podkeep.base.registries.reference import parse

    parsed = parse(name)
    bare = parsed.name
    short = parsed.familiar()
    cut = short.partition("@")[0] if parsed.digest else short.rpartition(":")[0]
    return any(fnmatchcase(form, wanted) for form in (name, bare, short, cut) for wanted in (pattern, f"*/{pattern}"))


def _rows(image: ImageDescription) -> list[tuple[ImageDescription, str, str, str]]:
    """Return an image with repository, tag and digest: one row for each tag, else for each digest.

    A digest is shown beside the tags of its repository.
    """
    digests: dict[str, str] = {}
    for name in image.repo_digests:
        repository, _, digest = name.partition("@")
        digests.setdefault(repository, digest)
    tagged = [tag.rpartition(":") for tag in image.repo_tags]
    if tagged:
        return [(image, repository, tag, digests.get(repository, NONE)) for repository, _, tag in tagged]
    untagged = [(image, repository, NONE, digest) for repository, digest in digests.items()]
    return untagged or [(image, NONE, NONE, NONE)]


def table(images: Sequence[ImageDescription], *, digests: bool, whole: bool) -> list[str]:
    columns: forms.Columns[tuple[ImageDescription, str, str, str]] = {
        "REPOSITORY": lambda row: row[1],
        "TAG": lambda row: row[2],
        "DIGEST": lambda row: row[3],
        "ID": lambda row: row[0].id if whole else forms.short(row[0].id),
        "TYPE": lambda row: described.type_of(row[0]),
        "SIZE": lambda row: forms.size(row[0].size),
        "AGE": lambda row: described.age(row[0]),
    }
    shown = {header: cell for header, cell in columns.items() if digests or header != "DIGEST"}
    rows = [row for image in images for row in _rows(image)]
    return forms.table(shown, sorted(rows, key=lambda row: forms.cells(shown, row)))
