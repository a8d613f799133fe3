"""Turning layer blobs into trees: the worker's side of the unpack processes.

Each layer gets a thread and a process. The thread feeds the compressed bytes to the process as they arrive and hashes
them on the way; the tree counts only when both the blob's digest and the diff ID of what came out of it are right.
Until then it is a staging directory that is not read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

import msgspec

from podkeep.base.errors import FailedPrecondition, Internal, InvalidArgument, PodkeepError, ResourceExhausted
from podkeep.base.ids import Digest, parse_digest
from podkeep.images.formats.image import LayerKind
from podkeep.images.layers import messages
from podkeep.images.layers.forms import Form, form_of
from podkeep.images.layers.messages import Refused, Unpacked, UnpackRequest
from podkeep.images.layers.programs import ended
from podkeep.images.messages import NewLayer, StagedLayer, WantedLayer
from podkeep.images.worker.channel import Channel
from podkeep.kernel.files.openat import Resolve, openat2, write_all
from podkeep.kernel.process import forkserver

LOCK = forkserver.FIRST
"""The descriptor of the store's lock in a worker, and in an unpack process."""
TURN = LOCK + 1
"""In an unpack process, that of the file that those of one pull lock."""
_PIPE = 1 << 20
"""Bytes the pipe to the process holds: with the default of 64 KiB the two wait for each other at every piece."""
_MAX_DRAIN = 64 << 20
"""Bytes read on, after the unpack process gave up, to tell a damaged blob from a bad archive."""

_MAX_REPORT = 256 << 20
"""Bytes of a report; the lists of directories in it have limits of their own (``rules``)."""
_decode_report = msgspec.json.Decoder(Unpacked | Refused).decode


class LayerJob(msgspec.Struct, frozen=True, kw_only=True):
    """A layer to be made of a blob.

    ``layer`` is its ID where that is known before: the diff ID of a ``tar``, always of a ``file``, which gets the name
    ``title``. ``auto`` is a ``tar`` if it starts like one, else a ``file``. ``digest`` and ``size`` (bytes) are the
    blob's; no digest: only the diff ID is known.
    """

    layer: Digest | None
    kind: LayerKind | Literal["auto"] = "tar"
    title: str = ""
    compression: str
    digest: Digest | None
    size: int

    @property
    def shown(self) -> Digest:
        """The digest people know the layer by."""
        shown = self.digest or self.layer
        if shown is None:
            raise Internal("a layer without any digest")
        return shown

    @property
    def content(self) -> tuple[str, ...]:
        """What two jobs have in common when one result serves both, but for the title."""
        if self.kind == "tar" and self.layer is not None:
            return (self.layer,)
        return (self.shown, self.kind, self.compression)

    def as_file(self) -> LayerJob:
        return msgspec.structs.replace(self, kind="file", layer=file_layer_id(self.shown, self.title))

    def wanted(self) -> WantedLayer:
        """Return what the store needs to know to say whether it is here."""
        return WantedLayer(
            layer=self.layer, kind=self.kind, title=self.title, digest=self.digest, compression=self._taken_as
        )

    def made(self, layer: Digest, kind: LayerKind, staged: StagedLayer | None) -> NewLayer:
        """Return what became of it, for the store."""
        title = self.title if kind == "file" else ""
        return NewLayer(
            layer=layer, kind=kind, title=title, digest=self.digest, compression=self._taken_as, staged=staged
        )

    def retitled(self) -> NewLayer:
        """Return it as a file whose content the store has under another title."""
        return self.made(file_layer_id(self.shown, self.title), "file", None)

    @property
    def _taken_as(self) -> str:
        """Its compression, or ``auto`` if it is looked at: what is a file because of its type may still start like a
        tar."""
        return "auto" if self.kind == "auto" else self.compression


