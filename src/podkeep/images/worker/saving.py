"""Images as an OCI layout again: which files it has, and writing them as one tar or into a directory.

Runs in the worker. :func:`plan` is pure: it makes the documents. Layers are written as they are stored, tars plain, so
an image's configuration, and with it its ID, is the same byte for byte, and its manifest is a new one unless its layers
were plain before. Files of artifacts are written byte for byte. OCI image-spec, image-layout.md; ``manifest.json`` is
there for docker, which looks for it first.

The same images give the same bytes: no time, no owner, names in order.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from podkeep.base.errors import DataLoss, FailedPrecondition
from podkeep.base.failpoints import reach
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import Digest
from podkeep.images.formats import manifest
from podkeep.images.formats.media_types import OCI_TAR
from podkeep.images.formats.openfile import failure, open_again
from podkeep.images.messages import Save, Saved, StoredImage, StoredLayer
from podkeep.images.worker.channel import Channel
from podkeep.images.worker.stored import StoredLayers, give_way
from podkeep.kernel.files.openat import write_all

_RECORD = 10240
"""Bytes that a tar's length is a multiple of (tar(5))."""
_BLOCK = 512


def save(request: Save, channel: Channel) -> None:
    """Write the images of the request to its target.

    :raises DataLoss: if a layer is damaged.
    :raises ResourceExhausted: if the target is full.
    :raises FailedPrecondition: if it cannot be opened or written.
    """
    give_way()
    layers = StoredLayers(Path(request.root))
    flags = os.O_RDONLY | os.O_DIRECTORY if request.directory else os.O_WRONLY
    fd = open_again(request.target, flags)
    known = {layer.id: layer for image in request.images for layer in image.layers}
    # Read once only for the sizes: the header of a tar's member comes before its content, and the target may be a pipe.
    sizes = {key: sum(map(len, layers.pieces(layer))) for key, layer in known.items()}
    what = plan(request.images, sizes)
    done = 0

    def content(layer: StoredLayer) -> Iterator[bytes]:
        nonlocal done
        for piece in layers.pieces(layer):
            yield piece
            done += len(piece)
            channel.progress("", "saving", done, what.bytes)
        reach("images-save")

    channel.progress("", "saving", 0, what.bytes)
    write(what, target_of(fd, request.target.name), content)
    _sync(fd, request.target.name)
    channel.emit(Saved(bytes=what.bytes))


class Plan(FrozenStruct, kw_only=True):
    """The files of a layout: ``documents`` by name, ``layers`` by the name of their blob, and the layers' ``sizes``."""

    documents: Mapping[str, bytes]
    layers: Mapping[str, StoredLayer]
    sizes: Mapping[Digest, int]

    @property
    def bytes(self) -> int:
        """Bytes of all files together."""
        return sum(map(len, self.documents.values())) + sum(self.sizes[layer.id] for layer in self.layers.values())


def plan(images: Sequence[StoredImage], sizes: Mapping[Digest, int]) -> Plan:
    """Return the files of a layout with ``images``, in the order in which they are to be written.

    :param sizes: bytes of the plain tar, or the file, of each layer by its ID.
    :raises FailedPrecondition: if an image cannot be written, as a part of it was never kept.
    """
    documents: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
    blobs: dict[str, bytes] = {}
    layers: dict[str, StoredLayer] = {}
    entries: list[dict[str, Any]] = []
    docker: list[dict[str, Any]] = []
    for image in images:
        document = _manifest(image, sizes)
        digest = manifest.digest_of(document)
        config = Digest(json.loads(document)["config"]["digest"])
        blobs |= {manifest.blob_name(digest): document, manifest.blob_name(config): image.config}
        layers |= {manifest.blob_name(layer.digest): layer for layer in image.layers}
        entries += _entries(image, document, digest)
        if image.kind == "image":
            docker.append(_docker_entry(image, config))
    documents["index.json"] = _json({"schemaVersion": 2, "mediaType": manifest.OCI_INDEX, "manifests": entries})
    if docker:
        documents["manifest.json"] = _json(docker)
    documents |= {name: blobs[name] for name in sorted(blobs)}
    # A file of an artifact may well be the configuration of another image.
    kept = {name: layers[name] for name in sorted(layers) if name not in documents}
    return Plan(documents=documents, layers=kept, sizes=sizes)


def _manifest(image: StoredImage, sizes: Mapping[Digest, int]) -> bytes:
    """The manifest of an image whose layers are plain; the one it came with, if they were plain then."""
    if not image.manifest:
        return _json(_new_manifest(image, sizes))
    original: dict[str, Any] = json.loads(image.manifest)
    described: list[dict[str, Any]] = original.get("layers") or []
    if len(described) != len(image.layers):
        raise FailedPrecondition(
            f"image {image.id} has {len(described)} layers in its manifest, but {len(image.layers)} were kept",
            hint="copy it from its registry",
        )
    layers = [_descriptor(before, layer, sizes) for before, layer in zip(described, image.layers, strict=True)]
    if layers == described:
        return image.manifest
    fresh = {**original, "mediaType": manifest.OCI_MANIFEST, "layers": layers}
    if fresh["config"].get("mediaType") == manifest.DOCKER_CONFIG:
        fresh["config"] = {**fresh["config"], "mediaType": manifest.OCI_CONFIG}
    return _json(fresh)


