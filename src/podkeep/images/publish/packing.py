"""Making blobs of files and directories that are to be published as an artifact.

Owns: how a path becomes a layer (a file as it is, a directory as an archive), its media type and annotations, and
noticing that a file changes meanwhile. Does not own: what is in the archive (``directory_tar.py``), the manifest and
the transport (``pushing.py``). Called by ``podkeep artifact push``.

Annotations are those of ORAS, so that its ``pull`` gives back what was pushed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, Protocol

import zstandard
from isal import isal_zlib

from podkeep.base.errors import AlreadyExists, InvalidArgument, NotFound, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import Digest
from podkeep.base.registries.reference import is_media_type
from podkeep.images.formats.manifest import MAX_LAYERS
from podkeep.images.formats.media_types import OCI_TAR, ORAS_DIGEST, ORAS_UNPACK, TITLE, wrong_title
from podkeep.images.publish.directory_tar import PIECE, Count, changed, same, tar_of
from podkeep.kernel.files.openat import open_named_regular

Compression = Literal["gzip", "zstd", "none"]

FILE_TYPE = "application/octet-stream"


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class Source(FrozenStruct, kw_only=True):
    """What to publish: ``path`` and how the layer is to be called; an empty media type is chosen by what it is."""

    path: Path
    media_type: str = ""


@dataclass(frozen=True, kw_only=True)
class Blob:
    """Bytes that are ready to be sent: an open file whose content had this digest. Close it."""

    shown: str
    media_type: str
    digest: Digest
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    file: IO[bytes] = field(repr=False)

    def pieces(self, start: int = 0) -> Iterator[bytes]:
        """Yield the bytes from ``start`` on; the last piece only if all of them are what they were.

        :raises FailedPrecondition: if the file was changed.
        """
        hashing = hashlib.sha256()
        position, held = 0, b""
        while position < self.size:
            piece = os.pread(self.file.fileno(), min(PIECE, self.size - position), position)
            if not piece:
                raise changed(self.shown)
            hashing.update(piece)
            # What is before the start is read all the same: the digest is of the whole file.
            fresh = piece[max(0, start - position) :]
            position += len(piece)
            if held:
                yield held
            # Kept back by one: the registry must not get the last piece of a blob whose digest turns out wrong.
            held = fresh
        if f"sha256:{hashing.hexdigest()}" != self.digest:
            raise changed(self.shown)
        if held:
            yield held

    def close(self) -> None:
        """Close the file; a temporary one is gone then."""
        self.file.close()


def parse_source(text: str) -> Source:
    """Return ``PATH[:MEDIA-TYPE]`` as a value; an existing path wins over reading a media type at its end.

    :raises NotFound: if there is nothing at the path.
    """
    path, colon, media_type = text.rpartition(":")
    # A file's name may end like a media type; what exists is meant.
    if not os.path.lexists(text) and colon and is_media_type(media_type):
        source = Source(path=Path(path), media_type=media_type)
    else:
        source = Source(path=Path(text))
    if not source.path.exists():
        raise NotFound(f"{source.path}: there is no such file or directory")
    return source


def check_sources(sources: Sequence[Source], *, contents: bool) -> None:
    """Check what can be known before anything is read.

    :raises AlreadyExists: if two paths would have the same name.
    :raises InvalidArgument: if there are more of them than an artifact that is mounted may have layers.
    """
    if len(sources) > MAX_LAYERS:
        raise InvalidArgument(
            f"{len(sources)} files and directories, more than the {MAX_LAYERS} of one artifact",
            hint="push a directory that holds them",
        )
    names: dict[str, Path] = {}
    for source in sources:
        if source.path.is_dir() and _bare(source, contents):
            continue
        name = name_of(source.path)
        if name in names:
            raise AlreadyExists(
                f"{names[name]} and {source.path} would both be {name!r} in the artifact",
                hint="rename one of them, or push a directory that holds both",
            )
        names[name] = source.path


def _bare(source: Source, contents: bool) -> bool:
    """Return whether a directory's content goes to the root; "." has no name anyway, which is how ORAS has it."""
    return contents or str(source.path) == "."


def pack(source: Source, *, contents: bool, compression: Compression, mtime: int, count: Count) -> Blob:
    """Return a file or directory as a blob.

    :param contents: put what is in a directory at the root of the archive instead of the directory itself.
    :param mtime: seconds since 1970 that every entry of an archive gets, so that it depends on the content only.
    :raises InvalidArgument: if it is neither, or a directory holds something an artifact cannot.
    :raises FailedPrecondition: if it changes meanwhile.
    """
    shown = str(source.path)
    try:
        if source.path.is_dir():
            return _pack_directory(source, contents=contents, compression=compression, mtime=mtime, count=count)
        return _pack_file(source, count)
    except OSError as error:
        raise PodkeepError(f"{error.filename or shown}: {error.strerror}") from error


