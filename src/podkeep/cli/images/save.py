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
from podkeep.base.frozen import FrozenStruct
from podkeep.cli.core import connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.images.command import image_arguments

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient

_STANDARD_OUTPUT = ("-", "/dev/stdout")


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
    if form == "oci-dir" and str(target) in _STANDARD_OUTPUT:
        raise click.UsageError("--format oci-dir needs -o DIRECTORY")

    async def save(client: CriClient) -> int:
        from podkeep.cli.images.descriptors import message
        from podkeep.cli.images.progress import followed, on_stderr
        from podkeep.cri.v1 import podkeep_pb2

        with _target(target, form) as fd:
            name = "standard-output" if str(target) in _STANDARD_OUTPUT else str(target.absolute())
            request = podkeep_pb2.SaveImagesRequest(images=images, target=message(fd, name))
            return (await followed(client, {name}, client.node.SaveImages(request), on_stderr(quiet))).bytes

    written = connection.run(invocation, save)
    if not quiet:
        forms.echo_line(f"saved {forms.number_of(len(images), 'image')}, {forms.size(written)}, to {target}", err=True)


def _target(target: Path, form: str) -> AbstractContextManager[int]:
    if str(target) in _STANDARD_OUTPUT:
        return standard_output()
    return new_file(target) if form == "oci-archive" else new_directory(target)


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

    A link there is replaced, a device or a named pipe written as it is.

    :raises FailedPrecondition: if there can be no such file, or it is a device or pipe of another user's.
    """
    with _place(target) as place:
        found = place.status()
        if found is not None and stat.S_ISDIR(found.st_mode):
            raise FailedPrecondition(f"{target} is a directory", hint="name a file, or give --format oci-dir")
        if found is None or stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
            with _replacement(place) as fd:
                yield fd
        else:
            with _special(place, found) as fd:
                yield fd


@contextmanager
def new_directory(target: Path) -> Iterator[int]:
    """Yield a descriptor of a directory that becomes ``target`` at the end, and is gone if that is not reached.

    :raises AlreadyExists: if there is something with that name that is not an empty directory.
    :raises FailedPrecondition: if there can be no such directory.
    """
    with _place(target) as place:
        try:
            if place.status() is not None and not place.is_empty_directory():
                raise AlreadyExists(f"{target} exists", hint="name a directory that does not, or an empty one")
            os.mkdir(place.beside, dir_fd=place.directory)
            fd = place.open(place.beside, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise _refused(target, error) from error
        try:
            yield fd
            place.rename()
        finally:
            os.close(fd)
            with suppress(FileNotFoundError):
                shutil.rmtree(place.beside, dir_fd=place.directory)


class _Place(FrozenStruct, kw_only=True):
    """Where something is to be: a name in an open directory, never followed, as others may make links there.

    ``beside`` is the name in the same directory that it has until it is whole.
    """

    target: Path
    directory: int
    name: str
    beside: str

    def status(self) -> os.stat_result | None:
        """Return what lstat says of it; None if there is nothing."""
        try:
            return os.stat(self.name or ".", dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_empty_directory(self) -> bool:
        try:
            fd = self.open(self.name, os.O_RDONLY | os.O_DIRECTORY)
        except NotADirectoryError:
            return False
        try:
            return not os.listdir(fd)
        finally:
            os.close(fd)

    def open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, 0o666, dir_fd=self.directory)

    def rename(self) -> None:
        """Put what is ``beside`` in its place, durably.

        :raises FailedPrecondition: if it cannot be; a file that was beside is gone then.
        """
        try:
            os.rename(self.beside, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
            os.fsync(self.directory)
        except OSError as error:
            with suppress(OSError):
                os.unlink(self.beside, dir_fd=self.directory)
            raise _refused(self.target, error) from error


@contextmanager
def _place(target: Path) -> Iterator[_Place]:
    # What "." and ".." mean is the kernel's to say; they are no links.
    named = Path(os.path.realpath(target)) if target.name in ("", "..") else target
    try:
        directory = os.open(named.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(target, error) from error
    try:
        beside = f".{named.name}.{secrets.token_hex(4)}"
        yield _Place(target=target, directory=directory, name=named.name, beside=beside)
    finally:
        os.close(directory)


@contextmanager
def _replacement(place: _Place) -> Iterator[int]:
    try:
        # Without a name until it is whole, so that nothing is left of a command that is killed.
        fd = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=place.directory)
    except OSError as error:
        # What kernels and file systems without O_TMPFILE answer (open(2)).
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise _refused(place.target, error) from error
        with _named(place) as fd:  # a file system without files that have no name
            yield fd
        return
    try:
        yield fd
        try:
            # Python asks the kernel to follow the link only if a directory is given, for which a path that is absolute
            # has no use.
            os.link(
                f"/proc/self/fd/{fd}", place.beside, src_dir_fd=fd, dst_dir_fd=place.directory, follow_symlinks=True
            )
        except OSError as error:
            raise _refused(place.target, error) from error
        place.rename()
    finally:
        os.close(fd)


@contextmanager
def _named(place: _Place) -> Iterator[int]:
    try:
        with _opened(place, place.beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            yield fd
        place.rename()
    finally:
        with suppress(FileNotFoundError):
            os.unlink(place.beside, dir_fd=place.directory)


@contextmanager
def _special(place: _Place, found: os.stat_result) -> Iterator[int]:
    """Yield a descriptor of a device or named pipe; of another user's, it would be that user who gets the image."""
    if found.st_uid not in (0, os.geteuid()):
        raise FailedPrecondition(
            f"{place.target} is a pipe or device of another user's", hint="remove it, or name another file"
        )
    with _opened(place, place.name, os.O_WRONLY) as fd:
        now = os.fstat(fd)
        if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino):
            raise FailedPrecondition(f"{place.target} was replaced meanwhile", hint="name another file")
        yield fd


@contextmanager
def _opened(place: _Place, name: str, flags: int) -> Iterator[int]:
    try:
        fd = place.open(name, flags)
    except OSError as error:
        raise _refused(place.target, error) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _refused(target: Path, error: OSError) -> PodkeepError:
    return FailedPrecondition(f"{target} cannot be written: {error.strerror}")
