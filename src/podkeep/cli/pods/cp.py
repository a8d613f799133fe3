"""``podkeep cp``: files and directories into a container and out of it, as a tar archive through exec.

What comes out was written by the container: it is read by the reader that image layers are read with, and lands below
the destination, whatever names and links are in it.
"""

from __future__ import annotations

import asyncio
import os
import tarfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError, NotFound, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.cli.core import completion, connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.pods.targets import Target, find_target, namespace_option

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.images.layers.tarstream import TarReader

_PIECE = 64 << 10
_WORDS = 4096
"""Bytes that are kept of what the container's tar says."""
_TEST_TIMEOUT_S = 30
_SHOWN = 20
"""Entries of an archive that are named when they are left out."""


class Remote(FrozenStruct, kw_only=True):
    """A path in a container."""

    pod: str
    namespace: str
    path: PurePosixPath
    is_directory: bool
    """It was written with a slash at its end."""


def remote(text: str, namespace: str) -> Remote | None:
    """Return what ``[NAMESPACE/]POD:PATH`` means; None: it is a path of this machine.

    :raises InvalidArgument: if the path is empty.
    """
    head, separator, path = text.partition(":")
    if not separator or text.startswith(("/", "./", "../")):
        return None
    spaced, slash, pod = head.rpartition("/")
    if not path:
        raise InvalidArgument(f"{text}: the path in the container is missing", hint="write it as POD:/PATH")
    return Remote(
        pod=pod,
        namespace=spaced if slash else namespace,
        path=PurePosixPath(path),
        is_directory=path.endswith("/"),
    )


@dataclass(kw_only=True)
class LeftOut:
    """Entries of an archive that are not made: the first of them, and how many. A container may send any number."""

    first: list[str] = field(default_factory=list)
    count: int = 0

    def note(self, text: str) -> None:
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(text)


@click.command(name="cp")
@click.argument("source", metavar="SOURCE", shell_complete=completion.places)
@click.argument("destination", metavar="DESTINATION", shell_complete=completion.places)
@click.option("-c", "--container", metavar="NAME", help="Container; may be left out if the pod has one.")
@namespace_option
@pass_invocation
def command(invocation: Invocation, source: str, destination: str, container: str | None, namespace: str) -> None:
    """Copy files and directories into a container, or out of it. One of the two is POD:PATH.

    The container needs a `tar` program. Links that come out of a container are left out.

    \b
    Examples:
      podkeep cp web:/etc/nginx/nginx.conf .
      podkeep cp ./site web:/usr/share/nginx/html
    """
    there, here = remote(source, namespace), remote(destination, namespace)
    if (there is None) == (here is None):
        raise click.UsageError("one of SOURCE and DESTINATION is POD:PATH, the other a path of this machine")
    if "-" in (source, destination):
        raise InvalidArgument(
            "standard input and output are not copied",
            hint="`podkeep exec POD -- tar cf - PATH` writes an archive; a file of that name is ./-",
        )

    async def copy(client: CriClient) -> None:
        if there is not None:
            await _out(_Container(client, invocation, there, container), there, Path(destination))
        elif here is not None:
            await _in(_Container(client, invocation, here, container), Path(source), here)

    connection.run(invocation, copy)


