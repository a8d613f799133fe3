"""Images from files: an OCI layout (directory or tar) and what ``docker save`` writes.

Runs in the worker. An archive is read where it lies: its members are found once, blobs are read from their place in
the file. A compressed archive is unpacked to a file in the staging directory first. OCI image-spec, image-layout.md;
the ``docker save`` form is manifest.json, configurations and layer tars.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from msgspec import structs

from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError, NotFound, of_request
from podkeep.base.ids import Digest, parse_digest
from podkeep.base.registries import reference
from podkeep.images.formats import manifest, texts
from podkeep.images.formats.openfile import failure, open_again
from podkeep.images.layers import decompress
from podkeep.images.layers.rules import shown
from podkeep.images.layers.tarstream import BLOCK, ByteSource, EntryKind, TarError, TarReader
from podkeep.images.messages import FetchedImage, LayerSettings, Load
from podkeep.images.worker import selection
from podkeep.images.worker.assembly import Assembly
from podkeep.images.worker.channel import Channel
from podkeep.images.worker.layers import LayerJob
from podkeep.kernel.files.openat import Resolve, closing, open_named, open_regular, reopen

_PIECE = 1 << 18
_MAX_LINKS = 8
_MAX_DOCUMENTS = 48 << 20
"""Bytes of all manifests and configurations of an archive together: the store has them in memory before it writes
them. Those of a thousand images of the usual kind have half of that."""


MAX_MEMBERS = 1 << 17
MAX_NAME_BYTES = 16 << 20
"""Members of an archive, and bytes of their names and of links' targets together, which are in memory: a thousand
images of 127 layers each have as many, of some 80 bytes."""


class Files(Protocol):
    """Named byte strings: a directory, or the members of a tar."""

    def size(self, name: str) -> int | None:
        """Return the bytes of a file, or None if there is no such file."""
        ...

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield a file's content."""
        ...


class DirectoryFiles:
    """Files below a directory, which they cannot leave by a symbolic link."""

    def __init__(self, root: int) -> None:
        self._root = root

    def size(self, name: str) -> int | None:
        try:
            with closing(self._open(name)) as fd:
                return os.fstat(fd).st_size
        except OSError:
            return None

    def pieces(self, name: str) -> Iterator[bytes]:
        with closing(self._open(name)) as fd:
            left = os.fstat(fd).st_size  # it may grow while it is read
            while left > 0 and (piece := os.read(fd, min(left, _PIECE))):
                left -= len(piece)
                yield piece

    def _open(self, name: str) -> int:
        try:
            # Names come from documents of the archive, and links from whoever filled the directory.
            fd = open_regular(self._root, name, rules=Resolve.BENEATH | Resolve.NO_MAGICLINKS)
        except KernelCallError as error:
            raise OSError(error.errno, os.strerror(error.errno), name) from error
        if fd is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such regular file", name)
        return fd


class TarFiles:
    """The members of a tar file, found in one pass over its headers."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._members: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        self._index()

    def size(self, name: str) -> int | None:
        member = self._find(name)
        return member[1] if member else None

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield a member's content; several threads may read at once."""
        member = self._find(name)
        if member is None:
            raise FileNotFoundError(name)
        offset, left = member
        while left:
            piece = os.pread(self._file.fileno(), min(left, _PIECE), offset)
            if not piece:
                raise FailedPrecondition(f"{name}: the archive ends {left} bytes too early")
            yield piece
            offset += len(piece)
            left -= len(piece)

    def _find(self, name: str) -> tuple[int, int] | None:
        for _ in range(_MAX_LINKS):
            if name not in self._links:
                break
            name = self._links[name]
        return self._members.get(name)

    def _index(self) -> None:
        source = _SeekingSource(self._file)
        names = 0
        for number, entry in enumerate(TarReader(source)):
            names += len(entry.name) + len(entry.link)
            if number >= MAX_MEMBERS or names > MAX_NAME_BYTES:
                raise TarError(
                    f"the archive has more than {MAX_MEMBERS} members, or {MAX_NAME_BYTES} bytes of their names"
                )
            name = os.path.normpath(os.fsdecode(entry.name))
            if entry.kind is EntryKind.FILE and entry.parts is None:
                self._members[name] = (source.position, entry.size)
            elif entry.kind in (EntryKind.SYMLINK, EntryKind.HARDLINK):
                if not entry.link:
                    raise TarError(f"entry {shown(entry.name)}: no target")
                # A hard link's target is named from the root of the archive, a symbolic link's from its directory.
                above = os.path.dirname(name) if entry.kind is EntryKind.SYMLINK else ""
                self._links[name] = os.path.normpath(os.path.join(above, os.fsdecode(entry.link)))


