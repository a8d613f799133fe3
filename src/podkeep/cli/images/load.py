"""``podkeep image load``: load images from an archive, a layout directory or standard input."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import FailedPrecondition, NotFound
from podkeep.cli.core import connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1 import podkeep_pb2


@click.command(name="load")
@click.argument("archive", type=click.Path(path_type=Path, allow_dash=True), default="-", metavar="[ARCHIVE]")
@click.option("-i", "--input", "file", type=click.Path(path_type=Path), help="The same as ARCHIVE.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@forms.output_option
@pass_invocation
def command(invocation: Invocation, archive: Path, file: Path | None, quiet: bool, output: str) -> None:
    """Load every image of an archive, and print their names.

    If no runtime answers, one is started, as `podkeep run` does.

    ARCHIVE is what `podkeep image save`, `skopeo copy ... oci-archive:`, `podman save` or `docker save` wrote, plain or
    compressed, or the directory of an OCI layout; - or nothing means standard input.

    \b
    Examples:
      podkeep image load busybox.tar
      ssh build podman save app:1 | podkeep image load
    """
    from podkeep.cli.core.background import ensure_if_root

    async def load(client: CriClient) -> list[str]:
        from podkeep.cli.images.progress import followed, on_stderr
        from podkeep.cri.v1 import podkeep_pb2

        with source(file or archive) as opened:
            name = opened.name
            request = podkeep_pb2.LoadImageRequest(path=name, file=opened)
            return list((await followed(client, {name}, client.node.LoadImage(request), on_stderr(quiet))).image_refs)

    ensure_if_root(invocation)
    references = connection.run(invocation, load)
    forms.show(output, references, references)


@contextmanager
def source(archive: Path) -> Iterator[podkeep_pb2.OpenFile]:
    """Open an archive for as long as the runtime reads it.

    :raises NotFound: if there is none.
    :raises FailedPrecondition: if standard input is a terminal.
    """
    from podkeep.cli.images.descriptors import message, piped_in

    with ExitStack() as stack:
        if str(archive) != "-":
            try:
                fd = os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise NotFound(f"{archive}: {error.strerror}") from error
            stack.callback(os.close, fd)
            yield message(fd, str(archive.absolute()))
            return
        fd = sys.stdin.fileno()
        if os.isatty(fd):
            raise FailedPrecondition(
                "standard input is a terminal, not an archive", hint="name a file, or redirect standard input"
            )
        kind = os.fstat(fd).st_mode
        # What cannot be opened a second time, at the place where it stands, goes through a pipe.
        if not (stat.S_ISFIFO(kind) or (stat.S_ISREG(kind) and os.lseek(fd, 0, os.SEEK_CUR) == 0)):
            fd = stack.enter_context(piped_in(fd))
        yield message(fd, "standard-input")