def file_layer_id(blob: Digest, title: str) -> Digest:
    """Return the ID of the layer that is one file: ``blob`` with the name ``title``."""
    text = json.dumps({"blob": blob, "title": title}, sort_keys=True, separators=(",", ":"))
    return Digest(f"sha256:{hashlib.sha256(text.encode()).hexdigest()}")


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What was made of a blob: the ``layer`` with this ID and kind, at ``path`` in a form that ``driver`` keeps.

    ``opaque`` and ``implied`` as in ``MadeTree``; ``data_bytes`` are those of a file on disk.
    """

    layer: Digest
    kind: LayerKind
    driver: str
    path: Path
    opaque: tuple[bytes, ...] = ()
    implied: tuple[bytes, ...] = ()
    data_bytes: int = 0


class UnpackProcess:
    """One started unpack process, the first of a PID namespace of its own: it can neither see nor signal another."""

    def __init__(self, server: socket.socket, turn: int) -> None:
        """Start the process.

        :param server: where the fork server is asked.
        :param turn: the file that the processes of one pull lock.
        :raises OSError: if it cannot be started.
        """
        with ExitStack() as theirs:
            source, write = os.pipe2(os.O_CLOEXEC)
            self._stdin = os.fdopen(write, "wb", buffering=0)
            theirs.callback(os.close, source)
            read, sink = os.pipe2(os.O_CLOEXEC)
            self._stdout = os.fdopen(read, "rb", buffering=0)
            theirs.callback(os.close, sink)
            with suppress(PermissionError):  # where an administrator wants pipes to be smaller (fs.pipe-max-size)
                fcntl.fcntl(self._stdin, fcntl.F_SETPIPE_SZ, _PIPE)
            # The store's lock is held for as long as something may be written.
            self._process = forkserver.start(server, "unpack", [source, sink, 2, LOCK, turn])

    def unpack(self, job: LayerJob, request: UnpackRequest, blob: Iterator[bytes], channel: Channel) -> Made:
        """Feed ``blob`` to the process and return what it made.

        :raises FailedPrecondition: if the blob is not what its digest says.
        :raises InvalidArgument: if the process refused the layer.
        """
        hashing = hashlib.new(job.shown.partition(":")[0])
        accepted = self._write(messages.encode(request) + b"\n")
        done = 0
        for piece in blob:
            hashing.update(piece)
            done += len(piece)
            if accepted and not self._write(piece):
                accepted = False
            # Read on if it is not much: the digest tells a damaged blob, which the next source may have whole.
            if not accepted and job.size - done > _MAX_DRAIN:
                break
            channel.progress(job.shown, "downloading", done, job.size)
        else:
            check_blob(job, done, f"{hashing.name}:{hashing.hexdigest()}")
        channel.progress(job.shown, "unpacking", done, job.size)
        made = self._report(job, form_of(request.driver))
        tree = made.tree
        return Made(
            layer=Digest(made.digest),
            kind="tar",
            driver=tree.driver,
            path=Path(request.root) / tree.path,
            opaque=tree.opaque,
            implied=tree.implied,
        )

    def close(self) -> None:
        """End the process if it still runs, and wait for that."""
        self._stdin.close()
        self._stdout.close()
        self._process.kill()
        self._process.wait()
        self._process.close()

    def _write(self, data: bytes) -> bool:
        try:
            write_all(self._stdin.fileno(), data)
        except BrokenPipeError:
            return False  # it has given up and says why on its standard output
        return True

    def _report(self, job: LayerJob, form: Form) -> Unpacked:
        self._stdin.close()
        output = bytearray()
        # Not to its end: tearing down its namespaces takes the kernel longer than a small layer takes to unpack.
        while not output.endswith(b"\n"):
            piece = os.read(self._stdout.fileno(), 1 << 16)
            if not piece:
                raise Internal(f"layer {job.shown}: the unpack process {ended(self._process.wait())}")
            output += piece
            if len(output) > _MAX_REPORT:
                raise Internal(f"layer {job.shown}: the unpack process says more than {_MAX_REPORT} bytes")
        report = decode_report(output, form.makes)
        if isinstance(report, Refused):
            raise no_space(job, report.error) if report.full else InvalidArgument(f"layer {job.shown}: {report.error}")
        if job.layer not in (None, report.digest):
            raise FailedPrecondition(
                f"layer {job.shown}: expected diff ID {job.layer}, the content has {report.digest}"
            )
        return report


def decode_report(line: bytes | bytearray, makes: Collection[tuple[str, str]]) -> Unpacked | Refused:
    """Return what an unpack process says of a layer. It has read what is hostile: nothing it says is taken for granted.

    A process that was taken over can make any tree, and say that it has any digest; what it cannot do is have the
    worker, which is not confined, read or change what is not the layer's. What the process *made* is checked where it
    is opened (``snapshots``).

    :param makes: what may have been made of it, by driver and path (``Form.makes``).
    :raises Internal: if it says what no unpack process says.
    """
    try:
        report: Unpacked | Refused = _decode_report(line)
        if isinstance(report, Unpacked):
            if (report.tree.driver, report.tree.path) not in makes:
                raise ValueError(f"a layer in {report.tree.path!r} for {report.tree.driver!r}")
            parse_digest(report.digest)
    except (ValueError, RecursionError, InvalidArgument) as error:
        raise Internal(f"the unpack process said what it never says: {error}") from error
    return report


def no_space(job: LayerJob, why: str) -> ResourceExhausted:
    """Return the error of a layer for which the disk has no space."""
    return ResourceExhausted(
        f"layer {job.shown}: {why}", hint="free space on the file system of runtime.root and try again"
    )


def check_blob(job: LayerJob, done: int, found: str) -> None:
    """Compare what arrived of a blob, ``done`` bytes with the digest ``found``, with what it should be.

    :raises FailedPrecondition: if it is something else.
    """
    if job.digest is not None and found != job.digest:
        size = f" ({done} of {job.size} bytes)" if done != job.size else ""
        raise FailedPrecondition(f"layer {job.digest}: expected digest {job.digest}, the content has {found}{size}")
    if done != job.size:
        raise FailedPrecondition(f"layer {job.shown}: expected {job.size} bytes, the content has {done}")


def mark_opaque(root: Path, directories: Sequence[bytes]) -> None:
    """Tell overlayfs which directories hide what is below (kernel, overlayfs.rst, "whiteouts and opaque
    directories").

    :raises PodkeepError: if the tree's file system does not take the attribute.
    """
    if not directories:
        return
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for directory in directories:
            # The paths are from the report of a process that read the layer: BENEATH keeps them in its tree.
            fd = openat2(top, directory or b".", os.O_RDONLY | os.O_DIRECTORY, Resolve.BENEATH | Resolve.NO_MAGICLINKS)
            try:
                os.setxattr(fd, "trusted.overlay.opaque", b"y")
            except OSError as error:
                raise PodkeepError(
                    f"setxattr({os.fsdecode(directory)!r}, 'trusted.overlay.opaque'): {error.strerror}"
                ) from error
            finally:
                os.close(fd)
    finally:
        os.close(top)