class _SeekingSource(ByteSource):
    """Reads headers and seeks over what lies between them; ``position`` is where the next byte comes from."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(lambda: b"")
        self._file = file
        self._size = os.fstat(file.fileno()).st_size

    def some(self, most: int) -> memoryview:
        """Read up to ``most`` bytes; only headers are ever asked for, in whole blocks."""
        data = os.pread(self._file.fileno(), min(most, 1 << 20), self.position)
        self._before += len(data)
        self.ended = not data
        return memoryview(data)

    def skip(self, count: int) -> None:
        """Seek; a skip past the end is an error, save for the padding that some writers leave out."""
        self._before += count
        if self.position >= self._size + BLOCK:
            raise TarError("the archive ends too early")


class ArchiveSource:
    """Layer blobs out of ``files``; ``names`` maps what a layer is known by to its file."""

    def __init__(self, files: Files, names: Mapping[Digest, str]) -> None:
        self._files = files
        self._names = names

    def blob(self, digest: Digest, size: int) -> Iterator[bytes]:
        try:
            yield from self._files.pieces(self._names[digest])
        except OSError as error:
            raise NotFound(f"layer {digest} is not in the archive: {error.strerror or error}") from error


def load(request: Load, assembly: Assembly, channel: Channel) -> list[FetchedImage]:
    """Read every image of this node's architecture in the archive that ``request`` names.

    :raises NotFound: if the archive does not exist or holds no image for this node.
    :raises InvalidArgument: if it is not one of the known kinds.
    """
    path = Path(request.path)
    files = _open(path, request)
    stem = re.sub(r"(\.(tar|tgz|gz|zst|oci|docker))+$", "", path.resolve().name)
    loader = _Loader(files, path, stem, assembly, channel)
    try:
        if files.size("index.json") is not None:
            return loader.layout()
        if files.size("manifest.json") is not None:
            return loader.docker()
    except TarError as error:
        raise InvalidArgument(f"{path}: {error}") from error
    raise InvalidArgument(
        f"{path} is neither an OCI layout nor a docker archive",
        hint="it has neither index.json nor manifest.json; write one with `skopeo copy ... oci-archive:FILE`",
    )


def _open_path(path: Path) -> int:
    """Open a file or a directory; a pipe may have no writer ever, so that comes by a descriptor (``openfile``)."""
    try:
        with closing(open_named(path)) as fd:
            if not stat.S_ISREG(mode := os.fstat(fd).st_mode) and not stat.S_ISDIR(mode):
                raise InvalidArgument(f"{path} is neither a file nor a directory")
            return reopen(fd, os.O_RDONLY)
    except OSError as error:
        kind = of_request(error) or NotFound
        raise kind(f"{path}: {error.strerror}") from error


def _open(path: Path, request: Load) -> Files:
    fd = open_again(request.file, os.O_RDONLY) if request.file else _open_path(path)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        return DirectoryFiles(fd)
    try:
        start = _start(fd)
        kind = sniff(start)
        if kind == "none" and stat.S_ISREG(os.fstat(fd).st_mode):
            return TarFiles(os.fdopen(fd, "rb"))
        return TarFiles(_plain(fd, start, kind, request.settings))
    except (TarError, decompress.CompressionError) as error:
        raise InvalidArgument(f"{path}: {error}") from error
    except OSError as error:
        raise failure(error, str(path), "cannot be read to its end") from error


def _start(fd: int) -> bytes:
    """Read the four bytes that tell what a file is; a pipe may hand them out one by one."""
    start = b""
    while len(start) < 4 and (piece := os.read(fd, 4 - len(start))):
        start += piece
    return start


def sniff(start: bytes) -> str:
    """Return the compression that a file's first four bytes show."""
    if start[:2] == b"\x1f\x8b":
        return "gzip"
    return "zstd" if start == b"\x28\xb5\x2f\xfd" else "none"