def _descriptor(before: dict[str, Any], layer: StoredLayer, sizes: Mapping[Digest, int]) -> dict[str, Any]:
    if before["digest"] == layer.digest:
        return before
    # What holds or leads to the compressed blob is not the plain one.
    kept = {name: value for name, value in before.items() if name not in ("data", "urls")}
    return kept | {"mediaType": OCI_TAR, "digest": layer.digest, "size": sizes[layer.id]}


def _new_manifest(image: StoredImage, sizes: Mapping[Digest, int]) -> dict[str, Any]:
    """For an image that came without a manifest (from a docker archive)."""
    config = {"mediaType": manifest.OCI_CONFIG, "digest": image.id, "size": len(image.config)}
    layers = [{"mediaType": OCI_TAR, "digest": layer.digest, "size": sizes[layer.id]} for layer in image.layers]
    return {"schemaVersion": 2, "mediaType": manifest.OCI_MANIFEST, "config": config, "layers": layers}


def _entries(image: StoredImage, document: bytes, digest: Digest) -> list[dict[str, Any]]:
    """The entries of the index: one for each name, since a reader may take one name from each."""
    parsed = json.loads(document)
    entry: dict[str, Any] = {
        "mediaType": parsed.get("mediaType", manifest.OCI_MANIFEST),
        "digest": digest,
        "size": len(document),
    }
    if image.kind == "artifact" and parsed.get("artifactType"):
        entry["artifactType"] = parsed["artifactType"]
    if image.tags:
        return [{**entry, "annotations": {manifest.IMAGE_NAME: tag, manifest.REF_NAME: tag}} for tag in image.tags]
    # Without a tag it still has a repository.
    return [{**entry, "annotations": {manifest.IMAGE_NAME: name}} for name in image.digests] or [entry]


def _docker_entry(image: StoredImage, config: Digest) -> dict[str, Any]:
    return {
        "Config": manifest.blob_name(config),
        "RepoTags": list(image.tags) or None,
        "Layers": [manifest.blob_name(layer.digest) for layer in image.layers],
    }


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class Target(Protocol):
    """Where the files of a layout go."""

    def add(self, name: str, size: int, pieces: Iterator[bytes]) -> None:
        """Write one file of ``size`` bytes."""
        ...

    def finish(self) -> None:
        """Write what belongs after the last file."""
        ...


class TarTarget:
    """One tar, written to a descriptor from front to back."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        self._written = 0

    def add(self, name: str, size: int, pieces: Iterator[bytes]) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o644
        self._write(info.tobuf(tarfile.PAX_FORMAT))
        for piece in pieces:
            self._write(piece)
        self._write(bytes(-size % _BLOCK))

    def finish(self) -> None:
        self._write(bytes(2 * _BLOCK))
        self._write(bytes(-self._written % _RECORD))

    def _write(self, data: bytes) -> None:
        _write(self._fd, data, self._name)
        self._written += len(data)


class DirectoryTarget:
    """Files below a directory that is open."""

    def __init__(self, root: int, name: str) -> None:
        self._root = root
        self._name = name

    def add(self, name: str, size: int, pieces: Iterator[bytes]) -> None:
        """Write one file; ``size`` comes with the content."""
        try:
            self._make_parents(name)
            # Never what is there already, a link to another file of the machine above all.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o644, dir_fd=self._root)
        except OSError as error:
            raise failure(error, f"{self._name}/{name}", "cannot be made") from error
        try:
            for piece in pieces:
                _write(fd, piece, f"{self._name}/{name}")
        finally:
            os.close(fd)

    def finish(self) -> None:
        """Do nothing: a directory has no end."""

    def _make_parents(self, name: str) -> None:
        parts = name.split("/")[:-1]
        for depth in range(len(parts)):
            try:
                os.mkdir("/".join(parts[: depth + 1]), 0o755, dir_fd=self._root)
            except FileExistsError:
                continue


def target_of(fd: int, name: str) -> Target:
    """Return the target for a descriptor: a directory gets a layout, anything else a tar."""
    return DirectoryTarget(fd, name) if stat.S_ISDIR(os.fstat(fd).st_mode) else TarTarget(fd, name)


def write(what: Plan, target: Target, content: Callable[[StoredLayer], Iterator[bytes]]) -> None:
    """Write a layout.

    :param content: yields a layer's plain tar, or its file.
    :raises DataLoss: if a layer is not what its digest says.
    :raises ResourceExhausted: if the target is full.
    :raises FailedPrecondition: if it cannot be written for another reason.
    """
    for name, document in what.documents.items():
        target.add(name, len(document), iter((document,)))
    for name, layer in what.layers.items():
        size = what.sizes[layer.id]
        target.add(name, size, _checked(layer, size, content(layer)))
    target.finish()


def _checked(layer: StoredLayer, size: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    hashing = hashlib.new(layer.digest.partition(":")[0])
    left = size
    for piece in pieces:
        hashing.update(piece)
        left -= len(piece)
        if left < 0:
            break
        yield piece
    found = f"{hashing.name}:{hashing.hexdigest()}"
    if left or found != layer.digest:
        raise DataLoss(
            f"layer {layer.id} is damaged: expected digest {layer.digest}, the content has {found}",
            hint="`podkeep image verify` says which images have it and what fixes them",
        )


def _write(fd: int, data: bytes, name: str) -> None:
    try:
        write_all(fd, data)
    except OSError as error:
        raise failure(error, name, "cannot be written") from error


def _sync(fd: int, name: str) -> None:
    """See that a file is on its disk: some file systems find out only then that they are full."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return
    try:
        os.fsync(fd)
    except OSError as error:
        raise failure(error, name, "cannot be written") from error