class _Container:
    """Commands in the container that is meant."""

    def __init__(self, client: CriClient, invocation: Invocation, place: Remote, container: str | None) -> None:
        self._client, self._invocation = client, invocation
        self._target = Target(pod=place.pod, namespace=place.namespace, container=container)
        self._id = ""

    async def _identity(self) -> str:
        if not self._id:
            self._id = (await find_target(self._client, self._invocation.config, self._target, running=True)).id
        return self._id

    async def is_directory(self, path: PurePosixPath) -> bool:
        from podkeep.cri.v1 import api_pb2

        request = api_pb2.ExecSyncRequest(
            container_id=await self._identity(), cmd=["test", "-d", str(path)], timeout=_TEST_TIMEOUT_S
        )
        return (await self._client.runtime.ExecSync(request)).exit_code == 0

    async def run(
        self,
        argv: Sequence[str],
        source: Callable[[], Awaitable[bytes]] | None,
        sink: Callable[[bytes], Awaitable[bool]] | None,
    ) -> None:
        """Run a command with what ``source`` yields (nothing: the end) as its input, and its output to ``sink``.

        :param sink: returns whether it wants more.
        :raises FailedPrecondition: with its words, if the command fails.
        """
        from podkeep.cli.pods.stream_client import CommandClient
        from podkeep.cri.v1 import api_pb2
        from podkeep.http.websocket import STDOUT

        request = api_pb2.ExecRequest(
            container_id=await self._identity(), cmd=argv, stdin=source is not None, stdout=True, stderr=True
        )
        answer = await self._client.runtime.Exec(request)
        session = await CommandClient.connect(answer.url, self._invocation.config.streaming.tls_cert)

        async def feed() -> None:
            assert source is not None
            with suppress(PodkeepError):  # it has ended: its status says why
                while data := await source():
                    await session.send_input(data)
                await session.end_input()

        feeding = asyncio.ensure_future(feed()) if source is not None else None
        words = b""
        try:
            async for channel, data in session.outputs():
                if channel != STDOUT:
                    words = (words + data)[-_WORDS:]
                elif sink is not None and not await sink(data):
                    return
            status = session.exit_code()
        except PodkeepError as error:
            if "executable" in error.message or "no such file" in error.message.lower():
                raise FailedPrecondition(
                    f"the container has no `{argv[0]}`", hint="copy with `podkeep exec` and what it has"
                ) from error
            raise
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
            await session.close()
        if status != 0:
            said = " ".join(words.decode(errors="replace").split())
            raise FailedPrecondition(f"`{argv[0]}` in the container failed: {said or f'exit status {status}'}")


def nothing_of(path: PurePosixPath, left_out: LeftOut) -> NotFound:
    """Return the error for something of which nothing was made: if it is no file, what it is."""
    if not left_out.first:
        return NotFound(f"the container's tar sent nothing for {path}")
    what = left_out.first[0].rpartition(": ")[2]
    return NotFound(f"{path} is {what}", hint="files and directories are copied; of a link name what it leads to")


async def _out(container: _Container, place: Remote, destination: Path) -> None:
    from podkeep.kernel.files import openat

    name = place.path.name
    if name in ("", ".", ".."):
        raise InvalidArgument(f"{place.path}: name a file or a directory in the container")
    target = destination / name if destination.is_dir() else destination
    parent = target.parent if target.name else target
    if not parent.is_dir():
        raise NotFound(f"{parent}: no such directory")
    read, write = os.pipe2(os.O_CLOEXEC)
    left_out = LeftOut()
    failure: list[Exception] = []

    def extract() -> None:
        from podkeep.images.layers.tarstream import ByteSource, TarError, TarReader

        try:
            if not unpack(TarReader(ByteSource(lambda: os.read(read, _PIECE))), os.fsencode(name), target, left_out):
                failure.append(nothing_of(place.path, left_out))
        except (OSError, TarError, PodkeepError) as error:
            failure.append(error)
        finally:
            os.close(read)

    worker = threading.Thread(target=extract, name="tar", daemon=True)
    worker.start()

    async def sink(data: bytes) -> bool:
        try:
            await asyncio.to_thread(openat.write_all, write, data)
        except BrokenPipeError:
            return not failure  # who reads may be done before the padding at the end
        return True

    directory = str(place.path.parent)
    try:
        # With ./ in front, a name that begins with a dash is no option of tar.
        await container.run(["tar", "cf", "-", "-C", directory, f"./{name}"], None, sink)
    finally:
        os.close(write)
        await asyncio.to_thread(worker.join)
    if failure:
        error = failure[0]
        raise error if isinstance(error, PodkeepError) else FailedPrecondition(f"{target}: {error}")
    for text in left_out.first:
        forms.echo_line(f"podkeep: left out: {text}", err=True)
    if left_out.count > len(left_out.first):
        forms.echo_line(f"podkeep: left out: {left_out.count - len(left_out.first)} more", err=True)