def _plain(source: int, start: bytes, kind: str, settings: LayerSettings) -> BinaryIO:
    """Write what comes after ``start``, decompressed, to a file without a name on the file system of the layers."""
    # Nameless: it is gone with the process, however that ends.
    fd = os.open(settings.staging, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    plain = os.fdopen(fd, "w+b")
    pull = decompress.decompressor(kind, decompress.reader(source, start))
    written = 0
    while piece := pull():
        written += plain.write(piece)
        if written > settings.max_bytes:
            raise TarError(f"more than {settings.max_bytes} bytes uncompressed (images.max_layer_bytes)")
    plain.flush()
    return plain


def _tag(text: str, what: str) -> str:
    """Return a tag in full.

    :raises InvalidArgument: if it has a digest: the archive's content was not compared with it.
    """
    name = reference.parse(text)
    if name.digest:
        raise InvalidArgument(f"{what}: {texts.short(text)} is no tag")
    return str(name)


class _Loader:
    def __init__(self, files: Files, path: Path, stem: str, assembly: Assembly, channel: Channel) -> None:
        self._files = files
        self._path = path
        self._stem = stem
        self._assembly = assembly
        self._channel = channel
        self._documents = 0
        """Bytes of documents that were read."""

    def layout(self) -> list[FetchedImage]:
        """Load an OCI layout. Entries that name the same image are one image with several names."""
        what = f"{self._path}: index.json"
        index = manifest.parse_document(self._read("index.json", manifest.MAX_MANIFEST_BYTES), what)
        entries = index.get("manifests")
        if not isinstance(entries, list) or not entries:
            raise NotFound(f"{what} lists no image")
        texts.check_count(len(entries), texts.NAMES.count, what)
        return [self._layout_image(entry, f"{what}: manifests[{number}]") for number, entry in enumerate(entries)]

    def _layout_image(self, entry: dict[str, Any], what: str) -> FetchedImage:
        top = manifest.descriptor(entry, what)
        name = self._name(entry)
        documents = [(top.digest, self._blob(top.digest, manifest.MAX_MANIFEST_BYTES))]
        document = manifest.parse_document(documents[0][1], what)
        manifest.check_kind(document, top.media_type, what)
        if manifest.is_index(document, top.media_type):
            chosen = manifest.choose(document, self._assembly.settings.architecture, what)
            documents.append((chosen.digest, self._blob(chosen.digest, manifest.MAX_MANIFEST_BYTES)))
            document = manifest.parse_document(documents[1][1], what)
            manifest.check_kind(document, chosen.media_type, what)
        parsed = manifest.parse_manifest(document, what)
        config = manifest.embedded(parsed.config, f"{what}: configuration")
        if config is None:
            config = self._blob(parsed.config.digest, manifest.MAX_CONFIG_BYTES)
        selected = selection.select(parsed, documents[-1][0], config, self._assembly.settings.policy, what)
        source = ArchiveSource(self._files, {job.shown: manifest.blob_name(job.shown) for job in selected.jobs})
        return selection.fetched_image(
            selection=selected,
            config=config,
            manifests=documents,
            layers=selection.fetch_missing(selected.jobs, [source], self._assembly, self._channel),
            # A digest in the name was not verified; the one below was.
            tags=[str(structs.replace(name, digest=None))] if name.tag else [],
            digests=[name.with_digest(top.digest)],
        )

    def _name(self, entry: dict[str, Any]) -> reference.Reference:
        """The name an entry asks for; a bare tag (as ``umoci`` writes it) goes with the file's name."""
        annotations = manifest.string_map(entry, "annotations", f"{self._path}: index.json")
        wanted = annotations.get(manifest.IMAGE_NAME) or annotations.get(manifest.REF_NAME) or ""
        if re.search(r"[/:]", wanted):
            return reference.parse(wanted)
        return reference.parse(self._file_name() + (f":{wanted}" if wanted else ""))

    def _file_name(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self._stem.lower()).strip("-") or "image"

    def docker(self) -> list[FetchedImage]:
        """Load what ``docker save`` wrote."""
        what = f"{self._path}: manifest.json"
        # docker's manifest.json is a list, and parse_document takes objects only.
        wrapped = b'{"images":' + self._read("manifest.json", manifest.MAX_MANIFEST_BYTES) + b"}"
        entries = manifest.parse_document(wrapped, what)["images"]
        if not isinstance(entries, list) or not entries:
            raise NotFound(f"{what} lists no image")
        texts.check_count(len(entries), texts.NAMES.count, what)
        return [self._docker_image(entry, f"{what}: [{number}]") for number, entry in enumerate(entries)]

    def _docker_image(self, entry: object, what: str) -> FetchedImage:
        if not isinstance(entry, dict):
            raise InvalidArgument(f"{what} is not an object")
        names, tags = (
            manifest.strings(entry, "Layers", what, texts.Many(count=manifest.MAX_LAYERS, each=texts.PATH)),
            manifest.strings(entry, "RepoTags", what, texts.NAMES),
        )
        name = entry.get("Config")
        if not isinstance(name, str):
            raise InvalidArgument(f"{what}: Config is missing or not a string")
        config = self._read(texts.check(name, texts.PATH, f"{what}: Config"), manifest.MAX_CONFIG_BYTES)
        configuration = manifest.parse_configuration(config, f"{what}: configuration")
        if len(names) != len(configuration.diff_ids):
            raise InvalidArgument(
                f"{what}: {len(names)} layers, but the configuration has {len(configuration.diff_ids)} diff_ids"
            )
        by_diff_id = dict(zip(configuration.diff_ids, names, strict=True))
        jobs = [self._docker_layer(diff_id, by_diff_id[diff_id]) for diff_id in configuration.diff_ids]
        source = ArchiveSource(self._files, by_diff_id)
        return selection.fetched_image(
            selection=selection.Selection(
                id=manifest.digest_of(config), kind="image", artifact_type="", run=configuration.run, jobs=tuple(jobs)
            ),
            config=config,
            manifests=[],
            layers=selection.fetch_missing(jobs, [source], self._assembly, self._channel),
            tags=[_tag(tag, f"{what}: RepoTags") for tag in tags] or [str(reference.parse(self._file_name()))],
            digests=[],
        )

    def _docker_layer(self, diff_id: Digest, name: str) -> LayerJob:
        size = self._files.size(name)
        if size is None:
            raise NotFound(f"{self._path}: layer {name} is not in the archive")
        # What docker writes there says nothing of compression: the content has to.
        start = next(self._files.pieces(name), b"")
        return LayerJob(layer=diff_id, compression=sniff(start[:4]), digest=None, size=size)

    def _blob(self, digest: Digest, most: int) -> bytes:
        data = self._read(manifest.blob_name(digest), most)
        manifest.verify(data, parse_digest(digest), f"{self._path}: {manifest.blob_name(digest)}")
        return data

    def _read(self, name: str, most: int) -> bytes:
        size = self._files.size(name)
        if size is None:
            raise NotFound(f"{self._path}: {name} is not in the archive")
        # Before it is read: an archive's documents may be as large as it likes.
        if size > most:
            raise InvalidArgument(f"{self._path}: {name} has {size} bytes, more than {most}")
        data = bytearray()
        for piece in self._files.pieces(name):
            data += piece
            if len(data) > most:  # it has grown since
                raise InvalidArgument(f"{self._path}: {name} has more than {most} bytes")
        self._documents += len(data)
        if self._documents > _MAX_DOCUMENTS:
            raise InvalidArgument(
                f"{self._path}: its manifests and configurations have more than {_MAX_DOCUMENTS} bytes together",
                hint="save its images to several archives",
            )
        return bytes(data)
