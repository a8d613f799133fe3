"""``podkeep image save``: save images as an OCI archive or an OCI layout directory."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import AlreadyExists, FailedPrecondition, PodkeepError
from podkeep.cli.core import connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.images.command import image_arguments

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient


@click.command(name="save")
@image_arguments()
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(path_type=Path, allow_dash=True),
    default="-",
    metavar="FILE",
    help="File to write, in one step at the end; - (default) is standard output.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["oci-archive", "oci-dir"]),
    default="oci-archive",
    show_default=True,
    help="One tar, or a directory that does not exist yet.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@pass_invocation
def command(invocation: Invocation, images: tuple[str, ...], target: Path, form: str, quiet: bool) -> None:
    """Save images and artifacts, with all their names, as an OCI layout.

    Layers are written as they are kept: the tars of images plain, the files of artifacts byte for byte. An image's ID
    stays the same.

    \b
    Examples:
      podkeep image save -o app.tar app:1
      podkeep image save app:1 | zstd > app.tar.zst
      podkeep image save --format oci-dir -o layout app:1 app:2
    """
    if form == "oci-dir" and str(target) == "-":
        raise click.UsageError("--format oci-dir needs -o DIRECTORY")

    async def save(client: CriClient) -> int:
        from podkeep.cli.images.descriptors import message
        from podkeep.cli.images.progress import followed, on_stderr
        from podkeep.cri.v1 import podkeep_pb2

        with _target(target, form) as fd:
            name = "standard-output" if str(target) == "-" else str(target.absolute())
            request = podkeep_pb2.SaveImagesRequest(images=images, target=message(fd, name))
            return (await followed(client, {name}, client.node.SaveImages(request), on_stderr(quiet))).bytes

    written = connection.run(invocation, save)
    if not quiet:
        forms.echo_line(f"saved {forms.number_of(len(images), 'image')}, {forms.size(written)}, to {target}", err=True)


def _target(target: Path, form: str) -> AbstractContextManager[int]:
    if str(target) == "-":
        return standard_output()
    # A symbolic link stays one.
    resolved = Path(os.path.realpath(target))
    return new_file(resolved) if form == "oci-archive" else new_directory(resolved)


@contextmanager
def standard_output() -> Iterator[int]:
    """Yield a descriptor that leads to standard output.

    :raises FailedPrecondition: if that is a terminal, or cannot be written.
    """
    from podkeep.cli.images.descriptors import piped_out

    fd = sys.stdout.fileno()
    if os.isatty(fd):
        raise FailedPrecondition("an archive is nothing for a terminal", hint="give -o FILE, or redirect the output")
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        yield fd
        return
    # A file may be open for appending, and a socket cannot be opened again.
    try:
        with piped_out(fd) as pipe:
            yield pipe
    except OSError as error:
        raise FailedPrecondition(f"standard output cannot be written: {error.strerror}") from error


@contextmanager
def new_file(target: Path) -> Iterator[int]:
    """Yield a descriptor of a file that takes the place of ``target`` at the end, and is gone if that is not reached.

    :raises FailedPrecondition: if there can be no such file.
    """
    if target.is_dir():
        raise FailedPrecondition(f"{target} is a directory", hint="name a file, or give --format oci-dir")
    if target.exists() and not target.is_file():
        with _opened(target, os.O_WRONLY) as fd:  # a device or a named pipe is written as it is
            yield fd
        return
    try:
        fd = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise _refused(target, error) from error
        with _named(target) as fd:  # a file system without files that have no name
            yield fd
        return
    try:
        yield fd
        _put_in_place(fd, target)
    finally:
        os.close(fd)


def _put_in_place(fd: int, target: Path) -> None:
    beside = _beside(target)
    try:
        # Only with a directory, which an absolute path has no use for, Python asks the kernel to follow the link.
        os.link(f"/proc/self/fd/{fd}", beside, src_dir_fd=fd, follow_symlinks=True)
        _rename(beside, target)
    except OSError as error:
        raise _refused(target, error) from error


@contextmanager
def _named(target: Path) -> Iterator[int]:
    beside = _beside(target)
    try:
        with _opened(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            yield fd
        _rename(beside, target)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _refused(path, error) from error
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def new_directory(target: Path) -> Iterator[int]:
    """Yield a descriptor of a directory that becomes ``target`` at the end, and is gone if that is not reached.

    :raises AlreadyExists: if there is something with that name that is not an empty directory.
    :raises FailedPrecondition: if there can be no such directory.
    """
    beside = _beside(target)
    try:
        if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
            raise AlreadyExists(f"{target} exists", hint="name a directory that does not, or an empty one")
        beside.mkdir()
        fd = os.open(beside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(target, error) from error
    try:
        yield fd
        try:
            _rename(beside, target)
        except OSError as error:
            raise _refused(target, error) from error
    finally:
        os.close(fd)
        with suppress(FileNotFoundError):
            shutil.rmtree(beside)


def _rename(beside: Path, target: Path) -> None:
    from podkeep.base.atomicfile import sync_directory

    try:
        os.rename(beside, target)
    except OSError:
        with suppress(OSError):
            os.unlink(beside)
        raise
    sync_directory(target.parent)


def _beside(target: Path) -> Path:
    return target.parent / f".{target.name}.{secrets.token_hex(4)}"


def _refused(target: Path, error: OSError) -> PodkeepError:
    return FailedPrecondition(f"{target} cannot be written: {error.strerror}")