def unpack(reader: TarReader, name: bytes, target: Path, left_out: LeftOut) -> int:
    """Make what an archive has as ``name`` at ``target``; return how many entries were made.

    No link is made or followed, nothing lands anywhere else, and what is no file and no directory is left out.

    :param left_out: told what was left out, and why.
    :raises TarError: if it is no archive.
    :raises InvalidArgument: if an entry is meant to land elsewhere.
    :raises OSError: if something cannot be written.
    """
    from podkeep.images.layers.tarstream import EntryKind
    from podkeep.kernel.files import openat

    made = 0
    with openat.closing(os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as top:
        for entry in reader:
            parts = [part for part in entry.name.split(b"/") if part not in (b"", b".")]
            if b".." in parts or not parts or parts[0] != name:
                raise InvalidArgument(f"the archive has an entry that belongs elsewhere: {os.fsdecode(entry.name)!r}")
            path = [os.fsencode(target.name), *parts[1:]]
            shown = os.fsdecode(b"/".join(parts))
            if entry.kind not in (EntryKind.FILE, EntryKind.DIRECTORY) or entry.parts is not None:
                what = "sparse file" if entry.parts is not None else entry.kind.value
                left_out.note(f"{shown}: a {what}")
                continue
            with openat.closing(_directory(top, path[:-1])) as parent:
                if entry.kind is EntryKind.DIRECTORY:
                    os.close(_child(parent, path[-1]))
                else:
                    # Without set-user-ID bits: the file becomes the caller's, who is root most of the time.
                    _file(parent, path[-1], entry.mode & 0o777, reader)
            made += 1
    return made


def _directory(top: int, path: Sequence[bytes]) -> int:
    """Return a descriptor of a directory below ``top``, made as far as it is missing; no link is followed."""
    current = os.dup(top)
    for part in path:
        try:
            following = _child(current, part)
        finally:
            os.close(current)
        current = following
    return current


def _child(parent: int, name: bytes) -> int:
    from podkeep.kernel.files import openat

    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    try:
        return openat.openat2(parent, name, os.O_RDONLY | os.O_DIRECTORY, openat.CONFINED)
    except KernelCallError as error:
        raise InvalidArgument(f"{os.fsdecode(name)} is there, and no directory") from error


def _file(parent: int, name: bytes, mode: int, reader: TarReader) -> None:
    from podkeep.kernel.files import openat

    with suppress(FileNotFoundError):
        # Replaced and not written into: what is there may be a link, or a file with other names.
        os.unlink(name, dir_fd=parent)
    descriptor = os.open(
        name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent
    )
    try:
        for piece in reader.content():
            openat.write_all(descriptor, piece)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


async def _in(container: _Container, source: Path, place: Remote) -> None:
    if not source.exists():
        raise NotFound(f"{source}: no such file or directory")
    inside = place.is_directory or await container.is_directory(place.path)
    directory = place.path if inside else place.path.parent
    name = source.resolve().name if inside else place.path.name
    read, write = os.pipe2(os.O_CLOEXEC)
    failure: list[Exception] = []

    def pack() -> None:
        try:
            with os.fdopen(write, "wb") as target, tarfile.open(fileobj=target, mode="w|") as archive:
                archive.add(source, arcname=f"./{name}")
        except BrokenPipeError:
            return
        except (OSError, tarfile.TarError) as error:
            failure.append(error)

    worker = threading.Thread(target=pack, name="tar", daemon=True)
    worker.start()
    try:
        await container.run(
            ["tar", "xmf", "-", "-C", str(directory)], lambda: asyncio.to_thread(os.read, read, _PIECE), None
        )
    finally:
        os.close(read)
        await asyncio.to_thread(worker.join)
    if failure:
        raise FailedPrecondition(f"{source}: {failure[0]}")