def file_blob(path: Path, media_type: str) -> Blob:
    """Return a file as a blob without a title (a configuration).

    :raises NotFound: if there is no such file.
    """
    try:
        return _read_file(path, media_type, {}, lambda _: None)
    except FileNotFoundError as error:
        raise NotFound(f"{path}: there is no such file") from error
    except OSError as error:
        raise PodkeepError(f"{path}: {error.strerror}") from error


def bytes_blob(shown: str, data: bytes, media_type: str) -> Blob:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the blob's owner closes it
    file.write(data)
    file.flush()
    digest = Digest(f"sha256:{hashlib.sha256(data).hexdigest()}")
    return Blob(shown=shown, media_type=media_type, digest=digest, size=len(data), file=file)


def name_of(path: Path) -> str:
    """Return what a path is called in the artifact: its last part, whatever the way to it.

    :raises InvalidArgument: if that is not the name of a file in an artifact.
    """
    name = path.name or Path(os.path.abspath(path)).name
    if name == "..":
        name = Path(os.path.abspath(path)).name
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{os.fsencode(path)!r}: the name is not UTF-8") from error
    if wrong := wrong_title(name):
        raise InvalidArgument(f"{str(path)!r} cannot be a file in an artifact: the name {name!r} {wrong}")
    return name


def _pack_file(source: Source, count: Count) -> Blob:
    return _read_file(source.path, source.media_type or FILE_TYPE, {TITLE: name_of(source.path)}, count)


def _read_file(path: Path, media_type: str, annotations: Mapping[str, str], count: Count) -> Blob:
    fd = open_named_regular(path)
    if fd is None:
        raise InvalidArgument(f"{path} is neither a file nor a directory")
    file = os.fdopen(fd, "rb", buffering=0)
    try:
        before = os.fstat(fd)
        hashing = hashlib.sha256()
        size = 0
        # Not to its end, which a file that somebody appends to may never have.
        while size < before.st_size and (piece := os.pread(fd, min(PIECE, before.st_size - size), size)):
            hashing.update(piece)
            size += len(piece)
            count(len(piece))
        if size != before.st_size or not same(before, os.fstat(fd)):
            raise changed(str(path))
    except BaseException:
        file.close()
        raise
    digest = Digest(f"sha256:{hashing.hexdigest()}")
    return Blob(
        shown=str(path), media_type=media_type, digest=digest, size=size, annotations=dict(annotations), file=file
    )


def _pack_directory(source: Source, *, contents: bool, compression: Compression, mtime: int, count: Count) -> Blob:
    top = "" if _bare(source, contents) else name_of(source.path)
    suffix = "" if compression == "none" else f"+{compression}"
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the blob's owner closes it
    try:
        writer = _Writer(file, compression)
        for piece in tar_of(source.path, top=top, mtime=mtime, count=count):
            writer.write(piece)
        writer.finish()
    except BaseException:
        file.close()
        raise
    annotations = {TITLE: top or ".", ORAS_DIGEST: writer.plain_digest, ORAS_UNPACK: "true"}
    return Blob(
        shown=str(source.path),
        media_type=source.media_type or OCI_TAR + suffix,
        digest=writer.digest,
        size=writer.size,
        annotations=annotations,
        file=file,
    )


class _Writer:
    """Compresses what it is given into a file, and hashes both sides."""

    def __init__(self, file: IO[bytes], compression: Compression) -> None:
        self._file = file
        self._plain = hashlib.sha256()
        self._packed = hashlib.sha256()
        self._compressor: _Compressor | None = None
        if compression == "gzip":
            # 16 more than the window: a gzip header, without name and time.
            self._compressor = isal_zlib.compressobj(level=2, wbits=16 + 15)
        elif compression == "zstd":
            self._compressor = zstandard.ZstdCompressor(level=3).compressobj()
        self.size = 0

    @property
    def plain_digest(self) -> Digest:
        return Digest(f"sha256:{self._plain.hexdigest()}")

    @property
    def digest(self) -> Digest:
        return Digest(f"sha256:{self._packed.hexdigest()}")

    def write(self, data: bytes) -> None:
        self._plain.update(data)
        self._emit(self._compressor.compress(data) if self._compressor else data)

    def finish(self) -> None:
        if self._compressor:
            self._emit(self._compressor.flush())
        self._file.flush()

    def _emit(self, data: bytes) -> None:
        self._packed.update(data)
        self._file.write(data)
        self.size += len(data)
