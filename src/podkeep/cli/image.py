"""``podkeep image``: the images of the runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import NotFound
from podkeep.cli import connection, output
from podkeep.cli.invocation import Invocation, pass_invocation

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1 import api_pb2

HEADER = ("IMAGE", "TAG", "ID", "SIZE")


@click.group(name="image")
def command() -> None:
    """Pull, list, remove and load images."""


@command.command(name="pull")
@click.argument("references", nargs=-1, required=True, metavar="IMAGE...")
@output.output_option
@pass_invocation
def pull(invocation: Invocation, references: tuple[str, ...], output: str) -> None:
    """Pull images from their registries."""

    async def pull_all(client: CriClient) -> list[str]:
        return [await pull_image(client, reference) for reference in references]

    _echo_references(connection.run(invocation, pull_all), form=output)


async def pull_image(client: CriClient, reference: str) -> str:
    """Pull one image, showing progress on standard error, and return the runtime's reference to it."""
    from podkeep.cli.pullprogress import shown
    from podkeep.cri.v1 import api_pb2

    request = api_pb2.PullImageRequest(image=api_pb2.ImageSpec(image=reference))
    answer = await shown(client, reference, client.images.PullImage(request), sys.stderr)
    return answer.image_ref


@command.command(name="load")
@click.argument("archive", type=click.Path(exists=True, path_type=Path))
@output.output_option
@pass_invocation
def load(invocation: Invocation, archive: Path, output: str) -> None:
    """Load the images of an OCI layout directory or of an image archive (OCI or docker save)."""

    async def load_archive(client: CriClient) -> list[str]:
        from podkeep.cli.pullprogress import shown
        from podkeep.cri.v1 import podkeep_pb2

        path = str(archive.resolve())
        request = podkeep_pb2.LoadImageRequest(path=path)
        return list((await shown(client, path, client.node.LoadImage(request), sys.stderr)).image_refs)

    _echo_references(connection.run(invocation, load_archive), form=output)


@command.command(name="ls")
@output.output_option
@pass_invocation
def list_(invocation: Invocation, output: str) -> None:
    """List images."""

    async def list_images(client: CriClient) -> list[api_pb2.Image]:
        from podkeep.cri.v1 import api_pb2

        return list((await client.images.ListImages(api_pb2.ListImagesRequest())).images)

    _echo_images(connection.run(invocation, list_images), form=output)


@command.command(name="rm")
@click.argument("references", nargs=-1, required=True, metavar="IMAGE...")
@output.output_option
@pass_invocation
def remove(invocation: Invocation, references: tuple[str, ...], output: str) -> None:
    """Remove images, with all their names."""

    async def remove_all(client: CriClient) -> None:
        from podkeep.cri.v1 import api_pb2

        for reference in references:
            spec = api_pb2.ImageSpec(image=reference)
            # CRI lets the removal of an unknown image succeed; a person who mistyped a name wants to know.
            known = await client.images.ImageStatus(api_pb2.ImageStatusRequest(image=spec))
            if not known.HasField("image"):
                raise NotFound(f"no image {reference}", hint="`podkeep image ls` lists the images")
            await client.images.RemoveImage(api_pb2.RemoveImageRequest(image=spec))
            if output != "json":
                click.echo(f"removed {reference}")

    connection.run(invocation, remove_all)
    if output == "json":
        _echo_json({"removed": list(references)})


def _echo_json(value: object) -> None:
    output.echo_json(value)


def _echo_references(references: list[str], *, form: str) -> None:
    if form == "json":
        output.echo_json(references)
    else:
        click.echo("\n".join(references))


def _echo_images(images: list[api_pb2.Image], *, form: str) -> None:
    if form == "json":
        output.echo_json([image_json(image) for image in images])
    else:
        output.echo_table(HEADER, sorted(row for image in images for row in image_rows(image)))


def image_json(image: api_pb2.Image) -> dict[str, object]:
    """Return an image as values for JSON; the size in bytes."""
    return {
        "id": image.id,
        "repo_tags": list(image.repo_tags),
        "repo_digests": list(image.repo_digests),
        "size": image.size,
        "pinned": image.pinned,
    }


def image_rows(image: api_pb2.Image) -> list[tuple[str, str, str, str]]:
    """Return a row for each tag of an image; one without tags is shown by its digest's repository, or as ``<none>``."""
    identity, size = image.id.partition(":")[2][:12], output.size(image.size)
    tagged = [(*_split_tag(tag), identity, size) for tag in image.repo_tags]
    if tagged:
        return tagged
    repository = image.repo_digests[0].partition("@")[0] if image.repo_digests else "<none>"
    return [(repository, "<none>", identity, size)]


def _split_tag(reference: str) -> tuple[str, str]:
    repository, _, tag = reference.rpartition(":")
    return repository, tag
