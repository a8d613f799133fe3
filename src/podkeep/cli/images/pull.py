"""``podkeep image pull``: pull images and artifacts from their registries."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.cli.core import connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.images.command import image_arguments

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1 import api_pb2

_AT_ONCE = 3
"""Images pulled at the same time; each fetches several layers at once by itself."""


class Pulled(FrozenStruct, kw_only=True):
    """What a reference led to; ``digest`` is None if the runtime does not tell."""

    reference: str
    id: str
    digest: str | None


_COLUMNS: forms.Columns[Pulled] = {
    "IMAGE": lambda image: image.reference,
    "ID": lambda image: image.id,
    "DIGEST": lambda image: image.digest or "<none>",
}


@click.command(name="pull")
@image_arguments(name="references")
@click.option(
    "--creds",
    metavar="USER[:PASSWORD]",
    help="Credentials for the registry. Without the password it is asked for.",
)
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress, and print nothing but IDs.")
@forms.output_option
@pass_invocation
def command(
    invocation: Invocation,
    references: tuple[str, ...],
    creds: str | None,
    password_stdin: bool,
    quiet: bool,
    output: str,
) -> None:
    """Pull images and artifacts from their registries.

    If no runtime answers, one is started, as `podkeep run` does.

    Prints name, ID and digest of each. What other users of the machine must not see should not be in an argument: give
    the user's name alone, and the password when asked for it or with --password-stdin.

    \b
    Examples:
      podkeep image pull busybox:1 registry.example/models/tiny:v2
      podkeep image pull --creds alice registry.example/team/app:1
      podkeep image pull --creds alice --password-stdin registry.example/team/app:1 < password
    """
    from podkeep.cli.core.background import ensure_if_root

    if creds is not None:
        require_one_registry(references)
    auth = credentials(creds, password_stdin=password_stdin)
    wanted = list(dict.fromkeys(references))

    async def pull_all(client: CriClient) -> list[Pulled | PodkeepError]:
        return await _pull_all(client, wanted, auth, quiet=quiet)

    ensure_if_root(invocation)
    outcomes = connection.run(invocation, pull_all, ("images", "registries"))
    done = [outcome for outcome in outcomes if isinstance(outcome, Pulled)]
    if quiet:
        output, lines = "", [pulled.id for pulled in done]
    else:
        lines = forms.table(_COLUMNS, done) if done else []
    if done or len(references) > 1:
        forms.show(output, done, lines)
    forms.raise_last([outcome for outcome in outcomes if isinstance(outcome, PodkeepError)])


def require_one_registry(references: Sequence[str]) -> None:
    """Return if all references are of one registry: no other is to see the password.

    :raises click.UsageError: if they are not.
    """
    from podkeep.base.registries.reference import parse

    hosts = {parse(reference).host for reference in references}
    if len(hosts) > 1:
        raise click.UsageError(f"--creds are for one registry, not for {', '.join(sorted(hosts))}")


def credentials(creds: str | None, *, password_stdin: bool) -> tuple[str, str] | None:
    """Return user and password, asking for what is missing.

    :raises click.UsageError: if they cannot be had.
    """
    if creds is None:
        if password_stdin:
            raise click.UsageError("--password-stdin needs --creds USER")
        return None
    user, colon, password = creds.partition(":")
    if not user:
        raise click.UsageError("--creds: the user's name is missing")
    if password_stdin:
        if colon:
            raise click.UsageError("--creds has a password already, without --password-stdin")
        return user, sys.stdin.readline().rstrip("\r\n")
    if colon:
        return user, password
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask for the password; give it with --password-stdin")
    return user, click.prompt(f"Password of {user}", hide_input=True, err=True)


async def _pull_all(
    client: CriClient, references: Sequence[str], auth: tuple[str, str] | None, *, quiet: bool
) -> list[Pulled | PodkeepError]:
    """Return what each reference led to, or why it could not be pulled."""
    from podkeep.cli.images.progress import followed, on_stderr, reported_name

    places = asyncio.Semaphore(_AT_ONCE)

    async def one(reference: str) -> Pulled | PodkeepError:
        try:
            async with places:
                return await _pull(client, reference, auth)
        except PodkeepError as error:
            return error

    async def every() -> list[Pulled | PodkeepError]:
        return await asyncio.gather(*map(one, references))

    known: set[str] = set()
    for reference in references:
        try:
            known.add(reported_name(reference))
        except InvalidArgument:
            continue  # its pull says so
    return await followed(client, known, every(), on_stderr(quiet))


async def _pull(client: CriClient, reference: str, auth: tuple[str, str] | None) -> Pulled:
    from podkeep.base.registries.reference import parse
    from podkeep.cri.v1 import api_pb2

    name = parse(reference)
    request = api_pb2.PullImageRequest(image=api_pb2.ImageSpec(image=reference))
    if auth is not None:
        request.auth.username, request.auth.password = auth
    identity = (await client.images.PullImage(request)).image_ref
    spec = api_pb2.ImageSpec(image=identity)
    image = (await client.images.ImageStatus(api_pb2.ImageStatusRequest(image=spec))).image
    return Pulled(reference=str(name), id=identity, digest=name.digest or _digest(image, name.name))


def _digest(image: api_pb2.Image, repository: str) -> str | None:
    names = (name.partition("@") for name in image.repo_digests)
    return next((digest for found, _, digest in names if found == repository), None)
